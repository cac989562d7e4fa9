"""The terminal beyond one target: two targets beside each other, and layers as small maps."""

from __future__ import annotations

import io
import re

import pytest
import torch
from explanation_samples import simple
from rich.cells import cell_len
from rich.console import Console
from test_cli import fails, run

from decompx_fast import show_layers
from decompx_fast.errors import InputError
from decompx_fast.result.layer_terminal import MOST_CELLS

SCORES = torch.tensor([[1.0, -0.5], [-2.0, 0.25], [0.5, 0.5]], dtype=torch.float64)


def printed(show, *, width: int = 100, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    show(Console(file=file, width=width))
    file.flush()
    return raw.getvalue().decode(encoding)


# --- two targets ---


def rows_of(out: str) -> list[list[str]]:
    """Of a table: number, label and the next three cells of each row."""
    return [line.split()[:5] for line in out.splitlines() if re.match(r" *\d+  ", line)]


def test_two_targets_stand_beside_their_difference():
    one = simple(SCORES)
    out = printed(lambda console: one.show("class 1", other="class 0", console=console))
    assert rows_of(out) == [
        ["0", "a", "-0.500", "+1.000", "-1.500"],
        ["1", "b", "+0.250", "-2.000", "+2.250"],
        ["2", "c", "+0.500", "+0.500", "+0.000"],
    ]
    assert re.search(r"Explained +class 1 - class 0: value \+0\.750", out)
    assert re.search(r"Predicted +class 1 ", out)
    assert "more for class 1" in out and "more for class 0" in out


def test_two_targets_are_found_by_class_wherever_their_columns_are():
    one = simple(SCORES, targets=("class 1", "class 0"), target_ids=(1, 0))
    by_index, by_name = (
        printed(lambda console, pair=pair: one.show(pair[0], other=pair[1], console=console))
        for pair in ((0, 1), ("class 0", "class 1"))
    )
    assert by_index == by_name
    assert rows_of(by_name)[0] == ["0", "a", "-0.500", "+1.000", "-1.500"]
    assert re.search(r"Explained +class 0 - class 1", by_name)


def test_the_second_target_is_taken_from_the_predicted_one():
    out = printed(lambda console: simple(SCORES).show(other="class 0", console=console))
    assert "class 1 - class 0" in out


def test_one_target_twice_has_no_difference():
    with pytest.raises(InputError, match=r"other='class 1' is the target itself: name two of .* 'class 0', 'class 1'"):
        simple(SCORES).show("class 1", other="class 1")


# --- layers ---


def staged(*norms: torch.Tensor, **changes):
    return simple([1.0] * norms[0].shape[1], stages={f"encoder.{n}": one for n, one in enumerate(norms)}, **changes)


def test_a_map_has_a_row_for_each_position_and_a_shade_for_each_share():
    norms = torch.tensor([[8.0, 0.4, 0.6], [2.9, 3.1, 4.9], [5.1, 6.9, 7.1]])
    out = printed(lambda console: show_layers(staged(norms, 2 * norms), console=console))
    assert rows_of(out) == [["0", "a", "█", "█"], ["1", "b", "░▒▒", "░▒▒"], ["2", "c", "▓▓█", "▓▓█"]]
    assert "0: 8.00  1: 16.00" in out
    assert "░ from 1/8, ▒ from 3/8, ▓ from 5/8, █ from 7/8 of it." in out


def test_a_cell_of_a_long_text_is_the_largest_of_its_tokens():
    count = 3 * MOST_CELLS - 1
    norms = torch.zeros(count, count)
    norms[4, 7] = norms[count - 1, count - 1] = 1.0
    out = printed(lambda console: show_layers(staged(norms), console=console))
    lines = [line for line in out.splitlines() if re.match(r" *\d+-\d+  ", line)]
    assert len(lines) == MOST_CELLS
    cells = [line[-(MOST_CELLS):] for line in lines]
    marked = {(row, column) for row, line in enumerate(cells) for column, cell in enumerate(line) if cell != " "}
    assert marked == {(1, 2), (MOST_CELLS - 1, MOST_CELLS - 1)}
    assert "A cell is the largest of 3 x 3 tokens." in out


@pytest.mark.parametrize("width", [24, 40, 80, 200])
def test_maps_fit_the_width(width):
    one = staged(*torch.rand(12, 50, 50), tokens=tuple("東京タワー" * 10))
    lines = printed(lambda console: show_layers(one, console=console), width=width).splitlines()
    assert max(map(cell_len, lines)) <= width


def test_shades_are_ascii_where_nothing_else_can_be_written():
    norms = torch.tensor([[4.0, 3.0], [2.0, 1.0]])
    out = printed(lambda console: show_layers(staged(norms), console=console), encoding="ascii")
    assert re.findall(r"^\d  \w  (\S\S)", out, re.M) == ["#+", ":."]


def test_sources_that_are_no_positions_have_columns_alone():
    out = printed(lambda console: show_layers(staged(torch.ones(5, 2)), console=console))
    assert len(re.findall(r"^\d +██", out, re.M)) == 5


def test_a_stage_that_was_not_kept_is_named():
    with pytest.raises(InputError, match=r"no stage 'encoder', only none: explain with stages=\('encoder',\)"):
        show_layers(simple([1.0]))


# --- on the command line ---


def test_explain_shows_two_targets_and_layers(capsys, cli_folder):
    arguments = ("explain", "a good film", "--model", cli_folder, "--difference", "LABEL_1", "0", "--layers")
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "LABEL_1 - LABEL_0" in out and "Difference" in out
    assert "Encoder, layer by layer" in out and "The number above a map" in out


def test_explain_puts_layers_into_the_page(capsys, cli_folder, tmp_path):
    page = tmp_path / "page.html"
    assert run(capsys, "explain", "a film", "--model", cli_folder, "--layers", "--quiet", "--html", str(page))[0] == 0
    assert "data:image/png;base64," in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--difference", "0", "1", "--target", "0"), "--difference names two different targets itself"),
        (("--difference", "0", "0"), "--difference names two different targets itself"),
        (("--layers", "--words"), "--layers are of the tokens of one text: leave --words and --steps out"),
        (("--layers", "--steps", "2"), "--layers are of the tokens of one text: leave --words and --steps out"),
    ],
)
def test_what_does_not_go_together_is_a_wrong_use(capsys, cli_folder, options, says):
    assert says in fails(capsys, 2, "explain", "a film", "--model", cli_folder, *options)
