"""Several explanations: a list in every way, and a picture of bounded size in a notebook."""

from __future__ import annotations

import copy
import pickle
import re

import models
import pytest
import torch
from explanation_samples import sample, simple

from decompx_fast import DecompX
from decompx_fast.result.explanations import Explanations
from decompx_fast.result.page import LIST_CHARACTERS, LIST_ITEMS


def test_explain_returns_a_list_that_shows_itself() -> None:
    explainer = DecompX(models.classifier(vocab=models.WORD_PIECES), models.word_piece())
    found = explainer.explain(models.TEXTS)
    assert isinstance(found, list)
    assert [one.texts[0] for one in found] == models.TEXTS
    html = found._repr_html_()
    assert all(f"{n + 1} of {len(models.TEXTS)}" in html for n in range(len(models.TEXTS)))
    assert html.count("<style>") == 1 and 'class="dx-text"' in html
    assert isinstance(explainer(models.TEXTS[:1]), list) and not isinstance(explainer(models.TEXTS[0]), list)


def test_list_is_a_list_in_every_way() -> None:
    items = [simple([1]), simple([2])]
    found = Explanations(items)
    assert found == items and items == found
    assert found[0] is items[0] and found[-1] is items[1]
    assert isinstance(found[:1], Explanations) and found[:1] == items[:1]
    assert isinstance(copy.copy(found), Explanations)
    again = pickle.loads(pickle.dumps(found))
    assert type(again) is Explanations and [float(one.scores.sum()) for one in again] == [1, 2]
    assert repr(found) == repr(items)
    for sum_ in (found + items, items + found, found + found, found * 2, 2 * found):
        assert type(sum_) is Explanations and sum_ == items * 2
    assert type(found.copy()) is Explanations and found.copy() == items
    with pytest.raises(TypeError):
        found + (1,)
    found += items
    assert type(found) is Explanations and len(found) == 4


def test_list_in_a_notebook_has_bounded_size() -> None:
    found = Explanations([sample("A good film.")] * 64)
    html = found._repr_html_()
    assert html.count("<article") == LIST_ITEMS
    assert f"{64 - LIST_ITEMS} more are not shown" in html
    large = Explanations([simple(torch.rand(300, 50))] * 5)._repr_html_()
    one = len(simple(torch.rand(300, 50))._repr_html_())
    assert len(large) <= max(LIST_CHARACTERS, one) + 20_000
    assert large.count("<article") >= 1


@pytest.mark.parametrize("width", [1, 2])
def test_list_shows_what_is_no_explanation_as_text(width: int) -> None:
    html = Explanations([ValueError("<script>x</script>")] * width)._repr_html_()
    assert "<script>" not in html and html.count("&lt;script&gt;") == width


def test_empty_list_says_so() -> None:
    html = Explanations()._repr_html_()
    assert "no text was explained" in html and not re.search("<article", html)
