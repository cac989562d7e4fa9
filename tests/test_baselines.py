"""What the benchmarks compare with computes the same: the released pattern gives the reference engine's scores."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import golden
import pytest
import synthetic

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.linearize.linearization import linearize

_spec = importlib.util.spec_from_file_location(
    "baselines", Path(__file__).resolve().parent.parent / "bench" / "baselines.py"
)
baselines = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(baselines)


@pytest.mark.parametrize("family", synthetic.FAMILIES)
def test_released_pattern_gives_the_scores_of_the_reference(family):
    linearization = synthetic.hugging_face(family, batch=2, n=9)
    expected = reference.attribute(linearization, DecompXConfig(variant="released")).scores
    gap = (baselines.released_pattern(linearization) - expected).abs().max()
    assert gap < 1e-9 * expected.abs().max()  # its denominators have 1e-12 added, as in the released code


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_released_pattern_gives_the_scores_of_the_golden_file(family):
    expected = golden.expected(family)["default/classifier"]
    model = golden.model(family)
    for row, inputs in enumerate(golden.inputs(family)):
        scores = baselines.released_pattern(linearize(model, inputs))[0]
        assert (scores - expected[row, : len(scores)]).abs().max() < 1e-9
