"""Sources divided over processes: the answer of one, to rounding, for every rule and every part of every model."""

from __future__ import annotations

import pytest
import shard_cases
import torch
from shard_cases import RANKS, attribute

from decompx_fast.engines import reference

CASES = shard_cases.cases()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each rank found, by case; and what the others said when the last one was killed."""
    folder = tmp_path_factory.mktemp("ranks")
    context = torch.multiprocessing.get_context("spawn")
    processes = [context.Process(target=shard_cases.work, args=(rank, str(folder))) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode is not None, "a rank hangs"
    ranks = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]
    return ranks, [(folder / f"{rank}.txt").read_text() for rank in range(RANKS - 1)]


def tolerance(config):
    """The rule ``dot`` divides by a signed sum that may nearly cancel."""
    return 1e-6 if "dot" in (config.bias, config.bias_token_split) else 1e-10


def far(ours, theirs):
    assert ours.shape == theirs.shape
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()


@pytest.mark.parametrize(("name", "ranks"), [(name, ranks) for name in CASES for ranks in shard_cases.ranks_of(name)])
def test_answer_is_that_of_one_process(found, name, ranks):
    case, results = CASES[name], [found[0][rank][f"{name}-{ranks}"][0] for rank in range(ranks)]
    if "positions" in case.options:  # vectors of these only the forward engine keeps
        expected = attribute(case)
    else:
        options = {key: case.options.get(key) for key in ("sources", "terms")}
        expected = reference.attribute(case.make(), case.config, **options)
    for ours in results:
        assert far(ours.scores, expected.scores) < tolerance(case.config)
        assert (ours.bias_token is None) == (expected.bias_token is None)
        if expected.bias_token is not None:
            assert far(ours.bias_token, expected.bias_token) < tolerance(case.config)
        assert ours.stages.keys() == expected.stages.keys()
        for stage in ours.stages:
            assert far(ours.stages[stage], expected.stages[stage]) < tolerance(case.config)
        # Of the whole, not of a rank's part.
        assert (ours.gap - expected.gap).abs().max() <= tolerance(case.config) * expected.scores.abs().max()
        assert torch.equal(ours.scores, results[0].scores)


@pytest.mark.parametrize(
    ("name", "type_", "message"),
    [
        ("numbers", "NumericalError", "the vectors left the range"),
        ("memory", "MemoryError", "MemoryError"),
        ("bug", "BackendError", "'gamma'"),
    ],
)
def test_a_rank_that_fails_stops_all_with_its_message(found, name, type_, message):
    for rank in (0, 2):
        assert found[0][rank][name] == f"{type_}: rank 1 of {RANKS} failed: {message}"
    own = found[0][1][name]
    assert own.startswith({"bug": "KeyError"}.get(name, type_)) and "rank" not in own
    assert all(found[0][rank]["after"] == "nothing" for rank in range(RANKS))  # and the group goes on


def test_ranks_that_are_given_something_else_are_named(found):
    for rank in range(RANKS):
        assert "rank 2 of the group was given another input than rank 0" in found[0][rank]["input"]
        assert "rank 2 of the group was given another input, or other options" in found[0][rank]["options"]


def test_a_rank_that_is_killed_ends_the_others(found):
    for said in found[1]:
        assert said.startswith("BackendError: rank ") and "one of them has probably ended" in said
