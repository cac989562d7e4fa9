"""Attention patterns against the matrix of their weights, made element by element from the definition."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from random_models import Parts
from torch import Tensor

from decompx_fast.engines.adjoint.pullback import pull_mix
from decompx_fast.linearize import pattern as pattern_module
from decompx_fast.linearize.layer import AttentionPattern


@dataclass
class PatternCase:
    causal: bool = False
    window: int | None = None
    bias: tuple[int, ...] | None = None
    kv_heads: int = 4

    def pattern(self, n: int, dtype: torch.dtype = torch.float64) -> AttentionPattern:
        p = Parts(n, dtype=dtype)
        bias = None if self.bias is None else p.normal(*(n if size < 0 else size for size in self.bias))
        query, key = p.normal(2, 4, n, 6), p.normal(2, self.kv_heads, n, 6)
        return AttentionPattern(query, key, 0.4, self.causal, self.window, bias)


PATTERNS = [
    PatternCase(),
    PatternCase(causal=True),
    PatternCase(window=1),
    PatternCase(window=4),
    PatternCase(causal=True, window=5, kv_heads=2),
    PatternCase(causal=True, window=13, kv_heads=2),
    PatternCase(window=40),
    PatternCase(bias=(1, 4, -1, -1)),
    PatternCase(bias=(2, 1, 1, -1)),
    PatternCase(bias=(1, 4, -1, 1), window=3),
    PatternCase(causal=True, bias=(1, 4, -1, -1), kv_heads=1),
]


def dense_alpha(p: AttentionPattern) -> Tensor:
    """Element by element from the definition."""
    b, h, n, _ = p.query.shape
    alpha = torch.zeros(b, h, n, n, dtype=p.query.dtype)
    bias = torch.zeros(b, h, n, n, dtype=p.query.dtype) if p.bias is None else p.bias.expand(b, h, n, n)
    for row, head, i in itertools.product(range(b), range(h), range(n)):
        js = [j for j in range(n) if (j <= i or not p.causal) and (p.window is None or abs(i - j) < p.window)]
        keys = p.key[row, head // (h // p.key.shape[1]), js]
        logits = p.scale * keys @ p.query[row, head, i] + bias[row, head, i, js]
        alpha[row, head, i, js] = logits.exp() / logits.exp().sum()
    return alpha


@pytest.mark.parametrize("workspace", [1, 3000, 64 << 20])
@pytest.mark.parametrize("case", PATTERNS, ids=str)
def test_pattern_mixes_and_pulls_back_as_its_matrix_does(monkeypatch, case, workspace):
    monkeypatch.setattr(pattern_module, "WORKSPACE_BYTES", workspace)
    monkeypatch.setattr(pattern_module, "MIN_BLOCK_ROWS", 2)
    n, group = 13, 4 // case.kv_heads
    pattern = case.pattern(n)
    alpha = dense_alpha(pattern)
    assert torch.allclose(pattern.weights(), alpha, atol=1e-14)
    blocks = torch.zeros_like(alpha)
    for rows, columns, block in pattern.blocks():
        blocks[:, :, rows, columns] = block
    assert torch.allclose(blocks, alpha, atol=1e-14)

    p = Parts(1, dtype=torch.float64)
    values, g = p.normal(2, n, case.kv_heads, 6), p.normal(2, 3, n, 4, 6)
    mixed = torch.einsum("bhij,bjhv->bihv", alpha, values.repeat_interleave(group, dim=2))
    assert torch.allclose(pattern.mix(values), mixed, atol=1e-13)
    for rows in (slice(0, n), slice(5, 6), slice(3, 9)):
        pulled = torch.einsum("bhij,bmihv->bmjhv", alpha[:, :, rows], g[:, :, rows])
        pulled = pulled.unflatten(3, (case.kv_heads, group)).sum(4)
        assert torch.allclose(pull_mix(pattern, g[:, :, rows], rows), pulled, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pull_mix_equals_autograd_of_fused_attention(dtype, causal):
    pattern = PatternCase(causal=causal).pattern(70, dtype)
    g = Parts(2, dtype=dtype).normal(2, 3, 70, 4, 6)
    values = torch.zeros_like(pattern.key, requires_grad=True)
    out = F.scaled_dot_product_attention(pattern.query, pattern.key, values, is_causal=causal, scale=pattern.scale)
    grads = [torch.autograd.grad(out, values, g[:, m].transpose(1, 2), retain_graph=True)[0] for m in range(3)]
    expected = torch.stack(grads, 1).transpose(2, 3)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    assert (pull_mix(pattern, g, slice(0, 70)) - expected).abs().max() < tolerance


@pytest.mark.parametrize("window", [65, None])
def test_a_window_is_pulled_back_through_at_the_cost_of_its_width(monkeypatch, window):
    """As few blocks as fit, of all heads together, and no more weights than three windows for each row."""
    made = []
    weights = AttentionPattern.weights

    def counted(self, *args):
        made.append(weights(self, *args))
        return made[-1]

    monkeypatch.setattr(AttentionPattern, "weights", counted)
    n, heads, size = 1024, 12, 8
    p = Parts(0, dtype=torch.float32)
    pattern = AttentionPattern(p.normal(1, heads, n, size), p.normal(1, heads, n, size), 0.3, window=window)
    pull_mix(pattern, p.normal(1, 2, n, heads, size), slice(0, n))
    numbers = sum(alpha.numel() for alpha in made)
    if window is None:
        assert numbers == heads * n * n
    else:
        assert numbers <= heads * n * 3 * window
        assert len(made) == -(-n // window)
