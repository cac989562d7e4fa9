"""The reference engine against the authors' code, for both models and all 22 option sets.

Tolerance 1e-9, relative to the largest value of a tensor where that exceeds 1 (released rollout multiplies matrices
that are not normalised): the released code adds 1e-12 to its denominators, ours divides exactly.
Run with ``-s`` to see the table of largest errors.
"""

from __future__ import annotations

import golden
import pytest
import torch

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.linearize.linearization import linearize

TOLERANCE = 1e-9

#: The released names of stages, and ours.
STAGES = {
    "attention": "attention",
    "res1": "res1",
    "LN1": "ln1",
    "FFN": "ffn",
    "res2": "res2",
    "encoder": "encoder",
}

CASES = [(family, name) for family in golden.FAMILIES for name in golden.cases(family)]


@pytest.fixture(scope="module", params=golden.FAMILIES)
def family(request):
    name = request.param
    linearizations = [linearize(golden.model(name), row) for row in golden.inputs(name)]
    return name, linearizations, golden.expected(name)


def gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1)).item()


def compare_stages(stages: dict, expected: dict, case: str, row: int, layers: int) -> dict[str, float]:
    """Every stage tensor of a case: ``all.NAME.LAYER`` for each layer, ``NAME.0`` for the last."""
    gaps = {}
    for key, theirs in expected.items():
        name, _, tensor = key.partition("/")
        if name != case or tensor in ("logits", "classifier"):
            continue
        stage, index = tensor.removeprefix("all.").split(".")[:2]
        layer = int(index) if tensor.startswith("all.") else layers - 1
        ours = stages[f"{STAGES.get(stage, stage)}.{layer}"][0]
        if tensor.endswith(".0.0"):  # the norms of a pair (norms, vectors)
            ours = ours.norm(dim=-1)
        n = ours.shape[0]
        whole = theirs[row]
        real = whole[:n, :n] if whole.ndim > 1 else whole[:n]
        if whole.ndim > 1:  # padding is no source of a real position
            assert whole[:n, n:].abs().sum() == 0
        gaps[tensor] = gap(ours, real)
    return gaps


@pytest.mark.parametrize("case", list(golden.cases(golden.FAMILIES[0])))
def test_reference_matches_released_code(family, case):
    name, linearizations, expected = family
    options = golden.options(golden.cases(name)[case])
    wanted = {key.split("/")[1].removeprefix("all.").split(".")[0] for key in expected if key.startswith(f"{case}/")}
    stages = tuple(STAGES.get(stage, stage) for stage in sorted(wanted - {"logits", "classifier"}))
    both = any(key.startswith(f"{case}/aggregated.0.") for key in expected)
    config = DecompXConfig(**options, stages=stages, stage_output="vector" if both else "norm")
    gaps: dict[str, float] = {}
    for row, linearization in enumerate(linearizations):
        result = reference.attribute(linearization, config)
        found = {"logits": gap(linearization.logits[0], expected[f"{case}/logits"][row])}
        if config.head:
            scores = result.scores[0]
            if result.bias_token is not None:
                scores = torch.cat([scores, result.bias_token])
            theirs = expected[f"{case}/classifier"][row]
            n = result.scores.shape[1]
            assert theirs[n:11].abs().sum() == 0, "padding has no score"
            found["classifier"] = gap(scores, torch.cat([theirs[:n], theirs[11:]]))
        found |= compare_stages(result.stages, expected, case, row, linearization.num_layers)
        gaps = {key: max(value, gaps.get(key, 0.0)) for key, value in found.items()}
    compared = sum(key.startswith(f"{case}/") for key in expected)
    assert len(gaps) == compared, "every tensor of the case must be compared"
    print(f"{name:13s} {case:24s} {compared:3d} tensors, largest error {max(gaps.values()):.1e}")
    assert max(gaps.values()) < TOLERANCE, gaps
