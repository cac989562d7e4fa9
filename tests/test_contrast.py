"""Colours: text stays readable on everything behind it (WCAG 2.2, success criterion 1.4.3: 4.5 to 1)."""

from __future__ import annotations

import itertools
import re

import pytest
from explanation_samples import sample, simple

from decompx_fast.result.display import AGAINST_RGB, FOR_RGB
from decompx_fast.result.templating import MAX_ALPHA
from decompx_fast.result.terminal import terminal_view

LEAST = 4.5

#: Paper and ink of our own page (templates/page.html.jinja) and of JupyterLab's two themes, whose ink is 87 % opaque.
PAGES = {
    "light": ((255, 255, 255), (27, 27, 31)),
    "dark": ((22, 22, 26), (236, 236, 241)),
    "JupyterLab light": ((255, 255, 255), (33, 33, 33)),
    "JupyterLab dark": ((17, 17, 17), (224, 224, 224)),
}


def luminance(rgb) -> float:
    """Relative luminance, as WCAG defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def over(rgb, alpha: float, paper) -> tuple[float, ...]:
    return tuple(alpha * a + (1 - alpha) * b for a, b in zip(rgb, paper, strict=True))


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast((255, 255, 255), (0, 0, 0)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)  # the standard's known example


def test_pages_are_those_of_the_template() -> None:
    page = sample("A film").to_html(full=True)
    for paper, ink in (PAGES["light"], PAGES["dark"]):
        colours = ["#" + "".join(f"{part:02x}" for part in rgb) for rgb in (paper, ink)]
        colours = ["#fff" if colour == "#ffffff" else colour for colour in colours]
        assert f"background: {colours[0]}; color: {colours[1]};" in page


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("colour", [FOR_RGB, AGAINST_RGB])
def test_html_text_is_readable_on_every_strength(name: str, colour) -> None:
    paper, ink = PAGES[name]
    for step in range(21):
        assert contrast(ink, over(colour, MAX_ALPHA * step / 20, paper)) >= LEAST


@pytest.mark.parametrize("name", PAGES)
def test_html_faint_text_is_readable(name: str) -> None:
    paper, ink = PAGES[name]
    opacities = set(map(float, re.findall(r"opacity: ([\d.]+)", sample("A film").to_html())))
    assert opacities
    assert all(contrast(over(ink, opacity, paper), paper) >= LEAST for opacity in opacities)


def test_terminal_text_is_readable() -> None:
    """White on each background, and each colour on a black and on a white terminal."""
    scores = [sign * step / 40 for step, sign in itertools.product(range(1, 41), (1, -1))]
    rows = [part for part in terminal_view(simple(scores)).renderables if hasattr(part, "spans")]
    styles = [span.style for row in rows for span in row.spans if hasattr(span.style, "color") and span.style.color]
    assert len(styles) > 70
    for style in styles:
        text = style.color.get_truecolor()
        papers = [style.bgcolor.get_truecolor()] if style.bgcolor else [(0, 0, 0), (255, 255, 255)]
        assert all(contrast(text, paper) >= LEAST for paper in papers), style
