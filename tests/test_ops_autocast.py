"""Autocast changes nothing: sums are accumulated in float32 at least, whatever the caller's region says."""

from __future__ import annotations

import pytest
import torch
from ops_cases import random
from test_ops_gradients import CALLS, copies

from decompx_fast import ops
from decompx_fast.ops.backends import products

AUTOCAST = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("dtype", AUTOCAST)
def test_ops_keep_their_precision_under_autocast(op, backend, dtype):
    call, tensors = copies(op)
    expected = call(**tensors, backend=backend).clone()
    call, tensors = copies(op)
    with torch.autocast("cpu", dtype):
        got = call(**tensors, backend=backend)
        assert torch.is_autocast_enabled("cpu")
    assert got.dtype is expected.dtype and torch.equal(got, expected)


@pytest.mark.parametrize("norm", [None, ops.FrozenNorm(torch.ones(2, 3) * 3, random(8).cpu())])
def test_folded_norms_keep_their_precision_under_autocast(norm):
    theta, w = random(2, 3, 8).cpu(), random(8, 8).cpu()
    expected = ops.position_operator(theta, w, w, norm_in=norm, norm_out=norm)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ops.position_operator(theta, w, w, norm_in=norm, norm_out=norm), expected)


@pytest.mark.parametrize("rule", ["absdot", "dot", "abssim", "norm"])
@pytest.mark.parametrize("shape", [(8,), (2, 3, 8)])
def test_shares_keep_their_precision_under_autocast(rule, shape):
    u, bias = random(2, 3, 5, 8).cpu(), random(*shape, seed=3).cpu()
    expected = ops.vector_shares(u, bias, rule=rule)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ops.vector_shares(u, bias, rule=rule), expected)


@pytest.mark.parametrize("way", ["torch", "widened"])
def test_products_keep_their_precision_under_autocast(way):
    a, b = random(60, 70).cpu(), random(70, 80).cpu()
    results = []
    for enabled in (False, True):
        out = torch.empty(60, 80)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled), products.forced_way(way):
            products.multiply(a, b, out=out)
        results.append(out)
    assert torch.equal(*results)
