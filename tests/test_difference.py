"""Differences of two explanations: what they sum to, how sources of two tokenizers are matched, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from explanation_samples import byte_level, sample, unigram, wordpiece

from decompx_fast import DecompX, Explanation, difference
from decompx_fast.errors import InputError
from decompx_fast.result.account import account

TEXT = "A very good movie, isn't it?"


@pytest.fixture(scope="module")
def explainer():
    return DecompX.demo()


def test_difference_of_two_targets_sums_to_difference_of_logits(explainer):
    one = explainer(TEXT)
    found = difference(one, one, target="POSITIVE", other="NEGATIVE")
    torch.testing.assert_close(found.scores[:, 0], (one.scores[:, 1].double() - one.scores[:, 0].double()))
    assert found.targets == ("POSITIVE - NEGATIVE",)
    assert float(found.target_logits[0]) == pytest.approx(float(one.logits[1] - one.logits[0]), abs=1e-6)
    assert found.completeness_error < 1e-5
    assert found.tokens == one.tokens and found.token_ids == one.token_ids and found.source_unit == "token"
    asked = explainer(TEXT, targets={"POSITIVE": 1, "NEGATIVE": -1})
    torch.testing.assert_close(found.scores, asked.scores.double(), atol=1e-5, rtol=1e-5)


def test_difference_of_two_rules_keeps_every_shared_target(explainer):
    shared, left_out = explainer(TEXT), explainer(TEXT, bias="none")
    found = difference(shared, left_out, names=("absdot", "none"))
    assert found.targets == ("NEGATIVE: absdot - none", "POSITIVE: absdot - none")
    assert found.target_logits.abs().max() < 1e-5
    # What the one side leaves out is missing in the difference, and it says so instead of calling it unsound.
    assert found.completeness_error == pytest.approx(float((shared.totals - left_out.totals).abs().max()), abs=1e-6)
    told = account(found, 0)
    assert told.status == "Left out" and told.is_sound
    assert [side["name"] for side in found.metadata["difference"]] == ["absdot", "none"]
    page = found.to_html(full=True)  # where nothing is called predicted
    assert "<dt>Difference</dt>" in page and "Predicted" not in page.partition("<script>")[0]


def test_difference_of_two_tokenizers_sums_to_difference_of_totals():
    a, b = sample(TEXT, wordpiece()), sample(TEXT, byte_level())
    assert a.tokens != b.tokens
    found = difference(a, b)
    assert found.source_unit == "word"
    torch.testing.assert_close(found.totals, a.totals - b.totals)
    covered = "".join(TEXT[span[1] : span[2]] for span in found.spans if span)
    assert covered.replace(" ", "") == TEXT.replace(" ", "")
    # Each word has exactly what its tokens have on either side.
    words_a = {span: score for span, score in zip(a.words().spans, a.words().scores.tolist(), strict=True) if span}
    movie = next(k for k, token in enumerate(found.tokens) if token == "movie")
    start = TEXT.index("movie")
    of_b = sum(
        row[0]
        for row, span in zip(b.scores.tolist(), b.spans, strict=True)
        if span and span[1] < start + 5 and span[2] > start
    )
    assert found.scores[movie, 0].item() == pytest.approx(words_a[(0, start, start + 5)][0] - of_b)


def test_difference_joins_words_that_one_tokenizer_reads_as_one():
    text = "of the kings"
    a, b = sample(text, wordpiece()), sample(text, unigram())
    found = difference(a, b)
    torch.testing.assert_close(found.totals, a.totals - b.totals)
    assert [found.source_text(k) for k in range(len(found)) if found.spans[k]][0] == "of the"


def test_difference_goes_through_file_json_and_views(tmp_path, explainer):
    one = explainer(TEXT)
    found = difference(one, one, target="POSITIVE", other="NEGATIVE")
    found.save(tmp_path / "one.safetensors")
    again = Explanation.load(tmp_path / "one.safetensors")
    assert again.targets == found.targets and torch.equal(again.scores, found.scores)
    assert Explanation.from_dict(json.loads(json.dumps(found.to_dict()))).metadata == found.metadata
    assert "POSITIVE - NEGATIVE" in found.to_html(full=True)
    assert found.words().source_unit == "word" and "POSITIVE - NEGATIVE" in repr(found)


def test_difference_of_bias_tokens_keeps_their_difference(explainer):
    a, b = explainer(TEXT, bias="bias_token"), explainer(TEXT)
    found = difference(a, b)
    torch.testing.assert_close(found.bias_token, a.bias_token.double())
    assert found.completeness_error < 1e-5


def test_difference_of_special_tokens_whose_numbers_differ_is_one_source():
    a = sample(TEXT, wordpiece())
    b = sample(TEXT, byte_level())
    kept = [k for k in range(len(b)) if k != len(b) - 1]  # without the last special token
    fewer = replace(
        b,
        tokens=tuple(b.tokens[k] for k in kept),
        token_ids=None,
        spans=tuple(b.spans[k] for k in kept),
        special=tuple(b.special[k] for k in kept),
        scores=b.scores[kept],
    )
    found = difference(a, fewer)
    assert [token for token, special in zip(found.tokens, found.special, strict=True) if special] == ["special tokens"]
    torch.testing.assert_close(found.totals, a.totals - fewer.totals)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "a and b are the same explanation: name the two targets"),
        ({"target": "POSITIVE", "other": "NEUTRAL"}, "target 'NEUTRAL' was not explained"),
        ({"target": "POSITIVE", "other": "NEGATIVE", "names": ("x", "x")}, "names must be two different names"),
    ],
)
def test_difference_refuses_targets_that_say_nothing(explainer, arguments, message):
    one = explainer(TEXT)
    with pytest.raises(InputError, match=message):
        difference(one, one, **arguments)


def test_difference_refuses_what_is_not_of_one_text(explainer):
    one, other = explainer([TEXT, "Dull."])
    with pytest.raises(InputError, match="explain different texts .*'Dull.'.*: a difference is of one text"):
        difference(one, other)
    with pytest.raises(InputError, match="b must be an Explanation, got str"):
        difference(one, "text")
    ids, longer = explainer([[101, 2307, 102], [101, 2307, 2307, 102]])
    with pytest.raises(InputError, match="where they are in the text is not known"):
        difference(ids, longer)
    norms = explainer(TEXT, head=False, engine="reference")
    with pytest.raises(InputError, match="a holds norms"):
        difference(norms, one)
    renamed = replace(one, targets=("x", "y"), target_ids=(None, None))
    with pytest.raises(InputError, match="no target is in both: a has 'NEGATIVE', 'POSITIVE', b has 'x', 'y'"):
        difference(one, renamed)
