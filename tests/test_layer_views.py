"""Layers as plots and on the page: what is drawn are the numbers of stages and components; what is missing is said."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import matplotlib
import pytest
import torch
from explanation_samples import simple

from decompx_fast import DecompX, plot_components, plot_layers, plot_river
from decompx_fast.errors import InputError
from decompx_fast.result import render
from decompx_fast.result.layer_plots import component_totals, layer_norms, river
from decompx_fast.result.layer_view import RIVER_COLOURS
from decompx_fast.result.png import decode

TEXT = "The plot is thin, but fun."
matplotlib.use("Agg")


@pytest.fixture(scope="module")
def staged():
    return DecompX.demo()(TEXT, stages=("encoder", "attention"), stage_output="norm")


@pytest.fixture(scope="module")
def told():
    return DecompX.demo()(TEXT, bias="none")


@pytest.fixture(autouse=True)
def closed():
    yield
    matplotlib.pyplot.close("all")


def test_layers_are_drawn_as_the_stages_are(staged):
    figure = plot_layers(staged)
    drawn = [ax.images[0].get_array() for ax in figure.axes if ax.images]
    assert len(drawn) == 6
    for layer, image in enumerate(drawn):
        torch.testing.assert_close(torch.as_tensor(image.data), staged.stages[f"encoder.{layer}"].double())
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels[1:4] == ["The", "plot", "is"]


def test_vectors_are_drawn_by_their_length():
    vectors = torch.randn(2, 2, 5)
    norms = layer_norms(simple([1.0, 2.0], stages={"encoder.0": vectors, "pooler": torch.ones(2)}))
    torch.testing.assert_close(norms[0], vectors.norm(dim=-1))


def test_river_begins_with_the_scores_and_ends_where_the_head_reads(told):
    mass = river(told, "POSITIVE")
    torch.testing.assert_close(mass[0], told.scores[:, 1].double(), atol=1e-5, rtol=1e-4)
    assert mass.shape == (7, len(told)) and mass[-1, 0] != 0 and not mass[-1, 1:].any()
    # What biases add is the only thing that changes the sum; it ends before the last layer's network.
    totals = mass.sum(1).tolist()
    for layer, (before, after) in enumerate(zip(totals, totals[1:], strict=False)):
        sites = [
            site for site in told.sites() if site.layer == layer and (layer < 5 or site.place in ("attention", "ln1"))
        ]
        assert after - before == pytest.approx(sum(float(site.value[1]) for site in sites), abs=1e-4)
    ax = plot_river(told, target="POSITIVE", top=3)
    assert len(ax.get_legend().get_texts()) == 4


def test_components_are_the_bars(told):
    totals = component_totals(told, "POSITIVE")
    ax = plot_components(told, target="POSITIVE")
    widths = [bar.get_width() for bar in ax.patches]
    for of in totals.values():
        for value in of.values():
            assert not value or any(abs(width - value) < 1e-9 for width in widths)
    both = totals[0]["attention"] + totals[0]["attention_residual"]
    assert both == pytest.approx(float(told.scores[:, 1].sum()), abs=1e-4)


def test_page_has_maps_of_layers_and_bars_of_components(staged, told):
    page = staged.to_html(full=True)
    assert page.count('<details class="dx-layers"') == 2 and page.count("<figure><img") == 12
    first = re.search(r'base64,([^"]+)" alt="encoder of layer 0', page)[1]
    pixels = decode(base64.b64decode(first))
    norms = staged.stages["encoder.0"]
    expected = 255 - norms / norms.max() * 255  # of the red, which is 0 in the full colour
    torch.testing.assert_close(pixels[..., 0].float(), expected.round().float(), atol=1.0, rtol=0)
    bars = told.to_html("POSITIVE", full=True)
    shown = dict(re.findall(r'title="(attention|ffn) ([+-][\d.]+)"', bars)[:2])
    of = component_totals(told, "POSITIVE")[0]
    for part in ("attention", "ffn"):
        assert float(shown[part]) == pytest.approx(of[part], abs=1e-3)
    assert "dx-layers" not in simple([1.0]).to_html().split("</style>")[-1]


def test_page_has_the_biases_of_each_layer_and_of_the_head(told):
    page = told.to_html("POSITIVE", full=True)
    shown = [float(value) for value in re.findall(r'title="biases ([+-][\d.]+)"', page)]
    expected = [sum(float(s.value[1]) for s in told.sites() if s.layer == layer) for layer in (*range(6), -1)]
    assert shown == pytest.approx(expected, abs=1e-3)


def test_page_has_a_river_as_wide_as_the_scores(told):
    page = told.to_html("POSITIVE", full=True)
    drawing = re.search(r'<details class="dx-river">.*?</details>', page, re.S)[0]
    mass = river(told, "POSITIVE")
    count = mass.shape[0]
    names, heights = [], []
    for title, polygons in re.findall(r"<g [^>]*><title>(.*?): .*?</title>(.*?)</g>", drawing):
        names.append(title)
        height = torch.zeros(count)
        for points in re.findall(r'points="(.*?)"', polygons):
            ys = torch.tensor([float(point.split(",")[1]) for point in points.split()])
            height += ys[count:].flip(0) - ys[:count]  # inner less outer end: upwards what speaks for the target
        heights.append(height)
    drawn, total = torch.stack(heights), mass.clamp(min=0).sum(1).max()
    stripes = [mass[:, int(name.rpartition("#")[2])] for name in names if "#" in name]
    assert len(stripes) == 8 and names[-1] == f"{mass.shape[1] - 8} others"
    scale = drawn[0, 0] / stripes[0][0]
    torch.testing.assert_close(drawn[:8], torch.stack(stripes).float() * scale, atol=0.25, rtol=0)
    assert scale * total < 245 and drawing.count("<text") == count


def test_colours_of_layers_are_seen_on_white_and_on_black():
    style = (Path(render.__file__).parent / "templates" / "style.html.jinja").read_text(encoding="utf-8")
    parts = re.findall(r"dx-part-\w+ \{ background: (#\w{6});", style)
    assert len(parts) == 4 and len(set(RIVER_COLOURS)) == 9

    def luminance(colour: str) -> float:
        shares = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in (*parts, *RIVER_COLOURS):  # WCAG 2.2, 1.4.11: 3 to 1 for what is no text
        for ground in ("#ffffff", "#16161a"):
            light, dark = sorted((luminance(colour), luminance(ground)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 3, (colour, ground)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda one: plot_layers(one, "ffn"), r"has no stage 'ffn', only none: explain with stages=\('ffn',\)"),
        (lambda one: plot_components(one), "does not tell what each component carries: explain with engine='adjoint'"),
        (lambda one: plot_river(one), "does not tell what each component carries"),
        (lambda one: plot_river(one, top=0), "top must be 1 or more, got 0"),
        (
            lambda one: plot_river(one, "POSITIVE"),
            "ax must be the Axes .* got 'POSITIVE': a target is target='POSITIVE'",
        ),
        (lambda one: plot_components(one, "POSITIVE"), "a target is target='POSITIVE'"),
        (lambda one: one.plot("POSITIVE"), "a target is target='POSITIVE'"),
        (lambda one: plot_layers(one, columns=0), "columns must be 1 or more, got 0"),
    ],
)
def test_what_is_missing_is_said(call, message):
    with pytest.raises(InputError, match=message):
        call(simple([1.0, 2.0]))
