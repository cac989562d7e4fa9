"""Plans of both engines: what they say, that their ways out are ways out, and which engine `auto` takes."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from live_bytes import LiveBytes
from models import classifier
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from decompx_fast import DecompX
from decompx_fast.config import DecompXConfig
from decompx_fast.engines.adjoint import plan as adjoint_plan
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.adjoint import tape
from decompx_fast.engines.choose import cheaper_engine
from decompx_fast.engines.forward.plan import ModelShape, plan
from decompx_fast.errors import OptionError, PlanError
from decompx_fast.linearize import record

BASE = ModelShape(layers=12, d=768, f=3072, heads=12, kv_heads=12, head_size=64)
GIB = 1 << 30
NONE = DecompXConfig(bias="none")


def wide(labels=2, layers=3, **more):
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512}
    return classifier(dtype=torch.float32, labels=labels, layers=layers, positions=3000, **sizes, **more)


@pytest.mark.parametrize(
    ("n", "batch", "labels"), [(64, 4, 2), (700, 1, 2), (2000, 1, 3), (128, 2, 150), (300, 1, 400)]
)
def test_plan_of_the_adjoint_engine_foretells_the_peak(n, batch, labels):
    explainer = DecompX(wide(labels), engine="adjoint", bias="none", batch_size=batch)
    ids = [[5 + (7 * i + b) % 190 for i in range(n)] for b in range(batch)]
    explainer.explain([ids[0][:8]])
    counter = LiveBytes()
    with counter:
        explainer.explain(ids)
    foretold = explainer.plan(n, batch=batch)
    # Freed blocks of its phases make room for each other; what is foretold is the sum.
    assert 0.5 * foretold.peak_bytes < counter.peak < 1.1 * foretold.peak_bytes


@pytest.mark.slow
@pytest.mark.parametrize(("n", "n_sources"), [(1500, 8), (2900, 3), (1200, 100)])
def test_plan_foretells_the_peak_of_long_grouped_texts(n, n_sources):
    explainer = DecompX(wide(), engine="forward")
    ids, groups = [5 + 7 * i % 190 for i in range(n)], [i * n_sources // n for i in range(n)]
    explainer.explain(ids[:80])
    counter = LiveBytes()
    with counter:
        explainer.explain(ids, sources=groups)
    foretold = explainer.plan(n, sources=n_sources)
    states = 4 * n * 128 * 4  # of the model's own pass, which the plan leaves aside
    assert 0.85 * foretold.peak_bytes < counter.peak < 1.1 * foretold.peak_bytes + states


@pytest.mark.parametrize("available", [2 * GIB, 6 * GIB, 30 * GIB, 60 * GIB])
@pytest.mark.parametrize(
    "request_", [(512, None, 64), (4096, None, 2), (4096, None, 1), (4096, 500, 8), (2048, None, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_way_out_fits(request_, dtype, available):
    n, k, batch = request_
    this = plan(BASE, n, k, batch, dtype=dtype, available=available)
    if this.fits:
        this.check()
        return
    assert this.ways_out
    for way in this.ways_out:
        if "at most" in way:
            groups = int(way.split("at most ")[1].split()[0])
            assert plan(BASE, n, groups, 1 if "one at a time" in way else batch, dtype=dtype, available=available).fits
        elif "adjoint" not in way:
            dtypes = {"dtype=float32": torch.float32, "dtype=bfloat16": torch.bfloat16}
            other = next((value for words, value in dtypes.items() if words in way), dtype)
            workspace = int(way.split("workspace_bytes=")[1].split()[0]) << 20 if "workspace" in way else None
            count = 1 if "one at a time" in way else batch
            ranks = int(way.split()[0]) if "devices or machines" in way else 1
            storage = "disk" if "storage='disk'" in way else "memory"
            spread = {"ranks": ranks, "storage": storage}
            tried = plan(BASE, n, k, count, dtype=other, workspace_bytes=workspace, available=available, **spread)
            assert tried.fits, way
    with pytest.raises(PlanError, match="Ways out"):
        this.check()


def test_ways_out_are_tried_together():
    # 2048 x 2048 x 768 in float64 are 24 GiB each: one alone in bfloat16 has 6 GiB.
    this = plan(BASE, 2048, batch=4, dtype=torch.float64, available=9 * GIB)
    together = [way for way in this.ways_out if " with " in way and "bfloat16" in way]
    assert together and "one at a time" in together[0]


def test_positions_beyond_the_models_are_refused_with_no_other_way_out():
    explainer = DecompX(classifier(positions=40))
    for options in ({}, {"bias": "none"}, {"dtype": "float32"}):
        this = explainer.plan(41, **options)
        assert not this.fits and len(this.ways_out) == 1
        with pytest.raises(PlanError, match="positions for 40 tokens, and 41 were asked for"):
            this.check()
    assert explainer.plan(40).fits


def test_plan_prints_what_it_foretells():
    explainer = DecompX(classifier(positions=600))
    for this in (explainer.plan(512), explainer.plan(512, bias="none")):
        for shown in (str(this), repr(this), this._repr_html_()):
            for word in ("engine", "peak", "of tensors beside the model", "operations", "GFLOP", "fits"):
                assert word in shown
        assert "<table>" in this._repr_html_() and "Costs(" not in repr(this)


def test_plan_is_of_the_engine_that_would_be_taken():
    explainer = DecompX(classifier(labels=3))
    assert "engine              forward" in str(explainer.plan(20))
    assert "engine              adjoint" in str(explainer.plan(20, bias="none"))
    assert "engine              forward" in str(explainer.plan(20, bias="none", engine="forward"))
    assert explainer.plan(20, bias="none", targets="LABEL_1").directions == 1
    with pytest.raises(OptionError, match="engine='adjoint' cannot answer"):
        explainer.plan(20, engine="adjoint")
    with pytest.raises(OptionError, match="no plan"):
        explainer.plan(20, engine="reference")


def test_operations_of_the_adjoint_engine_by_hand():
    """A pull-back of one direction is the transposes of all maps; the last network and output map have one row."""
    explainer = DecompX(wide(labels=1, layers=1), engine="adjoint", bias="none")
    n, d, f = 100, 128, 512
    flops = explainer.plan(n).flops
    assert flops["forward pass"] == n * (4 * 2 * d * d + 2 * 2 * d * f) + 4 * n * n * d
    assert flops["checks of mixing"] == 4 * n * n * d
    assert flops["attention weights"] == 2 * n * d
    assert flops["layers made anew"] == 0
    assert flops["pull-backs"] == 4 * d * f + 2 * d * d + 2 * n * d + n * 2 * d * d


def decoder(layers=3, positions=600):
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 8, "num_key_value_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = LlamaConfig(vocab_size=90, num_hidden_layers=layers, max_position_embeddings=positions, **sizes, **ends)
    return DecompX(LlamaForCausalLM(config).eval())


def counted_flops(run):
    """What torch's operations multiply and add while this runs; a fused attention counts the pairs that it allows."""

    def attention(query, key, value, _dropout=0.0, is_causal=False, *_args, **_kwargs):
        (b, h, n, size), m = query, key[2]
        return 4 * b * h * (n * (n + 1) // 2 if is_causal else n * m) * size

    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with FlopCounterMode(display=False, custom_mapping={fused: attention}) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize(("n", "targets"), [(60, 1), (500, 1), (500, 3), (200, 150)])
@pytest.mark.parametrize("keep_bytes", [256 << 20, 0])
def test_plan_of_the_adjoint_engine_foretells_the_operations(monkeypatch, n, targets, keep_bytes):
    """As multiples of the model's own; with layers that are made anew, and with directions in several runs."""
    for module in (record, tape, adjoint_plan):
        monkeypatch.setattr(module, "KEEP_BYTES", keep_bytes)
    monkeypatch.setattr(adjoint, "GRADIENT_BYTES", 32 << 20)
    explainer, ids = decoder(), [(7 * i) % 90 for i in range(n)]
    prompt, output = ids[: n - targets + 1], [*ids[n - targets + 1 :], 0]
    plan = explainer.plan(n, engine="adjoint", targets=list(range(targets)))
    assert (plan.at_once < targets) == (targets == 150)
    assert (plan.flops["layers made anew"] > 0) == (keep_bytes == 0)
    explainer.explain(ids[:8], continuation=[0], engine="adjoint")  # what it remembers of the weights is known then
    fed = {"input_ids": torch.tensor([ids]), "logits_to_keep": targets, "use_cache": False}
    forward = counted_flops(lambda: explainer.model(**fed))
    explained = counted_flops(lambda: explainer.explain(prompt, continuation=output, engine="adjoint"))
    assert explained / forward == pytest.approx(plan.passes, rel=0.15)


RESIDENT = """
from pathlib import Path
import torch
from test_plan_engines import wide
from decompx_fast import DecompX

def status(key):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(key))

explainer = DecompX(wide(300), engine="adjoint", bias="none")
ids = [5 + 7 * i % 190 for i in range(512)]
explainer.explain(ids[:20])
Path("/proc/self/clear_refs").write_text("5")  # sets the recorded peak to the present
before = status("VmRSS")
for _ in range(3):  # what one has freed lies in pieces when the next begins
    explainer.explain(ids)
print((status("VmHWM") - before) / explainer.plan(512).peak_bytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system records no peak to be reset")
def test_the_process_holds_no_more_than_is_planned_for_many_directions():
    """Pulled in blocks, whose memory the allocator would else keep in pieces: it held twice as much."""
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{here.parent}{os.pathsep}{here}", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", RESIDENT], env=environment, capture_output=True, text=True, check=True)
    assert 0.4 < float(run.stdout) < 1.15


def test_auto_takes_the_engine_that_costs_less():
    assert cheaper_engine(BASE, NONE, tokens=20, sources=None, directions=77) == "forward"
    assert cheaper_engine(BASE, NONE, tokens=20, sources=None, directions=2) == "adjoint"
    assert cheaper_engine(BASE, NONE, tokens=512, sources=None, directions=77) == "adjoint"
    assert cheaper_engine(BASE, NONE, tokens=512, sources=4, directions=77) == "forward"
    # Few tokens and few classes: the adjoint engine tells more, and costs about the same.
    assert cheaper_engine(BASE, NONE, tokens=2, sources=None, directions=5) == "adjoint"
    # However many classes: no state of many gigabytes for a question that needs none.
    assert cheaper_engine(BASE, NONE, tokens=2048, sources=None, directions=100_000) == "adjoint"


def test_an_explanation_of_many_classes_is_the_same_by_the_engine_that_is_cheaper():
    explainer = DecompX(classifier(labels=60), bias="bias_token")
    ids = [[5, 6, 7, 8], [9, 10, 11, 12, 13]]
    for found, expected in zip(explainer.explain(ids), explainer.explain(ids, engine="adjoint"), strict=True):
        assert (found.engine, expected.engine) == ("forward", "adjoint")
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-9, atol=1e-11)
    assert explainer.explain(ids, targets="LABEL_3")[0].engine == "adjoint"


def test_unknown_free_memory_is_no_obstacle_for_the_adjoint_engine():
    this = DecompX(classifier()).plan(20, bias="none")
    assert dataclasses.replace(this, available_bytes=None).fits
    assert not dataclasses.replace(this, available_bytes=1).fits
