"""The rule "equal" where softmax underflows: every engine shares among the sources that the masks let through.

Tolerances: float64 engines differ by rounding only; in float32, saturated attention leaves some thousand roundings.
"""

from __future__ import annotations

import models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import KINDS, RandomModel, random_model

from decompx_fast import DecompX
from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.attribution import Attribution
from decompx_fast.engines.forward import run as forward


def saturated(kind: str, gain: float, **options) -> RandomModel:
    """A random model whose queries are so large that weights of the softmax are rounded to zero."""
    model = random_model(kind, **options)
    for layer in model.specs:
        for sublayer in layer:
            for op in sublayer.ops:
                if hasattr(op, "query"):
                    op.query.weight.mul_(gain)
    model.__post_init__()
    return model


def loses_weights(model: RandomModel) -> bool:
    """Whether some position attends another, as the masks go, by no head."""
    for layer in model.layers():
        for op in (op for sublayer in layer.sublayers for op in sublayer.ops if hasattr(op, "pattern")):
            gone, allowed = (op.pattern.weights() == 0).all(1), op.pattern.allowed()
            if bool((gone if allowed is None else gone & allowed).any()):
                return True
    return False


def assert_same(ours: Attribution, theirs: Attribution, tolerance: float) -> None:
    assert (ours.scores - theirs.scores).abs().max() <= tolerance * theirs.scores.abs().max()


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("kind", KINDS)
def test_engines_share_equally_alike_where_softmax_underflows(kind, variant):
    model = saturated(kind, 3000.0, n=8, layers=3, position=-1)
    assert loses_weights(model)
    config = DecompXConfig(bias="equal", variant=variant)
    expected = reference.attribute(model, config)
    assert_same(adjoint.attribute(model, config), expected, 1e-9)
    assert_same(forward.attribute(model, config), expected, 1e-9)
    split = DecompXConfig(bias="bias_token", bias_token_split="equal", variant=variant)
    expected = reference.attribute(model, split)
    assert_same(adjoint.attribute(model, split), expected, 1e-9)
    assert_same(forward.attribute(model, split), expected, 1e-9)


@pytest.mark.parametrize("family", models.FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_engines_share_equally_alike_in_float32(family, seed):
    model = models.classifier(family, seed=seed, dtype=torch.float32, layers=3, labels=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query.weight" in name:
                parameter *= 30
    ids = models.token_ids(12, seed=seed)[0].tolist()
    expected = DecompX(model, engine="reference", bias="equal").explain(ids).scores
    for engine in ("adjoint", "forward"):
        found = DecompX(model, engine=engine, bias="equal").explain(ids).scores
        assert (found - expected).abs().max() <= 1e-3 * expected.abs().max()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_forward_shares_equally_among_groups_that_reach(data):
    """A group reaches what one of its tokens does; with one group for each token it is the adjoint's answer."""
    n = data.draw(st.integers(1, 8))
    kind = data.draw(st.sampled_from(list(KINDS)))
    model = saturated(
        kind, data.draw(st.sampled_from([1.0, 3000.0])), n=n, b=2, layers=3, position=data.draw(st.integers(0, n - 1))
    )
    groups = data.draw(st.lists(st.integers(0, 2), min_size=2 * n, max_size=2 * n))
    sources = torch.tensor(groups).view(2, n)
    config = DecompXConfig(bias="equal", variant=data.draw(st.sampled_from(["paper", "released"])))
    expected = reference.attribute(model, config, sources=sources)
    assert_same(forward.attribute(model, config, sources=sources), expected, 1e-9)
    own = torch.arange(n).expand(2, n)
    assert_same(reference.attribute(model, config, sources=own), adjoint.attribute(model, config), 1e-9)


def test_a_source_out_of_reach_gets_no_share():
    """Causal, window 3, two layers: position 8 sees tokens 4 to 8, and so the groups of these."""
    model = saturated("around", 3000.0, n=12, b=1, position=8)
    sources = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3]])
    for attribute in (reference.attribute, forward.attribute):
        scores = attribute(model, DecompXConfig(bias="equal"), sources=sources).scores[0]
        assert (scores.abs().amax(-1) > 0).tolist() == [False, True, True, False]
