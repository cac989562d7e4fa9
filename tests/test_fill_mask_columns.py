"""What is asked at a mask, by default and by name."""

from __future__ import annotations

import models
import numpy as np
import pytest
import torch
from refusals import refuses
from task_samples import Given, encode
from test_task_columns import named

from decompx_fast.request.tasks.columns import Column, Question, Term, with_own_names
from decompx_fast.request.tasks.fill_mask import FillMask


def masked(tokenizer, text: str, likely: dict[str, float], count: int | None = None):
    """An input, and outputs in which a few tokens are likely at every position."""
    encoded = encode(tokenizer, text)
    values = torch.zeros(len(encoded), count or len(tokenizer), dtype=torch.float64)
    for token, value in likely.items():
        values[:, tokenizer.convert_tokens_to_ids(token)] = value
    return encoded, Given(values)


def test_a_mask_is_what_is_predicted_there():
    tokenizer = models.word_piece()
    task = FillMask(tokenizer, tokenizer.mask_token_id)
    encoded, given = masked(tokenizer, "[MASK] is in France.", {"paris": 20.0, "london": 19.0})
    paris, london = tokenizer.convert_tokens_to_ids(["paris", "london"])
    asked = task.ask(encoded, given, Question())
    assert named(asked) == {"paris @ [MASK]": {(1, paris): 1.0}}
    (prediction,) = asked.predictions
    assert prediction.score == pytest.approx(1 / (1 + np.exp(-1) + (len(tokenizer) - 2) * np.exp(-20)), rel=1e-9)
    assert (prediction.name, prediction.output, prediction.position) == ("paris", paris, 1)
    asked = task.ask(encoded, given, Question(top_k=2))
    assert [*named(asked)] == ["paris @ [MASK]", "london @ [MASK]"]
    asked = task.ask(encoded, given, Question(targets={"Paris": 1, "London": -1}))
    assert named(asked) == {"paris - london @ [MASK]": {(1, paris): 1.0, (1, london): -1.0}}
    asked = task.ask(encoded, given, Question(targets=[london, "##ing"], at=2))
    assert [*named(asked)] == ["london @ is", "##ing @ is"]


def test_each_of_several_masks_is_explained():
    tokenizer = models.word_piece()
    encoded, given = masked(tokenizer, "[MASK] and [MASK]", {"paris": 20.0})
    asked = FillMask(tokenizer, tokenizer.mask_token_id).ask(encoded, given, Question())
    assert [*named(asked)] == ["paris @ [MASK] 1", "paris @ [MASK] 2"]
    assert [p.place for p in asked.predictions] == ["[MASK] 1", "[MASK] 2"]


def test_a_byte_level_word_is_read_as_its_place_has_it():
    tokenizer = models.byte_pair()
    task = FillMask(tokenizer, tokenizer.mask_token_id)
    a, after_space = tokenizer.convert_tokens_to_ids(["a", "\u0120a"])
    assert tokenizer.unk_token_id not in (a, after_space)
    encoded, given = masked(tokenizer, "not <mask> film", {})
    assert named(task.ask(encoded, given, Question(targets="a"))) == {
        "a @ <mask>": {(_mask(encoded), after_space): 1.0}
    }
    encoded, given = masked(tokenizer, "<mask> film", {})
    assert named(task.ask(encoded, given, Question(targets="a"))) == {"a @ <mask>": {(_mask(encoded), a): 1.0}}
    encoded, given = masked(tokenizer, "a film(<mask>)", {})
    for written, token in (("a", a), ("\u0120a", after_space), (" a", after_space)):
        asked = task.ask(encoded, given, Question(targets=written))
        assert named(asked) == {"a @ <mask>": {(_mask(encoded), token): 1.0}}


def _mask(encoded) -> int:
    return encoded.tokens.index("<mask>")


def test_tokens_that_are_read_alike_are_told_apart():
    tokenizer = models.byte_pair()
    encoded, given = masked(tokenizer, "not <mask> film", {"a": 20.0, "\u0120a": 19.0, "e": 18.0})
    asked = FillMask(tokenizer, tokenizer.mask_token_id).ask(encoded, given, Question(top_k=3))
    assert [*named(asked)] == ["a @ <mask>", "\u0120a @ <mask>", "e @ <mask>"]


def test_no_column_is_lost_to_another_of_its_name():
    columns = [Column("x", {Term(1, 0): 1.0}), Column("x", {Term(1, 2): 1.0}), Column("x", {Term(3, 0): 1.0})]
    found = with_own_names([*columns, columns[0], Column("y", {Term(1, 0): 1.0, Term(4, 1): 1.0})])
    assert [c.name for c in found] == ["x (#1) (output 0)", "x (#1) (output 2)", "x (#3)", "y"]
    assert [c.terms for c in found[:3]] == [c.terms for c in columns]


def test_bad_questions_of_masks():
    tokenizer = models.word_piece()
    task = FillMask(tokenizer, tokenizer.mask_token_id)
    encoded, given = masked(tokenizer, "Paris is in France.", {})
    refuses(task.ask, encoded, given, Question(), match=("there is no mask in the input", "write [MASK]", "at="))
    encoded, given = masked(tokenizer, "[MASK] is in France.", {})
    refuses(
        task.ask,
        encoded,
        given,
        Question(targets="unbelievably"),
        match=("'unbelievably' in targets is 5 tokens ('un', '##bel', '##ie', '##va', '##bly')", "a mask is one"),
    )
    refuses(task.ask, encoded, given, Question(targets="\u4dff"), match=("not in the vocabulary",))
    refuses(task.ask, encoded, given, Question(targets=len(tokenizer)), match=("no token 30522", "0 to 30521"))
    refuses(task.ask, encoded, given, Question(targets=" "), match=("targets holds ' '",))
    refuses(task.ask, encoded, given, Question(targets=2.5), match=("targets holds 2.5", "text or id"))
    refuses(task.ask, encoded, given, Question(at=0), match=("special token '[CLS]'",))
    refuses(FillMask(None, 103).ask, encoded, given, Question(targets="a"), match=("no tokenizer", "give token ids"))
