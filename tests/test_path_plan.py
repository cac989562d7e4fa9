"""Plans of scores along paths (``steps=``): the versions that are computed, their memory and operations."""

from __future__ import annotations

import pytest
import task_models
import torch
from live_bytes import LiveBytes
from models import WORD_PIECES, classifier, word_piece
from test_cli import run
from torch.utils.flop_counter import FlopCounterMode

from decompx_fast import DecompX
from decompx_fast.errors import OptionError, PlanError
from decompx_fast.request.batching import BATCH_BYTES

WORDS = "a good film and a bad one or none".split()
LABELS = {n: f"class {n}" for n in range(3)}


def wide(**options) -> DecompX:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "vocab": WORD_PIECES}
    model = classifier(dtype=torch.float32, labels=3, positions=1000, id2label=LABELS, **sizes)
    return DecompX(model, word_piece(), **options)


def text(n: int) -> str:
    """Of ``n`` tokens, of which the first and the last are special."""
    return " ".join(WORDS[k % len(WORDS)] for k in range(n - 2))


@pytest.mark.parametrize(("steps", "targets"), [(3, None), (50, None), (4, ["class 1"])])
def test_versions_are_those_that_are_computed(steps, targets):
    explainer = wide()
    found = explainer(text(12), steps=steps, baseline="remove", targets=targets)
    foretold = explainer.plan(12, sources=10, steps=steps, baseline="remove", targets=targets)
    assert foretold.versions_along + foretold.versions_of_sets == found.metadata["versions"]
    assert explainer.plan(12, batch=3, steps=steps, baseline="remove").versions_of_sets == 3 * steps


@pytest.mark.parametrize(("n", "batch", "steps"), [(300, 1, 6), (200, 2, 3)])
@pytest.mark.parametrize("bias", ["absdot", "none"])
def test_plan_foretells_the_peak(n, batch, steps, bias):
    explainer = wide(bias=bias, batch_size=batch)
    explainer.explain([text(8)], steps=2)
    counter = LiveBytes()
    with counter:
        explainer.explain([text(n)] * batch, steps=steps)
    foretold = explainer.plan(n, batch=batch, steps=steps)
    assert 0.5 * foretold.peak_bytes < counter.peak < 1.15 * foretold.peak_bytes


def test_plan_foretells_the_operations():
    """As multiples of the plan of the same without paths, which other tests compare with what is counted."""
    explainer, n, steps = wide(bias="none"), 100, 5
    explainer.explain([text(8)], steps=2)
    counted = []
    for options in ({}, {"steps": steps}):
        with FlopCounterMode(display=False) as counter:
            explainer.explain([text(n)], **options)
        counted.append(counter.get_total_flops())
    alone, along = explainer.plan(n), explainer.plan(n, steps=steps)
    assert along.total_flops / alone.total_flops == pytest.approx(counted[1] / counted[0], rel=0.15)
    assert along.total_flops == sum(along.flops.values()) > alone.total_flops == along.flops["text"]


@pytest.mark.parametrize("batch", [1, 2])
def test_plan_foretells_a_search(batch):
    """Versions of a search are run and not explained, all of a step together."""
    explainer, n = wide(bias="none", batch_size=batch), 16
    explainer.explain([text(8)], steps="search", baseline="mask")
    counted = []
    for options in ({}, {"steps": "search", "baseline": "mask"}):
        with FlopCounterMode(display=False) as counter:
            explainer.explain([text(n)] * batch, **options)
        counted.append(counter.get_total_flops())
    with LiveBytes() as bytes_counter:
        explainer.explain([text(n)] * batch, steps="search", baseline="mask")
    alone = explainer.plan(n, batch=batch)
    along = explainer.plan(n, batch=batch, sources=n - 2, steps="search", baseline="mask")
    assert along.total_flops / alone.total_flops == pytest.approx(counted[1] / counted[0], rel=0.15)
    assert 0.85 * along.peak_bytes < bytes_counter.peak < 1.15 * along.peak_bytes
    assert f", {18 * batch} at once, by the model alone" in str(along)


def test_plan_says_what_is_computed_by_what():
    explainer = wide()
    said = str(explainer.plan(900, steps=40, baseline="remove"))
    assert "scores              along paths" in said
    assert "text                1, by the forward engine" in said
    assert "paths               120, 1 at once, by the adjoint engine" in said
    assert "random sets         40, " in said and said.count("by the adjoint engine") == 2
    assert "fits                yes" in said


def test_no_more_versions_are_planned_together_than_are_computed():
    plan = wide().plan(900, batch=8, steps=1000, baseline="remove")
    assert plan.along.batch == 8 and 1 < plan.sets.batch < 8000
    assert plan.sets.peak_bytes < 3 * BATCH_BYTES


def test_what_does_not_fit_is_refused_with_ways_out(monkeypatch):
    explainer = wide()
    monkeypatch.setattr("decompx_fast.engines.forward.plan.available_bytes", lambda device: 100 << 20)
    plan = explainer.plan(900, steps=3, baseline="remove")
    assert not plan.fits
    with pytest.raises(
        PlanError, match=r"900 tokens with 900 sources each need .* and 100 MiB are free on cpu"
    ) as error:
        plan.check()
    assert "engine='adjoint'" in str(error.value)
    assert "sources in groups" not in str(error.value) and "group=" not in str(error.value)
    with pytest.raises(PlanError, match="the model has positions for 1000 tokens, and 1200 were asked for"):
        explainer.plan(1200, steps=3, baseline="remove").check()


def test_what_cannot_be_explained_has_no_plan():
    explainer = wide()
    refusals = {
        r"steps=0: use a whole number from 1": {"steps": 0},
        r"head=False cannot be had along a path": {"steps": 2, "head": False},
        r"ranks=2 and steps=2: all versions of a text are explained token by token": {"steps": 2, "ranks": 2},
        r"focus=3 and steps=2: all versions of a text": {"steps": 2, "focus": 3},
        r"the reference engine has no plan": {"steps": 2, "engine": "reference"},
        r"baseline='remove' is where the paths of steps= end: give steps too": {},
    }
    for message, options in refusals.items():
        with pytest.raises(OptionError, match=message):
            explainer.plan(9, baseline="remove", **options)
    with pytest.raises(OptionError, match="steps=2 needs a head that answers once"):
        DecompX(task_models.model("token-classification")).plan(9, steps=2, baseline="remove")


def test_plan_of_paths_on_the_command_line(capsys, cli_folder):
    arguments = ("plan", "--model", cli_folder, "--tokens", "40", "--steps", "3", "--baseline", "remove")
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "along paths" in out and "random sets" in out
    for steps in ("auto", "search"):
        code, out, err = run(capsys, "plan", "--model", cli_folder, "--tokens", "40", "--steps", steps)
        assert (code, err) == (0, "") and "along paths" in out
    code, _, err = run(capsys, "plan", "--model", cli_folder, "--tokens", "40", "--steps", "many")
    assert code == 2 and "'auto' or 'search'" in err
