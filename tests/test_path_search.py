"""Scores by a search (``steps="search"``): the definition once more, completeness, and what may be asked."""

from __future__ import annotations

import models
import pytest
import torch
from explainers import bert
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from decompx_fast import DecompX
from decompx_fast.cli import main
from decompx_fast.engines.path import Search, trials_of
from decompx_fast.errors import InputError, OptionError
from decompx_fast.evaluation.method import Problem, get_method
from decompx_fast.request.encoding import Reader

TEXT, OTHER = models.TEXTS[:2]
WAYS = {None: ("mask", "remove"), "mask": ("mask",), "remove": ("remove",), "pad": ("pad",)}


@pytest.fixture(scope="module")
def explainer() -> DecompX:
    found = bert(40)
    return DecompX(found.model, found.tokenizer)


class Says:
    """What the model says of a text with some of its tokens, the mean over ways to delete the others."""

    def __init__(self, explainer: DecompX, ids: list[int], free: list[int], target: int, ways: tuple[str, ...]) -> None:
        self.explainer, self.ids, self.free, self.target, self.ways = explainer, ids, free, target, ways

    def __call__(self, there: set[int]) -> float:
        gone = {k for k in self.free if k not in there}
        values = []
        for way in self.ways:
            kept = [i for k, i in enumerate(self.ids) if k not in gone]
            if way != "remove":
                fill = getattr(self.explainer.tokenizer, f"{way}_token_id")
                kept = [fill if k in gone else i for k, i in enumerate(self.ids)]
            with torch.no_grad():
                values.append(float(self.explainer.model(torch.tensor([kept])).logits[0, self.target]))
        return sum(values) / len(values)


@pytest.mark.parametrize("baseline", WAYS)
def test_scores_are_what_a_search_by_hand_finds(explainer, baseline) -> None:
    found = explainer(TEXT, steps="search", baseline=baseline)
    free = [k for k, special in enumerate(found.special) if not special]
    for column, name in enumerate(found.targets):
        first = explainer(TEXT, targets=name).scores[:, 0].tolist()
        says = Says(explainer, list(found.token_ids), free, column, WAYS[baseline])
        taken: list[int] = []
        changes = []
        while len(taken) < len(free):
            rest = set(free) - set(taken)

            def change(k: int, taken=taken, rest=rest, says=says) -> float:
                lost = says(rest) - says(rest - {k})
                return (lost + says({*taken, k}) - says(set(taken))) / 2

            tried = sorted(rest, key=lambda k: -first[k])[:3]
            best = max(tried, key=change)
            changes.append(change(best))
            taken.append(best)
        expected = torch.zeros(len(found.tokens), dtype=torch.float64)
        expected[taken] = torch.from_numpy(isotonic_regression(changes, increasing=False).x.copy())
        torch.testing.assert_close(found.scores[:, column], expected, rtol=0, atol=1e-12)
        assert abs(float(found.baseline_logits[column]) - says(set())) < 1e-12
        assert abs(float(found.scores[:, column].sum()) - says(set(free)) + says(set())) < 1e-12
    assert found.completeness_error < 1e-12
    assert found.metadata["baseline"] == " and ".join(WAYS[baseline])
    versions = len(WAYS[baseline]) * (1 + 2 * len(found.targets) * trials_of(len(free), 3))
    assert found.metadata["versions"] == versions
    assert (found.metadata["steps"], found.metadata["standard_error"]) == (len(free), None)
    planned = explainer.plan(len(found), sources=len(free), steps="search", baseline=baseline)
    assert (planned.versions_along, planned.versions_of_sets) == (versions, 0)
    assert "paths" in str(planned)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=6), st.integers(1, 7), st.randoms())
def test_every_source_is_taken_once_and_changes_add_up(scores, count, random) -> None:
    values: dict[tuple[bool, ...], float] = {}

    def value(there: torch.Tensor) -> torch.Tensor:
        return torch.tensor([values.setdefault(tuple(there.tolist()), random.uniform(-1, 1))], dtype=torch.float64)

    n = len(scores)
    everything, nothing = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
    search = Search(torch.tensor(scores, dtype=torch.float64), value(everything), value(nothing))
    tried = []
    for _ in scores:
        rows = search.trials(count)
        tried.append(len(rows))
        search.choose(torch.stack([value(~row) for row in rows]), torch.stack([value(row) for row in rows]))
    assert sorted(search.order) == list(range(n)) and bool(search.taken.all())
    assert trials_of(n, count) == sum(tried[:-1])
    assert float(search.shared().sum()) == pytest.approx(float(value(everything) - value(nothing)), abs=1e-9)
    assert (search.shared()[search.order].diff() <= 1e-12).all()  # what was taken first has most


def test_a_batch_gives_what_each_text_gives_alone(explainer) -> None:
    ids = explainer.tokenizer(TEXT)["input_ids"]
    inputs = [
        ids,
        explainer.tokenizer(OTHER)["input_ids"],
        [ids[0], *reversed(ids[1:-1]), ids[-1]],
        [*ids[:2], ids[-1]],
    ]
    pair = explainer.tokenizer("a film", "plot")["input_ids"]  # as long as another, with one token less to be gone
    inputs += [pair, [pair[0], *([5] * (len(pair) - 2)), pair[-1]]]
    for found, alone in zip(explainer(inputs, steps="search"), inputs, strict=True):
        one = explainer(alone, steps="search")
        assert (found.scores - one.scores).abs().max() < 1e-12
        assert found.metadata["versions"] == one.metadata["versions"]


def test_a_column_does_not_depend_on_the_others(explainer) -> None:
    all_classes, one = explainer(TEXT, steps="search"), explainer(TEXT, steps="search", targets="NEUTRAL")
    assert (all_classes.scores[:, 1] - one.scores[:, 0]).abs().max() < 1e-12
    assert explainer(TEXT, steps="search", targets={"POSITIVE": 1, "NEGATIVE": -1}).completeness_error < 1e-12


def test_words_are_taken_together_and_a_single_one_has_all(explainer) -> None:
    found = explainer(TEXT, steps="search", sources="word", targets="POSITIVE")
    assert found.source_unit == "word" and found.completeness_error < 1e-12
    assert (found.words().scores == found.scores).all()
    single = explainer("film", steps="search", targets="POSITIVE")
    assert single.completeness_error < 1e-12 and single.metadata["versions"] == 2
    assert (single.scores != 0).sum() == 1


def test_the_method_is_the_option(explainer) -> None:
    encoded = list(Reader(explainer.tokenizer, 40).read([TEXT, OTHER])[0])
    problem = Problem(explainer.model, explainer.tokenizer, encoded, [2, 0])
    with models.unchanged(explainer.model):
        first, second = get_method("decompx-search").score(problem)
    assert (first - explainer(TEXT, steps="search", targets=2).scores[:, 0]).abs().max() < 1e-12
    assert (second - explainer(OTHER, steps="search", targets=0).scores[:, 0]).abs().max() < 1e-12
    (auto, _) = get_method("decompx-paths-auto").score(problem)
    assert (auto - explainer(TEXT, steps="auto", targets=2).scores[:, 0]).abs().max() < 1e-12


def test_what_cannot_be_searched_is_refused_with_what_to_do(explainer, capsys) -> None:
    with pytest.raises(OptionError, match="steps='seek': use a whole number from 1, 'auto', 'search', or leave it out"):
        explainer(TEXT, steps="seek")
    with pytest.raises(InputError, match=r"baseline='remove' takes out all tokens at last.*use baseline='mask'"):
        explainer([5, 6, 7], steps="search")
    assert explainer([5, 6, 7], steps="search", baseline="mask").completeness_error < 1e-12
    assert main(["explain", "x", "--steps", "seek"]) == 2
    assert "--steps" in capsys.readouterr().err
