"""The estimate of errors is its formula, whether the attentions of several layers are looked at together or apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models import classifier, token_ids

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import accuracy
from decompx_fast.engines.adjoint.run import attribute
from decompx_fast.linearize.layer import AttentionPattern
from decompx_fast.linearize.linearization import linearize


def expected_estimate(linearization, rounding: float) -> np.ndarray:
    """``2 (sum over norms of (u k)^2 + sum over attentions of (u a)^2)^(1/2)``, ``[b]``, with every row looked at."""
    terms = []
    for layer in linearization.layers():
        for sublayer in layer.sublayers:
            (op,), x = sublayer.ops, sublayer.input.double().numpy()
            size = np.linalg.norm(x, axis=-1) + np.linalg.norm(op.b_out.detach().double().numpy())
            terms.append((size / sublayer.post_norm.std.double().numpy()).mean(-1) / np.sqrt(x.shape[-1]))
            if op.kind != "attention":
                continue
            q, k = op.pattern.query.double().numpy(), op.pattern.key.double().numpy()  # [b, h, i, v]
            logits = op.pattern.scale * np.einsum("bhiv,bhjv->bhij", q, k)
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            alpha = weights / weights.sum(-1, keepdims=True)
            lengths = np.linalg.norm(q, axis=-1)[..., None] * np.linalg.norm(k, axis=-1)[:, :, None]
            moved = (alpha * (1 - alpha) * lengths).sum(-1) * op.pattern.scale / np.sqrt(q.shape[-1])
            terms.append(moved.mean((1, 2)))
    return 2 * rounding * np.sqrt(np.square(terms).sum(0))


@pytest.mark.parametrize("together", [0, 1 << 11, 2 << 20], ids=["apart", "some", "all"])
def test_the_estimate_is_that_of_the_formula(together, monkeypatch):
    monkeypatch.setattr(accuracy, "TOGETHER_BYTES", together)
    model, inputs = classifier(), {"input_ids": token_ids(9, b=2)}
    result = attribute(linearize(model, inputs), DecompXConfig(bias="none"))
    dtype = next(model.parameters()).dtype
    expected = expected_estimate(linearize(model, inputs), torch.finfo(dtype).eps / 2)
    assert result.expected_error.numpy() == pytest.approx(expected, rel=1e-4)  # float32 at the least


@pytest.mark.parametrize("n", [1, 15, 16, 17, 30, 33, 100])
def test_few_rows_are_looked_at(n):
    query = torch.randn(1, 2, n, 4)
    rows, alpha = accuracy._sampled_weights(AttentionPattern(query, query, 0.5))
    assert alpha.shape[2] == len(range(n)[rows])
    assert min(n, 8) <= alpha.shape[2] <= 16
