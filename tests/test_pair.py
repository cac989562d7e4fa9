"""A pair's explanation by itself: sums, words, tables, files, JSON, the page and the terminal."""

from __future__ import annotations

import io
import json
import pickle
import re
from dataclasses import replace

import pytest
import torch
from explanation_samples import byte_level, without_script, wordpiece
from refusals import refuses
from rich.console import Console
from test_render_html import ATTACK, Reader

import decompx_fast
from decompx_fast import PairExplanation
from decompx_fast.errors import OutputError
from decompx_fast.result.explanations import Explanations
from decompx_fast.result.pair import BIAS_TOKEN, PairSide


def side(text: str, tokenizer=None, *, bias: bool = False) -> PairSide:
    """A real tokenizer's sources of a text."""
    encoding = (tokenizer or wordpiece()).encode(text)
    spans = tuple(
        None if special else (0, *offset)
        for special, offset in zip(encoding.special_tokens_mask, encoding.offsets, strict=True)
    )
    extra = 1 if bias else 0
    return PairSide(
        (*encoding.tokens, *[BIAS_TOKEN] * extra),
        tuple(encoding.ids),
        (*spans, *[None] * extra),
        (text,),
        (*map(bool, encoding.special_tokens_mask), *[True] * extra),
        has_bias=bias,
    )


def pair(a: str = "an unbelievable film", b: str = "unbelievably bad!", *, seed: int = 0, **changes) -> PairExplanation:
    """Scores are multiples of 1/64, so that they add up without rounding."""
    tokenizer, bias = changes.pop("tokenizer", None), changes.pop("bias", False)
    sides = side(a, tokenizer, bias=bias), side(b, tokenizer, bias=bias)
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-32, 33, (len(sides[0]), len(sides[1])), generator=generator) / 64
    fields = {"scores": scores, "value": scores.sum().item(), "measure": "cos", "completeness_error": 0.0}
    fields |= {"options": {"bias": "absdot"}, "engines": ("forward", "forward"), "time_s": 0.5}
    fields |= {"metadata": {"model": "m"}}
    return PairExplanation(sides[0], sides[1], **(fields | changes))


def same(one: PairExplanation, other: PairExplanation) -> bool:
    return one.to_dict() == other.to_dict() and one.scores.dtype == other.scores.dtype


def test_sums_are_of_rows_and_columns():
    found = pair()
    for k in range(len(found.a)):
        assert found.sum("a")[k] == sum(found.scores[k].tolist())
    for m in range(len(found.b)):
        assert found.sum("b")[m] == sum(found.scores[:, m].tolist())
    assert found.total == found.value
    refuses(found.sum, "c", match=("side must be one of 'a', 'b'",))


@pytest.mark.parametrize("tokenizer", [None, byte_level()], ids=["wordpiece", "bytes"])
def test_words_conserve_every_sum(tokenizer):
    found = pair("It's unbelievably  good, naïve 東京", "good \U0001f469\u200d\U0001f4bb films?", tokenizer=tokenizer)
    merged = found.words()
    assert merged.total == found.total and merged.value == found.value
    assert merged.scores.dtype == torch.float64
    assert (merged.a.source_unit, merged.b.source_unit) == ("word", "word")
    place = [m for m, span in enumerate(merged.a.spans) if span and merged.a.source_text(m) == "unbelievably"]
    tokens = [k for k, span in enumerate(found.a.spans) if span and 5 <= span[1] and span[2] <= 17]
    assert merged.sum("a")[place[0]] == found.sum("a")[tokens].sum()
    assert same(merged.words(), merged)


def test_words_keep_biases_and_whole_texts_and_refuse_the_rest():
    found = pair(bias=True).words()
    assert found.a.tokens[-1] == found.b.tokens[-1] == BIAS_TOKEN and found.a.has_bias
    whole = PairSide(("bad!",), None, ((0, 0, 4),), ("bad!",), (False,), "text")
    half = replace(found, b=whole, scores=found.scores[:, :1])
    assert half.words().b == whole
    sentences = replace(pair(), a=replace(pair().a, source_unit="sentence"))
    refuses(sentences.words, match=("sources of a are sentences",))
    ids = replace(pair(), b=replace(pair().b, texts=(), spans=(None,) * len(pair().b)))
    refuses(ids.words, match=("needs the text of b",))


def test_top_orders_pairs():
    found = pair()
    top = found.top(1000)
    assert len(top) == found.scores.numel()
    assert [abs(one.score) for one in top] == sorted(found.scores.abs().flatten().tolist(), reverse=True)
    for one in top:
        assert found.scores[one.position_a, one.position_b] == one.score
        assert (one.token_a, one.token_b) == (found.a.tokens[one.position_a], found.b.tokens[one.position_b])
    assert all(one.score > 0 for one in found.top(1000, "positive"))
    worst = found.top(1000, "negative")
    assert [one.score for one in worst] == sorted(score for score in found.scores.flatten().tolist() if score < 0)
    ordinary = found.top(1000, special=False)
    assert 0 < len(ordinary) < len(top)
    assert not {"[CLS]", "[SEP]"} & {token for one in ordinary for token in (one.token_a, one.token_b)}
    assert found.top(0) == []
    refuses(found.top, -1, match=("n must be 0 or more",))
    refuses(found.top, 3, "size", match=("by must be one of",))


def test_repr_tells_the_value_and_what_was_compared():
    assert re.fullmatch(
        r"PairExplanation\(5 tokens x 9 tokens, cos=-?\d\.\d{4}, completeness_error=0\.0e\+00\)",
        repr(pair(value=0.5)),
    ), repr(pair())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_files_json_and_pickles_give_it_back(tmp_path, dtype):
    found = pair(ATTACK, bias=True)
    found = replace(found, scores=found.scores.to(dtype) / 3)
    path = tmp_path / "pair.safetensors"
    found.save(path)
    for again in (
        PairExplanation.load(path),
        PairExplanation.from_dict(json.loads(json.dumps(found.to_dict()))),
        pickle.loads(pickle.dumps(found)),
    ):
        assert torch.equal(again.scores, found.scores)
        assert same(again, found)
        assert again.a == found.a and again.b == found.b and again.engines == found.engines
    (tmp_path / "pairs.json").write_text(json.dumps([found.to_dict(), pair().to_dict()]))
    read = decompx_fast.read_json(tmp_path / "pairs.json")
    assert [type(one) for one in read] == [PairExplanation, PairExplanation] and same(read[0], found)


def test_files_that_are_none(tmp_path):
    path = tmp_path / "pair.safetensors"
    refuses(PairExplanation.load, path, match=("does not exist", "PairExplanation.save()"))
    pair().save(path)
    refuses(decompx_fast.Explanation.load, path, match=("holds no explanation", "Explanation.save()"))
    path.write_bytes(path.read_bytes()[:40])
    refuses(PairExplanation.load, path, match=("cannot be read",))
    refuses(pair().save, tmp_path / "none" / "x", match=("there is no folder",), error=OutputError)
    refuses(replace(pair(), metadata={"x": {1}}).to_dict, match=("metadata must hold plain JSON",))
    refuses(PairExplanation.from_dict, {"kind": "pair"}, match=("damaged",))
    refuses(PairExplanation.from_dict, {"scores": []}, match=("no explanation of a pair",))


def test_a_result_keeps_no_more_than_its_own():
    scores = torch.zeros(10, 5, 9)[3]
    found = replace(pair(), scores=scores)
    assert found.scores.untyped_storage().nbytes() == scores.nbytes


def test_parts_that_do_not_fit_are_refused():
    found = pair()
    refuses(replace, found, scores=found.scores[1:], match=("shape [5, 9]", "[4, 9]"))
    refuses(replace, found, scores=found.scores.half(), match=("float32 or float64",))
    refuses(replace, found, measure="euclid", match=("measure must be one of",))
    refuses(replace, found.a, special=(True,), match=("one span and one flag",))
    refuses(replace, found.a, source_unit="page", match=("source_unit must be one of",))
    refuses(replace, found.a, texts=("x",), match=("spans[1] must be",))


def test_the_table_has_a_row_for_each_pair():
    pytest.importorskip("pandas")
    found = pair()
    table = found.to_dataframe()
    assert len(table) == found.scores.numel()
    assert table["score"].sum() == found.total
    for row in table.itertuples():
        assert found.scores[row.position_a, row.position_b] == row.score
        assert row.token_a == found.a.tokens[row.position_a] and row.token_b == found.b.tokens[row.position_b]
    assert set(table[table.token_a == "film"]["text_a"]) == {"film"}


def test_html_escapes_everything_and_needs_no_script():
    found = pair(ATTACK, "</style><script>1</script>", metadata={"<i>": "<img src=x>"}, options={"bias": "<b>"})
    for html in (
        found.to_html(),
        without_script(found.to_html(full=True)),
        found.words()._repr_html_(),
        Explanations([found])._repr_html_(),
    ):
        reader = Reader(html)
        assert {tag for tag, _ in reader.elements}.isdisjoint({"script", "i", "img"})
        assert not any(name.startswith("on") for _, attrs in reader.elements for name in attrs)
        assert "http" not in reader.styles
        assert "<script>alert('x')</script>" in reader.visible and "</style><script>1</script>" in reader.visible


def test_html_has_the_matrix_and_its_sums():
    found = replace(pair(), scores=pair().scores * 64 / 1000)
    html = found.to_html()
    cells = re.findall(r"<td[^>]*>([+-][\d.]+)</td>", html.partition("All pairs")[2])
    rows, columns = found.scores.shape
    expected = []
    for k in range(rows):
        expected += [*found.scores[k].tolist(), found.sum("a")[k].item()]
    expected += [*found.sum("b").tolist(), found.total]
    assert len(cells) == (rows + 1) * (columns + 1)
    assert [float(cell) for cell in cells] == pytest.approx(expected, abs=5e-4)


def test_html_links_each_source_to_its_scores_with_the_other_text():
    """What a source carries is its score with each of the other text, relative to the largest, signed."""
    found = pair()
    reader = Reader(found.to_html())
    ordinary = [k for k, special in enumerate(found.a.special) if not special]
    others = [m for m, special in enumerate(found.b.special) if not special]
    largest = max(abs(found.scores[k, m].item()) for k in ordinary for m in others)
    marks = [one for one in reader.of_class("dx-p") if "dx-a" in one["class"].split()]
    names = [one["title"].rpartition("#")[2].rstrip(")") for one in marks]
    for mark, k in zip(marks, map(int, names), strict=True):
        values = [float(value) for value in re.findall(r"--b\d+:(-?[\d.]+)", mark["style"])]
        wanted = [
            max(-1, min(1, score / largest)) * 0.6 if abs(score / largest) <= 1 else 0.6 * (1 if score > 0 else -1)
            for score in found.scores[k].tolist()
        ]
        assert values == pytest.approx(wanted, abs=0.006)
        assert mark["tabindex"] == "0"
    rules = re.findall(
        r":has\(\.dx-([ab]\d+):is\(:hover, :focus\)\) \.dx-([ab]) \{ --s: var\(--([ab]\d+), 0\)", reader.styles
    )
    assert len(rules) == len(reader.of_class("dx-p"))
    assert all(one == shown and one[0] != other for one, other, shown in rules)


def test_html_of_long_texts_shows_the_strongest_and_links_nothing():
    long = " ".join(["word"] * 150)
    html = pair(long, long).to_html()
    assert "The sums are" not in html and "the sources with the largest scores are shown" in html
    assert re.search(r":has\(\.dx-[ab]\d", html) is None and len(html) < 300_000
    assert len(Reader(html).of_class("dx-p")) == 2 * 152


def printed(found: PairExplanation, width: int = 80, **console) -> str:
    out = Console(file=io.StringIO(), width=width, **console)
    found.show(console=out)
    return out.file.getvalue()


def test_show_tells_value_sum_texts_and_strongest_pairs():
    found = pair("a good film", "the film", value=0.25, completeness_error=0.5)
    output = printed(found)
    assert "Cosine        +0.250" in output and f"Sum of pairs  {found.total:+.3f}" in output
    assert "Incomplete" in output and "by 0.5" in output
    assert "a  [CLS] a good film [SEP]" in output and "b  [CLS] the film [SEP]" in output
    first = found.top(1)[0]
    row = next(line for line in output.splitlines() if "│" in line and "alike" not in line)
    assert f"{first.score:+.3f}" in row
    assert "complete" in printed(pair()).lower()


def test_show_fits_the_width_and_steers_no_terminal():
    found = pair("\x1b[31mred [bold]x[/bold] \u202e", "caf\u00e9 " * 30)
    for width in (20, 50, 120):
        output = printed(found, width)
        assert max(len(line) for line in output.splitlines()) <= width
        assert "\x1b" not in output and "\u202e" not in output
    assert "[bold]" in printed(found, 120)
