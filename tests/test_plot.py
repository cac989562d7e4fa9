"""The plot: bars that add up to the model's value, labels that fit, fonts that have the characters."""

from __future__ import annotations

import io
import warnings

import pytest
import torch
from explanation_samples import simple
from rich.cells import cell_len

from decompx_fast.errors import InputError
from decompx_fast.result import fonts
from decompx_fast.result.plot import wrap


@pytest.fixture
def pyplot():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    yield pyplot
    pyplot.close("all")


def test_plot_bars_labels_and_order(pyplot) -> None:
    ax = simple([[1.0, 0], [-2.0, 0], [0.5, 0]]).plot(target=0)
    assert [bar.get_width() for bar in ax.patches] == [1.0, -2.0, 0.5]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c"]
    bottom, top = ax.get_ylim()
    assert bottom > top  # the first source is at the top
    assert "class 0" in ax.get_xlabel()
    colours = [bar.get_facecolor() for bar in ax.patches]
    assert colours[0] == colours[2] != colours[1]


def test_plot_only_the_largest_on_given_axes(pyplot) -> None:
    _, ax = pyplot.subplots()
    assert simple([1.0, -3.0, 0.5, 2.0]).plot(ax, top=2) is ax
    assert [label.get_text() for label in ax.get_yticklabels()] == ["b", "d", "2 other tokens"]
    assert [bar.get_width() for bar in ax.patches] == [-3.0, 2.0, 1.5]
    with pytest.raises(InputError, match="top must be 1 or more"):
        simple([1.0]).plot(top=0)


def test_plot_reads_no_formula_in_tokens(pyplot) -> None:
    text = r"$\frac$ $"
    ax = simple([1.0], tokens=(text,), texts=(), spans=(None,), targets=(r"$\bad$",)).plot()
    ax.figure.savefig(io.BytesIO())  # would raise for a formula that does not parse
    assert ax.get_yticklabels()[0].get_text() == text


def bars_of(ax) -> dict[str, float]:
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert len(set(labels)) == len(labels) == len(ax.patches)
    return dict(zip(labels, [bar.get_width() for bar in ax.patches], strict=True))


def test_plot_adds_up_with_the_bias_token(pyplot) -> None:
    bars = bars_of(simple([1.0, -0.5], bias_token=torch.tensor([2.0]), target_logits=torch.tensor([2.5])).plot())
    assert bars == {"a": 1.0, "b": -0.5, "bias token": 2.0}


def test_plot_adds_up_with_what_is_left_out(pyplot) -> None:
    logit = torch.tensor([4.5])
    none = simple([1.0, -0.5], options={"bias": "none"}, target_logits=logit, completeness_error=4.0)
    assert bars_of(none.plot()) == {"a": 1.0, "b": -0.5, "the biases, left out": 4.0}
    broken = simple([1.0, -0.5], target_logits=logit, completeness_error=4.0)
    assert bars_of(broken.plot()) == {"a": 1.0, "b": -0.5, "not accounted for": 4.0}


def test_plot_of_a_long_text_is_no_tower(pyplot) -> None:
    generator = torch.Generator().manual_seed(0)
    explanation = simple(torch.randn(300, 1, generator=generator), bias_token=torch.tensor([1.0]))
    explanation = simple(explanation.scores, bias_token=torch.tensor([1.0]), target_logits=explanation.totals)
    ax = explanation.plot()
    assert ax.figure.get_size_inches()[1] < 12
    assert [label.get_text() for label in ax.get_yticklabels()][-2:] == ["260 other tokens", "bias token"]
    assert sum(bar.get_width() for bar in ax.patches) == pytest.approx(float(explanation.target_logits), abs=1e-9)
    assert len(explanation.plot(top=None).patches) == 301


def test_plot_labels_of_sentences_are_whole_in_the_picture(pyplot) -> None:
    text = "One sentence that goes on and on, " * 9 + "and ends."
    names = ("a class whose name is a whole sentence, as those of some models are, and then some more words",)
    fields = {"texts": (), "spans": (None, None), "source_unit": "sentence", "targets": names, "labels": names}
    ax = simple([1.0, 2.0], tokens=(text, "b"), **fields).plot()
    ax.figure.canvas.draw()
    axis_label = ax.xaxis.label.get_window_extent()
    assert axis_label.x0 >= 0 and axis_label.x1 <= ax.figure.bbox.x1
    box = ax.get_yticklabels()[0].get_window_extent()
    assert box.x0 >= 0 and box.y1 <= ax.figure.bbox.y1
    others = ax.get_yticklabels()[1].get_window_extent()
    assert box.y0 > others.y1  # they do not touch
    assert ax.get_window_extent().width > 0.4 * ax.figure.bbox.width  # room is left for the bars


@pytest.mark.parametrize("text", ["", "word", "many words " * 20, "\u6771\u4eac" * 60, "x" * 200, "a\u6771 " * 40])
def test_wrap_fits_and_says_when_it_elides(text: str) -> None:
    wrapped = wrap(text, 32, 3)
    rows = wrapped.split("\n")
    assert len(rows) <= 3 and max(map(cell_len, rows)) <= 32
    whole = "".join(text.split())
    assert whole.startswith("".join(wrapped.split()).removesuffix("\u2026"))
    assert wrapped.endswith("\u2026") == (cell_len(text.strip()) > 3 * 32)


def covers(file: str, char: str) -> bool:
    """Whether a font has a character, by its own table."""
    from matplotlib.ft2font import FT2Font

    return ord(char) in FT2Font(file).get_charmap()


def test_fonts_are_those_that_have_the_characters(pyplot, monkeypatch) -> None:
    from matplotlib import font_manager

    serif = next(e.fname for e in font_manager.fontManager.ttflist if e.name == "DejaVu Serif" and e.style == "normal")
    cmex = next(e.fname for e in font_manager.fontManager.ttflist if e.name == "STIXSizeOneSym")
    # A world of two fonts: of what the first lacks the second has one character.
    only_second = next(chr(c) for c in range(0x20D0, 0x2FFF) if covers(cmex, chr(c)) and not covers(serif, chr(c)))
    monkeypatch.setattr(fonts, "_files_by_family", lambda: {"DejaVu Serif": serif, "STIXSizeOneSym": cmex})
    monkeypatch.setitem(pyplot.rcParams, "font.family", ["DejaVu Serif"])
    assert fonts.choose_fonts(["plain"]) == (["DejaVu Serif"], frozenset())
    assert fonts.choose_fonts(["a" + only_second]) == (["DejaVu Serif", "STIXSizeOneSym"], frozenset())


def test_fonts_that_only_stand_in_are_not_taken(pyplot) -> None:
    families, missing = fonts.choose_fonts(["\u6771\U0001f600\u0e01 plain"])
    assert not any("last" in name.lower() for name in families)


def test_plot_writes_escapes_for_what_no_font_has_and_says_so_once(pyplot, monkeypatch) -> None:
    monkeypatch.setattr(fonts, "_drawn_by", lambda file, chars: frozenset(c for c in chars if file and c < "\u3000"))
    tokens = ("\u6771\u4eac", "\u6771", "\U0001f44d\U0001f3fd", "ok")
    explanation = simple([1.0, 2.0, 3.0, 4.0], tokens=tokens, texts=(), spans=(None,) * 4)
    with pytest.warns(UserWarning, match="no installed font .* has 3 of the characters, such as .*U\\+4EAC") as caught:
        ax = explanation.plot()
    assert len(caught) == 1 and caught[0].filename == __file__
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["\\u6771\\u4eac", "\\u6771", "\\U0001f44d", "ok"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib itself would warn of each glyph that it lacks
        ax.figure.savefig(io.BytesIO())
