"""Many classes are pulled back some at a time: the same numbers, and memory that does not grow with them."""

from __future__ import annotations

import pytest
import torch
from live_bytes import LiveBytes
from models import classifier, token_ids

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.linearize.linearization import linearize


def many_classes(labels, *, n=20, b=2, **options):
    return linearize(classifier(labels=labels, vocab=60, **options), {"input_ids": token_ids(n, b=b, vocab=60)})


@pytest.mark.parametrize(
    "options",
    [{"bias": "none"}, {"bias": "bias_token"}, {"bias": "bias_token", "bias_token_split": "norm"}, {"bias": "equal"}],
    ids=str,
)
def test_blocks_of_directions_give_the_scores_of_the_reference(options, monkeypatch):
    config = DecompXConfig(**options)
    linearization = many_classes(7, layers=3)
    expected = reference.attribute(linearization, config)
    together = adjoint.attribute(linearization, config)
    monkeypatch.setattr(adjoint, "directions_at_once", lambda *sizes: 3)
    found = adjoint.attribute(linearization, config)
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-9, atol=1e-11)
    if expected.bias_token is not None:
        torch.testing.assert_close(found.bias_token, expected.bias_token, rtol=1e-9, atol=1e-11)
    assert [(site.layer, site.place) for site in found.sites] == [(site.layer, site.place) for site in together.sites]
    for ours, theirs in zip(found.sites, together.sites, strict=True):
        torch.testing.assert_close(ours.value, theirs.value, rtol=1e-9, atol=1e-11)
    for name, value in together.components.items():
        torch.testing.assert_close(found.components[name], value, rtol=1e-9, atol=1e-11)


def test_memory_does_not_grow_with_the_classes(monkeypatch):
    monkeypatch.setattr(adjoint, "GRADIENT_BYTES", 4 << 20)
    peaks = []
    for labels in (40, 400):
        linearization = many_classes(
            labels, n=40, hidden_size=64, intermediate_size=128, positions=64, dtype=torch.float32
        )
        counter = LiveBytes()
        with counter:
            found = adjoint.attribute(linearization, DecompXConfig(bias="none"))
        results = sum(value.nbytes for value in found.components.values()) + found.scores.nbytes
        peaks.append(counter.peak - 2 * results)  # they are put together once
    # All at once, the gradient alone would have 400 x 2 x 40 x 64 x 4 = 8 MB, and six of its size would be held.
    assert peaks[1] < peaks[0] + (4 << 20)


def test_a_long_text_takes_few_directions_at_a_time():
    """One, or where there are many layers, as many as take no more than their states."""
    assert adjoint.directions_at_once(1, 100_000, 1024, 8, layers=6) == 1
    assert adjoint.directions_at_once(1, 100_000, 1024, 8, layers=28) == 8
    assert adjoint.directions_at_once(1, 128, 768, 4, layers=12) > 77
