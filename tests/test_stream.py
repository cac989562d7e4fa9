"""Streams lose nothing that was read, wait for nothing that was not asked for, and batch by bytes."""

from __future__ import annotations

import pytest
import torch
from models import classifier, token_ids

from decompx_fast import DecompX
from decompx_fast.calls.job import Job
from decompx_fast.errors import InputError
from decompx_fast.request.batching import look_ahead


def ids(n):
    return token_ids(n).tolist()[0]


class OwnError(Exception):
    """Of the user's code."""


@pytest.mark.parametrize("batch_size", [None, 1, 4])
@pytest.mark.parametrize("error", [OwnError("gone"), RuntimeError("the file is closed"), InputError("no text")])
def test_what_was_read_before_an_error_of_the_users_is_explained_first(batch_size, error):
    def source():
        yield from (ids(3 + n % 3) for n in range(30))
        raise error

    found = []
    with pytest.raises(type(error)) as raised:
        for explanation in DecompX(classifier()).explain_iter(source(), batch_size=batch_size):
            found.append(len(explanation))
    assert raised.value is error
    assert found == [3 + n % 3 for n in range(30)]
    assert any(entry.name == "source" for entry in raised.traceback)  # where it was raised is still told


def test_an_interruption_is_not_put_off():
    def source():
        yield ids(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(DecompX(classifier()).explain_iter(source()))


def test_with_batch_size_1_an_input_may_depend_on_the_result_before():
    """A dialogue: it would wait for ever if a second input were asked for before the first result is there."""
    results = []

    def source():
        for n in range(5):
            assert len(results) == n, "read ahead"
            yield ids(3 + n)

    for explanation in DecompX(classifier(), batch_size=1).explain_iter(source()):
        results.append(explanation)
    assert [len(explanation) for explanation in results] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(("batch_size", "ahead"), [(None, 256), (1, 1), (2, 32), (64, 1024)])
def test_look_ahead_is_what_is_documented(batch_size, ahead):
    assert look_ahead(batch_size) == ahead
    read = 0

    def source():
        nonlocal read
        for _ in range(ahead + 5):
            read += 1
            yield ids(2)

    next(DecompX(classifier(layers=1)).explain_iter(source(), batch_size=batch_size))
    assert read == ahead


def first_batch(monkeypatch, explainer, n, count=100):
    """How many of equal inputs of ``n`` tokens are computed first."""
    sizes, run = [], Job.run

    def counted(job, batch):
        sizes.append(len(batch))
        return run(job, batch)

    with monkeypatch.context() as patch:
        patch.setattr("decompx_fast.request.batching.BATCH_BYTES", 1 << 18)
        patch.setattr(Job, "run", counted)
        explainer.explain([ids(n)] * count)
    return sizes[0]


@pytest.mark.slow
def test_batches_are_made_by_bytes_of_the_state(monkeypatch):
    for hidden, labels, dtype in ((16, 2, "float32"), (64, 2, "float32"), (16, 40, "float32"), (16, 2, "float64")):
        explainer = DecompX(classifier(labels=labels, hidden_size=hidden, dtype=torch.float32), dtype=dtype)
        state = 30 * 30 * hidden * (8 if dtype == "float64" else 4)
        assert first_batch(monkeypatch, explainer, 30) == max((1 << 18) // state, 1)


def test_batches_of_the_adjoint_engine_count_the_classes(monkeypatch):
    sizes = [
        first_batch(monkeypatch, DecompX(classifier(labels=labels, dtype=torch.float32), bias="none"), 20)
        for labels in (2, 8, 16)
    ]
    assert sizes[0] > 2 * sizes[1] > 2 * sizes[2] >= 2
