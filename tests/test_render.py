"""Views for people: every character and score is there, signs need no colour, nothing leaks or loads."""

from __future__ import annotations

import io
import math
import re

import pytest
import torch
from explanation_samples import byte_level, sample, simple
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from decompx_fast.result.display import layout_text, printable, score_format, source_labels
from decompx_fast.result.explanation import Explanation
from decompx_fast.result.render import progress_bar

TECHNOLOGIST = "\U0001f469\U0001f3fd\u200d\U0001f4bb"


def printed(explanation: Explanation, *, width: int = 80, encoding: str = "utf-8", target=None, **console) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    explanation.show(target, console=Console(file=file, width=width, **console))
    file.flush()
    return raw.getvalue().decode(encoding)


def table_rows(output: str) -> list[str]:
    """The lines below the heading of the table that begin with a position."""
    return [line for line in output.splitlines() if re.match(r" *\d+  ", line)]


# --- what is shared ---


@given(st.text(max_size=30) | st.text("ab \n\U0001f600\u6771", max_size=30))
def test_layout_text_shows_every_character_and_source_once(text: str) -> None:
    for tokenizer in (None, byte_level(), byte_level(False)):
        explanation = sample(text, tokenizer)
        pieces = [piece for row in layout_text(explanation) for piece in row]
        assert "".join(piece.text for piece in pieces if not piece.is_marker) == (
            text if has_spans(explanation) else ""
        )
        assert sorted(k for piece in pieces for k in piece.positions) == list(range(len(explanation)))


def has_spans(explanation: Explanation) -> bool:
    return any(span is not None for span in explanation.spans)


def test_layout_text_of_a_cut_pair() -> None:
    explanation = simple(
        [1, 2, 3],
        tokens=("[CLS]", "a", "[SEP]"),
        spans=(None, (0, 0, 1), None),
        special=(True, False, True),
        texts=("a cut", "lost"),
    )
    rows = layout_text(explanation)
    assert [[(piece.text, piece.positions, piece.is_marker) for piece in row] for row in rows] == [
        [("[CLS]", (0,), True), ("a", (1,), False), (" cut", (), False), ("[SEP]", (2,), True)],
        [("lost", (), False)],
    ]


def test_source_labels_are_readable() -> None:
    explanation = sample(f"unbelievable {TECHNOLOGIST}\n", byte_level(False))
    labels = source_labels(explanation)
    assert labels[0] == "<s>"
    assert f"{TECHNOLOGIST[0]} (1/4)" in labels
    assert "\u23ce" in labels
    assert not any("\u0120" in label or "\u010a" in label for label in labels)

    bare = simple([1] * 5, tokens=("##ing", "\u0120good", "\u2581", "\u010a", "a\n b"), texts=(), spans=(None,) * 5)
    assert source_labels(bare) == ["ing", "good", "\u2423", "\u23ce", "a b"]


@pytest.mark.parametrize(
    ("tokens", "labels"),
    [
        (["\u0120caf\u00c3\u00a9", "\u0120au"], ["caf\u00e9", "au"]),
        (["caf", "\u00c3", "\u00a9", "\u010a"], ["caf", "\u00e9 (1/2)", "\u00e9 (2/2)", "\u23ce"]),
        (["\u00e6\u013f\u00b1", "\u00e4\u00ba\u00ac", "\u0120"], ["\u6771", "\u4eac", "\u2423"]),
        (["s\u0105"], ["s\u0105"]),  # Polish, in which these letters stand for themselves
        (["mo\u010d", "\u0121aj"], ["mo\u010d", "\u0121aj"]),
        (["na\u00efve", "\u00e9t\u00e9"], ["na\u00efve", "\u00e9t\u00e9"]),
        (["\u6771", "##\u4eac"], ["\u6771", "\u4eac"]),
    ],
)
def test_bytes_of_token_ids_are_shown_as_characters(tokens: list[str], labels: list[str]) -> None:
    bare = simple([1] * len(tokens), tokens=tuple(tokens), texts=(), spans=(None,) * len(tokens))
    assert source_labels(bare) == labels


def test_printable_takes_away_what_steers_a_terminal() -> None:
    assert printable("a\x1b[31m\x07\r\n\t\x9b\x7f\ud800\u05d0") == "a\u241b[31m\u2407\n\t\ufffd\u2421\ufffd\u05d0"


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([1.23456, -0.00071], ["+1.235", "-0.001"]),
        ([123.456, 0], ["+123.5", "+0.0"]),
        ([0.00123456], ["+0.001235"]),
        ([1.5e-9], ["+1.500e-09"]),
        ([0.0], ["+0.000"]),
        ([math.nan, 2.0], ["+nan", "+2.000"]),
        ([-0.0], ["+0.000"]),
        ([1.0, -0.0, -0.0004, 0.0004, -0.0006], ["+1.000", "+0.000", "+0.000", "+0.000", "-0.001"]),
        ([1e9, -0.0, -1.0], ["+1.000e+09", "+0.000e+00", "-1.000e+00"]),
    ],
)
def test_score_format_keeps_four_digits(values: list[float], written: list[str]) -> None:
    assert list(map(score_format(values), values)) == written


# --- terminal ---


def test_show_tells_the_prediction_the_sum_and_the_error() -> None:
    explanation = simple([[0.25, 1.0], [0.5, -0.5]], bias_token=torch.tensor([0.0, 2.0]), completeness_error=3e-7)
    output = printed(explanation, target=1)
    share = math.exp(0.5) / (math.exp(0.5) + math.exp(0.75))
    assert f"Predicted      class 0 {1 - share:.1%}, class 1 {share:.1%}" in output
    assert "Explained      class 1: logit +0.500" in output
    assert "Sum            tokens +0.500 and bias token +2.000" in output
    assert "Complete       to within 3.0e-07" in output
    assert "Other targets  class 0" in output


def test_show_says_when_scores_do_not_add_up() -> None:
    assert "Incomplete  by 1.5" in printed(simple([1.0], completeness_error=1.5))


def test_show_bars_point_to_the_side_of_the_sign() -> None:
    rows = table_rows(printed(simple([2.0, -1.0, 0.0])))
    left, right = zip(*(row.split("\u2502") for row in rows), strict=True)
    assert [side.count("\u2588") for side in left] == [0, right[0].count("\u2588") // 2, 0]
    assert [side.count("\u2588") > 0 for side in right] == [True, False, False]
    assert ["+2.000" in rows[0], "-1.000" in rows[1], "+0.000" in rows[2]] == [True] * 3
    assert len({cell_len(side) for side in left}) == 1


@pytest.mark.parametrize(
    "text", ["plain words", f"\u6771\u4eac\u30bf\u30ef\u30fc {TECHNOLOGIST} ok", "\u05e9\u05dc\u05d5\u05dd 3.5"]
)
@pytest.mark.parametrize("width", [30, 80, 120])
def test_show_fits_the_width(text: str, width: int) -> None:
    for explanation in (sample(text), sample(text).words()):
        lines = printed(explanation, width=width).splitlines()
        assert max(map(cell_len, lines)) <= width
        axes = {cell_len(line.partition("\u2502")[0]) for line in lines if "\u2502" in line}
        assert len(axes) == 1


def test_show_keeps_the_order_of_the_text() -> None:
    rows = table_rows(printed(simple([1, 3, 2])))
    assert [row.split()[:2] for row in rows] == [["0", "a"], ["1", "b"], ["2", "c"]]


def test_show_lists_only_the_largest_of_many() -> None:
    scores = torch.full((50,), 0.25)
    scores[10:30] = -1.0
    output = printed(simple(scores))
    assert [int(row.split()[0]) for row in table_rows(output)] == list(range(10, 30))
    assert "20 largest of 50 tokens" in output
    assert re.search(r"the\s+other 30 add up to\s+\+7\.500", output)
    assert len(table_rows(printed(simple(scores[:40])))) == 40


def test_show_colours_by_sign_and_strength() -> None:
    output = printed(simple([1.0, -1.0, 0.1, 0.0]), force_terminal=True, color_system="truecolor", no_color=False)
    text = next(
        line
        for line in output.splitlines()
        if "\x1b[" in line and " " in line and "Predicted" not in line and "48;2" in line
    )
    assert re.search(r"\x1b\[1;[^m]*48;2;0;134;95ma\x1b", text)  # bold on green
    assert re.search(r"\x1b\[4;[^m]*48;2;222;50;50mb\x1b", text)  # underlined on red
    assert re.search(r"\x1b\[38;2;0;134;95mc\x1b", text)  # weak: no background
    assert text.endswith("d")  # none


def test_show_without_colour_still_marks_signs(monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    output = printed(simple([1.0, -1.0]), force_terminal=True)
    assert not re.search(r"\x1b\[[0-9;]*[34]8;", output)
    assert "\x1b[1ma\x1b[0m \x1b[4mb\x1b[0m" in output


def test_show_tells_the_sign_of_what_is_weak_or_special_without_colour(monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    weak = printed(simple([1.0, -0.1, 0.1]), force_terminal=True)
    assert "\x1b[1ma\x1b[0m \x1b[4mb\x1b[0m c" in weak
    bare = simple([1.0, -0.5], tokens=("[CLS]", "x"), texts=(), spans=(None, None), special=(True, False))
    assert "\x1b[1m[CLS]\x1b[0m \x1b[4mx\x1b[0m" in printed(bare, force_terminal=True)


def test_show_scale_is_not_that_of_special_tokens() -> None:
    explanation = simple([-50.0, 1.0, 0.5], special=(True, False, False))
    output = printed(explanation)
    left, right = zip(*(row.split("\u2502") for row in table_rows(output)), strict=True)
    half = right[1].count("\u2588")
    assert half > 5 and right[2].count("\u2588") == pytest.approx(half / 2, abs=1)
    assert left[0].count("\u2588") == half - 1 and "\u00ab" in left[0]  # full, and marked as longer than that
    assert "full at +1.0" in output
    assert "full at" not in printed(simple([-0.5, 1.0, 0.5], special=(True, False, False)))


def test_show_marks_all_predicted_labels() -> None:
    explanation = simple([[3.0, -2.0, 1.0, 2.0]], problem_type="multi_label")
    output = printed(explanation, force_terminal=True, no_color=True)
    bold = re.findall(r"\x1b\[1m(class \d)\x1b", output.split("Explained")[0])
    assert bold == ["class 0", "class 3", "class 2"]
    many = printed(simple([[1.0] * 30], problem_type="multi_label"), width=400)
    assert many.count("73.1%") == 20 and "10 more below, 10 predicted" in many


def test_show_of_norms_speaks_of_no_class() -> None:
    explanation = simple(
        [1.0, 2.0], targets=("norm",), target_ids=(None,), options={"head": False, "aggregation": "vector"}
    )
    output = printed(explanation)
    assert "sum of norms +3.000" in output
    assert "against" not in output and "the longest" in output


def test_show_takes_no_markup_or_escapes_from_the_text() -> None:
    text = "[red]x[/] \x1b[31m"
    explanation = sample(text, byte_level(), labels=("[bold]no", "\x1b]0;title\x07"))
    output = printed(explanation)
    assert "[red]x[/] \u241b[31m" in output
    assert "[bold]no" in output
    assert "\x1b" not in output and "\x07" not in output


def test_show_writes_what_turns_or_hides_text_by_number() -> None:
    text = "pay \u202eevil\u202c \u2067x\u2069 a\u2028b \u200bc \ufeffd \U0001f469\u200d\U0001f52c \u0646\u200c\u0647"
    output = printed(sample(text, byte_level(), labels=("no\u202e", "yes")))
    for char in "\u202e\u202c\u2067\u2069\u2028\u200b\ufeff":
        assert char not in output
    assert r"\u202eevil\u202c" in output and r"no\u202e" in output
    assert "\U0001f469\u200d\U0001f52c" in output and "\u0646\u200c\u0647" in output  # joiners are part of what is seen


def test_show_on_a_terminal_without_unicode() -> None:
    output = printed(sample("\u6771 ok", scores=torch.tensor([[0.0, 0], [-1, 1], [1, -1], [0, 0]])), encoding="ascii")
    assert "\\u6771" in output
    assert re.search(r"#+\|", output) and re.search(r"\|#+", output)


def test_show_of_regression_and_several_labels() -> None:
    assert re.search(r"Predicted +class 0 \+3\.000 *\n", printed(simple([1.0, 2.0], problem_type="regression")))
    assert "Explained  class 0: value" in printed(simple([1.0, 2.0], problem_type="regression"))
    output = printed(simple([[-1.0, -2.0]], problem_type="multi_label"))
    assert re.search(r"Predicted +none of the labels is above 50%, class 0 26\.9%", output)
    many = printed(simple([list(map(float, range(9)))]))
    assert "class 8 63.2%" in many and "4 more" in many


def test_show_survives_scores_that_are_no_numbers() -> None:
    scores = [math.nan, math.inf, -1.0]
    explanation = simple(scores)
    assert "nan" in printed(explanation) and "+inf" in printed(explanation)
    assert "nan" in explanation.to_html()


def test_show_without_text_shows_tokens() -> None:
    output = printed(simple([1, 2], tokens=("\u0120good", "##ly"), texts=(), spans=(None, None)))
    assert "\ngood ly\n" in output


def test_show_width_is_used() -> None:
    console = Console(file=io.StringIO(), width=100)
    sample("A good film.").show(console=console, width=50)
    assert max(len(line) for line in console.file.getvalue().splitlines()) <= 50


def test_progress_bar_counts() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with progress_bar(5, console=console) as advance:
        advance(2)
        advance(3)
    assert "5/5" in console.file.getvalue()
    with progress_bar(None, console=console) as advance:
        advance(1)
