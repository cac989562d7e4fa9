"""The script of a page, in a browser: Chromium by its driver, where both are installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from browsing import NEEDS_BROWSER
from explanation_samples import LABELS, sample, simple

from decompx_fast.result.page import page_chunks

pytestmark = [pytest.mark.slow, NEEDS_BROWSER]


def shown(browser, tmp_path, *explanations, **options) -> None:
    path = tmp_path / "page.html"
    entries = ((f"text {n}", one) for n, one in enumerate(explanations))
    path.write_text("".join(page_chunks(entries, **options)), encoding="utf-8")
    browser.open(path.as_uri())
    assert browser.run("return document.querySelector('main').dataset.scripts") == "on"


#: Of a text, by its number: the signs and shares of the colours of its pieces.
COLOURS = """
const article = document.querySelectorAll("article.dx-one")[arguments[0]];
return [...article.querySelectorAll(".dx-text:not(.dx-beside) [data-k]")].map((node) =>
  (node.classList.contains("dx-for") ? 1 : node.classList.contains("dx-against") ? -1 : 0)
  * Number(node.style.getPropertyValue("--a")));
"""

CHOOSE = """
const [selector, value] = arguments, node = document.querySelector(selector);
if (node.type === "checkbox") node.checked = value; else node.value = value;
node.dispatchEvent(new Event(node.type === "search" ? "input" : "change", { bubbles: true }));
"""


def expected(one, target, minus=None, scale=None) -> list[float]:
    """What colours the pieces should have, counted here."""
    scores = one.scores[:, target] - (0 if minus is None else one.scores[:, minus])
    ordinary = [abs(float(s)) for s, special in zip(scores, one.special, strict=True) if not special]
    scale = scale or max(ordinary)
    shares = [min(1.0, abs(float(s)) / scale) for s in scores]
    return [0.6 * share * (0 if share < 0.03 else 1 if s > 0 else -1) for share, s in zip(shares, scores, strict=True)]


def test_target_is_switched_and_set_beside_another(browser, tmp_path):
    one = sample("A very good movie, unbelievably so.")
    shown(browser, tmp_path, one)
    assert browser.run(COLOURS, 0) == pytest.approx(expected(one, one.column()), abs=2e-3)
    for name in LABELS:
        browser.run(CHOOSE, ".dx-tools select", name)
        assert browser.run(COLOURS, 0) == pytest.approx(expected(one, LABELS.index(name)), abs=2e-3)
        assert name in browser.run("return document.querySelector('[data-explained]').textContent")
    browser.run(CHOOSE, ".dx-tools label + label select", LABELS[0])
    beside = COLOURS.replace(".dx-text:not(.dx-beside)", ".dx-text.dx-beside")
    both = [*expected(one, 0), *expected(one, 1, minus=0)]
    assert browser.run(beside, 0) == pytest.approx(both, abs=2e-3)
    notes = browser.run("return [...document.querySelectorAll('.dx-note.dx-beside')].map((node) => node.textContent)")
    coloured = (one.scores[:, 0], one.scores[:, 1] - one.scores[:, 0])
    full = [float(scores[1:-1].abs().max()) for scores in coloured]
    assert [note.rpartition(", full at ")[0] for note in notes] == [LABELS[0], f"{LABELS[1]} less {LABELS[0]}"]
    assert [float(note.rpartition(" ")[2]) for note in notes] == pytest.approx(full, rel=5e-3)


def test_words_have_the_sum_of_their_tokens(browser, tmp_path):
    one = sample("unbelievably good")
    words = one.words()
    shown(browser, tmp_path, one, target="POSITIVE")
    browser.run(CHOOSE, ".dx-all input[type=checkbox]", True)
    of_words = expected(words, 1)
    word_of = [0, *[1] * (len(one) - 3), 2, 3]
    assert browser.run(COLOURS, 0) == pytest.approx([of_words[word] for word in word_of], abs=2e-3)


def test_keys_go_through_the_tokens_and_say_their_scores(browser, tmp_path):
    one = simple([2.0, -1.0])
    shown(browser, tmp_path, one)
    press = "arguments[0].split(' ').forEach((key) => document.querySelector('.dx-text').dispatchEvent("
    press += (
        "new KeyboardEvent('keydown', { key })));return document.querySelector('[role=status].dx-says').textContent"
    )
    assert browser.run(press, "Home").startswith("a +2.00, 67")
    assert browser.run(press, "ArrowRight").startswith("b -1.00, 33")
    assert browser.run(press, "ArrowRight ArrowLeft").startswith("a +2.00")


def test_texts_are_searched_filtered_and_ordered(browser, tmp_path):
    several = [sample("A good film."), sample("Dull, dull."), sample("A bad film."), sample("Fine.")]
    shown(browser, tmp_path, *several)
    visible = (
        "return [...document.querySelectorAll('article.dx-one')].filter((a) => !a.hidden).map((a) => a.dataset.place)"
    )
    assert browser.run(visible) == [f"text {n}" for n in range(4)]
    browser.run(CHOOSE, "input[type=search]", "FILM")
    assert browser.run(visible) == ["text 0", "text 2"]
    browser.run(CHOOSE, "input[type=search]", "")
    label = several[0].predicted_label
    browser.run(CHOOSE, ".dx-all label + label select", label)
    assert browser.run(visible) == [f"text {n}" for n, one in enumerate(several) if one.predicted_label == label]
    browser.run(CHOOSE, ".dx-all label + label select", "")
    browser.run(CHOOSE, ".dx-all label + label + label select", "-p")
    order = sorted(range(4), key=lambda n: -float(several[n].probabilities.max()))
    assert browser.run(visible) == [f"text {n}" for n in order]


def test_one_scale_and_one_target_for_all(browser, tmp_path):
    several = [sample("A good film."), sample("Dull, dull, really dull."), sample("Fine.")]
    shown(browser, tmp_path, *several)
    scale = max(
        abs(float(s))
        for one in several
        for s, special in zip(one.scores[:, 1], one.special, strict=True)
        if not special
    )
    browser.run(CHOOSE, ".dx-all label:nth-of-type(4) select", "POSITIVE")
    browser.run(CHOOSE, ".dx-all label:nth-of-type(6) input", True)
    for n, one in enumerate(several):
        assert browser.run(COLOURS, n) == pytest.approx(expected(one, 1, scale=scale), abs=2e-3)


def test_two_texts_are_set_side_by_side(browser, tmp_path):
    shown(browser, tmp_path, sample("A good film."), sample("Dull."), sample("Fine."))
    browser.run("const b = document.querySelectorAll('.dx-tools > button'); b[0].click(); b[2].click();")
    aside = "return [...document.querySelectorAll('.dx-aside article .dx-text')].map((node) => node.textContent.trim())"
    texts = browser.run(aside)
    assert len(texts) == 2 and "good film" in texts[0] and "Fine" in texts[1]
    browser.run("document.querySelector('.dx-aside button').click()")
    assert len(browser.run(aside)) == 1


def test_what_is_said_above_a_text_is_of_its_target(browser, tmp_path):
    one = sample("A good film.")
    shown(browser, tmp_path, one, target="POSITIVE")
    said = "return [...document.querySelectorAll('.dx-head dd')].map((node) => node.textContent.trim()).join(' | ')"
    legend = "return document.querySelector('[data-legend=range]').textContent"
    for name in ("NEGATIVE", "POSITIVE", "NEGATIVE"):
        browser.run(CHOOSE, ".dx-tools select", name)
        column, text = LABELS.index(name), browser.run(said)
        assert f"{name}, logit {float(one.target_logits[column]):+.3f}"[:-1] in text
        assert f"tokens {float(one.scores[:, column].sum()):+.3f}"[:-1] in text
        ends = [float(word) for word in browser.run(legend).split()[2::2]]
        assert ends == pytest.approx([float(one.scores[:, column].min()), float(one.scores[:, column].max())], rel=5e-3)


def test_two_explanations_of_a_text_set_aside_have_their_difference(browser, tmp_path):
    one = simple([2.0, -1.0])
    shown(browser, tmp_path, one, simple([0.5, 1.0]), sample("Fine."))
    browser.run("const b = document.querySelectorAll('.dx-tools > button'); b[0].click(); b[1].click();")
    less = COLOURS.replace('document.querySelectorAll("article.dx-one")', 'document.querySelectorAll(".dx-less")')
    assert browser.run(less, 0) == pytest.approx([0.6 * 1.5 / 2.0, -0.6], abs=2e-3)
    assert "text 0" in browser.run("return document.querySelector('.dx-less').textContent")
    pressed = "return [...document.querySelectorAll('.dx-tools > button[aria-pressed]')].map((b) => b.ariaPressed)"
    assert browser.run(pressed) == ["true", "true", "false"]
    # Of another text there is none; what is set aside follows the target that is chosen.
    browser.run("document.querySelectorAll('.dx-tools > button[aria-pressed]')[2].click()")
    assert browser.run("return document.querySelectorAll('.dx-less').length") == 0
    browser.run(CHOOSE, ".dx-all label:nth-of-type(4) select", "NEGATIVE")
    assert "NEGATIVE, logit" in browser.run("return document.querySelector('.dx-aside').textContent")


def test_arrow_keys_go_where_they_point_in_a_text_from_right_to_left(browser, tmp_path):
    one = sample("\u05d6\u05d4 \u05e1\u05e8\u05d8 \u05d8\u05d5\u05d1")
    shown(browser, tmp_path, one)
    press = "arguments[0].split(' ').forEach((key) => document.querySelector('.dx-text').dispatchEvent("
    press += "new KeyboardEvent('keydown', { key })));"
    press += "return [...document.querySelectorAll('.dx-text [data-k]')].indexOf(document.querySelector('.dx-here'))"
    assert browser.run(press, "Home") == 0
    assert browser.run(press, "ArrowLeft ArrowLeft") == 2
    assert browser.run(press, "ArrowRight") == 1


def test_texts_have_headings_and_the_slider_says_its_layer(browser, tmp_path):
    one = simple([1.0, 2.0], stages={f"encoder.{layer}": torch.rand(2, 2) for layer in range(3)})
    shown(browser, tmp_path, one)
    assert browser.run("return document.querySelector('h1 ~ article > h2').textContent") == "text 0"
    slide = "const r = document.querySelector('input[type=range]'); r.value = arguments[0];"
    slide += "r.dispatchEvent(new Event('input')); return r.getAttribute('aria-valuetext')"
    assert browser.run(slide, -1) == "all layers" and browser.run(slide, 1).startswith("layer 1, full at")


def test_a_thousand_texts_open_at_once(browser, tmp_path):
    one = sample("If you sometimes like to go to the movies to have fun, this is a good place to start.")
    path = tmp_path / "many.html"
    path.write_text("".join(page_chunks((f"text {n}", one) for n in range(1000))), encoding="utf-8")
    assert path.stat().st_size < 20e6
    browser.open(path.as_uri())
    loaded = "const t = performance.getEntriesByType('navigation')[0]; return t.loadEventEnd"
    assert browser.run("return document.querySelectorAll('article.dx-one').length") == 1000
    assert browser.run("return document.querySelectorAll('[data-ready]').length") < 100  # the others wait
    print(f"{path.stat().st_size / 1e6:.1f} MB, {browser.run(loaded):.0f} ms")


@pytest.mark.skipif(not os.environ.get("AXE"), reason="AXE names no file axe.min.js of the package axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_finding_of_axe(browser, tmp_path, scheme):
    several = [
        sample("A very good movie."),
        sample("\u05d6\u05d4 \u05e1\u05e8\u05d8 \u05d8\u05d5\u05d1"),
        sample("Fine."),
    ]
    shown(browser, tmp_path, *several)
    browser.emulate(scheme)
    browser.run(Path(os.environ["AXE"]).read_text(encoding="utf-8"))
    found = browser.run_async("const done = arguments[0]; axe.run().then((r) => done(r.violations))")
    told = [(one["id"], one["impact"], one["nodes"][0]["html"][:200]) for one in found]
    assert [one for one in told if one[1] in ("serious", "critical")] == []
