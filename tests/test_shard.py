"""Sources divided over processes: the answer of one, to rounding, for every rule and every part of every model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import evaluation_samples
import pytest
import shard_cases
import test_families
import torch
import warm
from shard_cases import RANKS, attribute

from decompx_fast import DecompX
from decompx_fast.cli import main
from decompx_fast.engines import reference
from decompx_fast.engines.forward.plan import plan
from decompx_fast.engines.shape import ModelShape
from decompx_fast.errors import OptionError

CASES = shard_cases.cases()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each rank found, by case; what the others said when the last one was killed; and what the example of the
    README should give."""
    folder = tmp_path_factory.mktemp("ranks")
    evaluation_samples.save_classifier(folder / "model")
    context = warm.context()
    processes = [context.Process(target=shard_cases.work, args=(rank, str(folder))) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode is not None, "a rank hangs"
    ranks = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]
    expected = DecompX.from_pretrained(folder / "model").explain(shard_cases.TEXT).scores
    return ranks, [(folder / f"{rank}.txt").read_text() for rank in range(RANKS - 1)], expected


def tolerance(config):
    """The rule ``dot`` divides by a signed sum that may nearly cancel."""
    return 1e-6 if "dot" in (config.bias, config.bias_token_split) else 1e-10


def far(ours, theirs):
    assert ours.shape == theirs.shape
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_ranks_that_are_given_something_else_are_named(found):
    for rank in range(RANKS):
        assert "rank 2 of the group was given another input than rank 0" in found[0][rank]["input"]
        assert "rank 2 of the group was given another input, or other options" in found[0][rank]["options"]


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others(found):
    for said in found[1]:
        assert said.startswith("BackendError: rank ") and "one of them has probably ended" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"{count}-{one}" for one in shard_cases.ASKED for count in ("one", "several")])
def test_an_explainer_with_a_group_gives_all_results_to_every_rank(found, name):
    expected = shard_cases.explained()[name]
    for rank in range(RANKS):
        ours = found[0][rank][name]
        assert len(ours) == len(expected)
        assert all(far(one, other) < 1e-10 for one, other in zip(ours, expected, strict=True))


@pytest.mark.slow
def test_what_one_rank_fails_at_is_skipped_by_all(found):
    for rank in range(RANKS):
        said = found[0][rank]["skipped-divided"]
        assert said[0] == said[2] == said[3] == said[4] == "fine"
        assert said[1] == "the vectors left the range"
        own = "" if rank == 1 else f"rank 1 of {RANKS} failed: "
        assert found[0][rank]["skipped-shared"] == [f"{own}the vectors left the range"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["absdot-direct", "absdot-operator", "norm-direct", "equal-direct"])
def test_bytes_exchanged_are_as_planned(found, name):
    """Sums for each bias and position, and the scores; of no vector."""
    case = CASES[name]
    linearization = case.make()
    layer = next(iter(linearization.layers()))
    b, n, _ = linearization.embedding.shape
    for ranks in (2, RANKS):
        shape = ModelShape.from_linearization(linearization, layer)
        planned = plan(shape, n, None, b, dtype=torch.float64, config=case.config, ranks=ranks)
        _, count, sent = found[0][0][f"{name}-{ranks}"]
        intercepts = 2 * 14 + 2 if "absdot" in name or "norm" in name else 0  # of tangents, in layers and at the head
        extra = 2 * (ranks - 1) * 16 * intercepts // ranks
        assert sent == pytest.approx(planned.exchanged_bytes + extra, rel=0.05)


@pytest.mark.slow
def test_each_bias_is_exchanged_once_for_all_positions(found):
    """However small the blocks are: 6 places in two whole layers and in the last row, the head's 3, and the scores."""
    for path in ("direct", "operator"):
        assert found[0][0][f"absdot-{path}-{RANKS}"][1] == 3 * 6 + 3 + 1
        assert found[0][0][f"absdot-{path}-released-{RANKS}"][1] == 3 * 5 + 2 + 1


@pytest.mark.parametrize(
    ("group", "message"),
    [("world", "group='world': there are no process groups yet: call torch.distributed.init_process_group()")],
)
def test_group_must_be_one(group, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        DecompX(test_families.classifier("bert"), group=group)


@pytest.mark.slow
def test_the_example_of_the_readme_runs(found):
    for rank in range(RANKS):
        torch.testing.assert_close(found[0][rank]["readme"], found[2], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_command_line_explains_with_the_processes_of_torchrun(model, tmp_path):
    """Long texts one after another, together; the first process writes, and what one cannot do ends all."""
    (tmp_path / "texts.txt").write_text("good film, and a dull one\n")
    out = tmp_path / "out.jsonl"
    asked = ["explain", "--model", model, "--file", str(tmp_path / "texts.txt"), "--quiet", "--jsonl"]
    assert main([*asked, str(tmp_path / "alone.jsonl")]) == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "decompx_fast"]
    options = {"cwd": Path(__file__).parent.parent, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([*launch, *asked, str(out)], **options)
    assert done.returncode == 0, done.stderr
    (ours,), (alone,) = (list(map(json.loads, path.open())) for path in (out, tmp_path / "alone.jsonl"))
    torch.testing.assert_close(torch.tensor(ours["scores"]), torch.tensor(alone["scores"]), rtol=1e-4, atol=1e-6)
    refused = subprocess.run([*launch, "explain", "--file", "-", "--model", model], **options, input="film\n")
    assert refused.returncode != 0 and "only one of several processes can read" in refused.stderr
