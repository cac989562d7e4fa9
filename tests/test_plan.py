"""A plan foretells what the engine does: the peak within 10 % of what is counted, and never the memory it has not."""

from __future__ import annotations

import dataclasses

import processors
import pytest
import synthetic
import torch
from live_bytes import LiveBytes
from random_models import LAYERS, random_model
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
)

from decompx_fast import DecompX
from decompx_fast.config import DecompXConfig
from decompx_fast.engines.adjoint.plan import AdjointPlan
from decompx_fast.engines.blocks import Workspace, blocks
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.forward.plan import ModelShape, plan
from decompx_fast.engines.memory import available_bytes, default_workspace
from decompx_fast.engines.shape import Mask
from decompx_fast.errors import OptionError, PlanError
from decompx_fast.linearize.architectures import describe
from decompx_fast.ops.backends import native, product_choices, products

MIB = 1 << 20
BERT_BASE = ModelShape(layers=12, d=768, f=3072, heads=12, kv_heads=12, head_size=64)
CPU = torch.device("cpu")


def shape_of(linearization):
    return ModelShape.from_linearization(linearization, next(linearization.layers()))


def measure(linearization, config, n_sources=None, **options):
    """The peak that is counted, and the plan."""
    b, n, _ = linearization.embedding.shape
    sources = None if n_sources is None else (torch.arange(n) * n_sources // n).expand(b, n)
    counter = LiveBytes()
    with counter:
        forward.attribute(linearization, config, sources=sources, **options)
    return counter.peak, plan(shape_of(linearization), n, n_sources, b, config=config, **options)


def model(dtype, **sizes):
    dtype = torch.float64 if dtype is torch.float64 else torch.float32
    return synthetic.hugging_face(d=192, heads=6, f=768, dtype=dtype, **sizes)


@pytest.fixture(params=processors.NAMES)
def processor(request, monkeypatch):
    """Every processor in turn, whichever this is."""
    processors.become(monkeypatch, request.param)
    yield request.param
    product_choices._choose.cache_clear()


@pytest.mark.parametrize(("dtype", "path"), [(torch.float32, "operator"), (torch.bfloat16, "direct")])
def test_plan_foretells_the_peak_on_every_processor(processor, dtype, path):
    peak, foretold = measure(model(dtype, n=40), DecompXConfig(), dtype=dtype, path=path, workspace_bytes=4 * MIB)
    assert foretold.peak_bytes == pytest.approx(peak, rel=0.1)


#: Inputs, positions, sources and workspace.
QUESTIONS = [(1, 40, None, 6 * MIB), (2, 40, None, None), (1, 96, 24, 6 * MIB), (1, 112, None, 8 * MIB)]
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@pytest.mark.parametrize(
    ("question", "dtype", "path"),  # all pairs of two of them
    [
        (question, dtype, ("direct", "operator")[(m + n) % 2])
        for m, question in enumerate(QUESTIONS)
        for n, dtype in enumerate(DTYPES)
    ],
    ids=str,
)
def test_plan_foretells_the_peak(question, dtype, path):
    batch, n, n_sources, workspace = question
    linearization = model(dtype, batch=batch, n=n)
    peak, foretold = measure(
        linearization, DecompXConfig(), n_sources, dtype=dtype, path=path, workspace_bytes=workspace
    )
    assert foretold.path == path
    assert foretold.peak_bytes == pytest.approx(peak, rel=0.1)


@pytest.mark.skipif(not product_choices.has_onednn(), reason="this build of PyTorch has no oneDNN")
@pytest.mark.parametrize("path", ["direct", "operator"])
@pytest.mark.parametrize(
    ("batch", "n", "backend"), [(2, 40, "auto"), (1, 160, "auto"), (2, 40, "torch"), (1, 160, "torch")]
)
def test_plan_foretells_the_peak_where_products_are_made_apart(batch, n, backend, path):
    with products.forced_way("onednn"):
        peak, foretold = measure(
            model(torch.float32, batch=batch, n=n),
            DecompXConfig(),
            path=path,
            backend=backend,
            workspace_bytes=16 * MIB,
        )
    assert foretold.peak_bytes == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("rule", ["abssim", "equal", "bias_token", "none"])
@pytest.mark.parametrize("options", [{}, {"variant": "released", "activation": "linear"}, {"stages": ("encoder",)}])
def test_plan_foretells_the_peak_of_options(rule, options):
    config = DecompXConfig(bias=rule, **options)
    peak, foretold = measure(model(torch.float32, n=72), config, workspace_bytes=4 * MIB)
    assert foretold.peak_bytes == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_plan_foretells_the_peak_of_layer_shapes(layers, dtype):
    constants = torch.float64 if dtype is torch.float64 else torch.float32
    linearization = random_model(layers, n=48, d=96, f=384, heads=8, dtype=constants, position=-1, layers=3)
    peak, foretold = measure(linearization, DecompXConfig(gate="half"), dtype=dtype, workspace_bytes=4 * MIB)
    assert foretold.peak_bytes == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("layers", ["gpt", "gemma", "biased_branch_norms"])
@pytest.mark.parametrize(("n", "workspace"), [(200, 2 * MIB), (400, MIB // 4), (400, None)])
def test_plan_foretells_the_peak_of_masks(layers, n, workspace):
    """With windows of 2 and 3, of which a block of rows attends few more positions than it has."""
    linearization = random_model(layers, b=1, n=n, d=32, f=48, heads=8, dtype=torch.float32, position=-1, layers=3)
    peak, foretold = measure(linearization, DecompXConfig(gate="half"), 8, workspace_bytes=workspace)
    assert foretold.peak_bytes == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("n", [1, 2, 9, 30])
@pytest.mark.parametrize("window", [None, 1, 3, 9, 50])
@pytest.mark.parametrize("causal", [False, True])
def test_plan_counts_the_pairs_that_a_mask_allows(causal, window, n):
    i, j = torch.arange(n)[:, None], torch.arange(n)
    allowed = (j <= i) if causal else torch.ones(n, n, dtype=torch.bool)
    allowed &= (i - j).abs() < (window or n)
    assert Mask(causal, window).pairs(n) == allowed.sum()
    rows = allowed[: min(n, 4)] if n < 9 else allowed[n // 2 - 2 : n // 2 + 2]  # far from the ends, if there are any
    assert Mask(causal, window).width(len(rows), n) >= rows.any(0).sum()
    every = ModelShape(layers=3, d=8, f=8, heads=2, kv_heads=2, head_size=4, masks=(Mask(causal, window),))
    assert every.pairs(n) == 3 * allowed.sum()
    # Of three layers the first starts from single tokens, and the last is one row.
    mixed = dataclasses.replace(every, masks=(Mask(), Mask(causal, window), Mask()))
    assert plan(mixed, n).flops["mixing"] == 2 * allowed.sum() * n * 8
    adjoint = AdjointPlan(mixed, n, 1, 1, torch.float32, DecompXConfig(bias="none"), CPU)
    assert adjoint.flops["attention weights"] == 2 * (n * n + allowed.sum() + n) * 8


def test_plan_knows_the_mask_of_each_layer():
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 4}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    config = ModernBertConfig(vocab_size=40, local_attention=8, global_attn_every_n_layers=3, **sizes, **tokens)
    shape = ModelShape.from_spec(describe(ModernBertForSequenceClassification(config).eval()))
    local, n = 100 + 2 * sum(100 - k for k in range(1, 5)), 100  # 4 neighbours on each side
    assert [mask.pairs(n) for mask in shape.masks] == [n * n, local, local, n * n]


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("name", ["zen3", "mixed"])
def test_plan_foretells_the_peak_of_layer_shapes_on_other_processors(monkeypatch, name, layers):
    processors.become(monkeypatch, name)
    linearization = random_model(layers, n=48, d=96, f=384, heads=8, dtype=torch.float32, position=-1, layers=3)
    peak, foretold = measure(linearization, DecompXConfig(gate="half"), dtype=torch.bfloat16, workspace_bytes=4 * MIB)
    assert foretold.peak_bytes == pytest.approx(peak, rel=0.1)


def test_plan_of_a_short_text_has_room_for_what_is_recorded(processor):
    config = BertConfig(hidden_size=192, num_attention_heads=6, intermediate_size=768, num_hidden_layers=6)
    explainer = DecompX(BertForSequenceClassification(config).eval(), engine="forward")
    ids = list(range(5, 45))
    little = {"workspace_bytes": MIB}  # so that what is recorded is a good part of the rest
    explainer.explain(ids, **little)  # projections, which are made once
    counter = LiveBytes()
    with counter:
        explainer.explain(ids, **little)
    foretold = explainer.plan(len(ids), **little)
    assert foretold.costs.recorded_bytes() > 0.2 * foretold.peak_bytes
    assert 0.7 * foretold.peak_bytes < counter.peak < 1.1 * foretold.peak_bytes


@pytest.mark.parametrize("path", ["direct", "operator"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_peak_is_hardly_more_than_the_state(dtype, path):
    """The target: 1.3 times the state and the workspace, above the weights."""
    linearization = model(dtype, n=160)
    workspace = 8 * MIB
    peak, foretold = measure(linearization, DecompXConfig(), dtype=dtype, path=path, workspace_bytes=workspace)
    assert peak <= 1.3 * foretold.state_bytes + workspace
    assert foretold.workspace_bytes == workspace
    # What fits is also used: the blocks are not needlessly small.
    assert peak >= foretold.state_bytes + 0.6 * workspace


def test_a_smaller_workspace_gives_smaller_blocks_and_the_same_numbers():
    linearization = synthetic.hugging_face(n=24, d=48, f=96, heads=4)
    peaks = []
    for workspace in (8 * MIB, MIB, 1):
        peak, foretold = measure(linearization, DecompXConfig(), workspace_bytes=workspace)
        peaks.append((peak, foretold.blocks.sources))
    assert peaks == sorted(peaks, reverse=True)


def test_plan_of_bert_base_by_hand(monkeypatch):
    """N = 512 in float32: the state is 512 x 512 x 768 x 4 bytes; the operations are those of the design's table."""
    processors.become(monkeypatch, "zen3")
    n, d, f, layers = 512, 768, 3072, 12
    this = plan(BERT_BASE, n, available=1 << 40)
    assert this.state_bytes == n * n * d * 4
    assert this.peak_bytes < 1.6 * 2**30
    assert this.flops["projections"] == (layers - 2) * 4 * n * n * d * d
    assert this.flops["mixing"] == (layers - 2) * 2 * n**3 * d
    assert this.flops["first attention"] == 2 * n * n * 12 * d
    assert this.path == "operator"
    assert this.flops["position-wise"] == (layers - 1) * (2 * n * d * d * f + 2 * n * n * d * d)
    direct = plan(BERT_BASE, n, path="direct", available=1 << 40)
    assert direct.flops["position-wise"] == (layers - 1) * 4 * n * n * d * f
    assert direct.total_flops == sum(direct.flops.values()) > this.total_flops


@pytest.mark.skipif(native.unusable() is not None, reason=str(native.unusable()))
def test_auto_counts_what_an_operation_takes(monkeypatch):
    """With f = 4 d, and operations that count w times, from K = 4 w d / (8 - w) on: 0.85 d and 2.04 d."""
    processors.become(monkeypatch, "zen5")
    for dtype, n in [(torch.float32, 651), (torch.bfloat16, 1564)]:
        assert plan(BERT_BASE, n, dtype=dtype).path == "direct"
        assert plan(BERT_BASE, n + 2, dtype=dtype).path == "operator"


def test_auto_takes_the_path_with_fewer_operations(monkeypatch):
    """With f = 4 d the operator needs less from K = 4/7 d = 0.57 d on (DESIGN, 4.1)."""
    processors.become(monkeypatch, "zen3")
    for n, path in [(128, "direct"), (430, "direct"), (446, "operator"), (2048, "operator")]:
        assert plan(BERT_BASE, n).path == path
    assert plan(BERT_BASE, 2048, 64).path == "direct"
    assert plan(BERT_BASE, 2048, config=DecompXConfig(bias="norm")).path == "direct"
    assert plan(BERT_BASE, 2048, config=DecompXConfig(ffn=False)).path == "direct"
    assert plan(dataclasses.replace(BERT_BASE, foldable=False), 2048).path == "direct"


def test_a_longer_input_costs_more():
    peaks = [plan(BERT_BASE, n, available=1).peak_bytes for n in (1, 2, 7, 33, 128, 512, 4096)]
    assert peaks == sorted(peaks)


def test_a_plan_that_does_not_fit_says_so_with_numbers_and_ways_out():
    this = plan(BERT_BASE, 4096, batch=2, dtype=torch.float32, available=16 << 30)
    assert not this.fits
    with pytest.raises(PlanError) as error:
        this.check()
    message = str(error.value)
    assert "96.0 GiB of it for the decomposed state in float32" in message
    assert "16.0 GiB are free on cpu" in message
    for way in ("sources in groups, at most", "engine='adjoint'"):
        assert way in message
    # One input takes 48 GiB, two in bfloat16 take as much, and one in bfloat16 takes 24: none of it is a way out.
    assert "one at a time" not in message and "bfloat16" not in message
    groups = int(message.split("at most ")[1].split()[0])
    assert plan(BERT_BASE, 4096, groups, 2, available=16 << 30).fits
    assert not plan(BERT_BASE, 4096, groups + 200, 2, available=16 << 30).fits


def test_the_engine_refuses_before_it_allocates(monkeypatch):
    monkeypatch.setattr("decompx_fast.engines.forward.plan.available_bytes", lambda device: 1000)
    counter = LiveBytes()
    linearization = model(torch.float32, n=64)
    with pytest.raises(PlanError, match="are free on cpu"), counter:
        forward.attribute(linearization, DecompXConfig())
    assert counter.peak < 64 * 64 * 192 * 4  # less than the state: nothing but one layer's constants


def test_unknown_free_memory_is_no_obstacle():
    this = plan(BERT_BASE, 128)
    assert dataclasses.replace(this, available_bytes=None).fits


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "sideways"}, "path='sideways' is not a path"),
        ({"path": "operator", "config": DecompXConfig(bias="norm")}, "needs the norms of the vectors"),
        ({"path": "operator", "config": DecompXConfig(ffn=False)}, "no network to fold in"),
    ],
)
def test_plan_refuses_paths_that_are_not_there(options, words):
    with pytest.raises(OptionError, match=words):
        plan(BERT_BASE, 16, **options)


def test_shape_of_a_model_that_has_not_run_is_that_of_one_that_has():
    config = BertConfig(
        vocab_size=60, hidden_size=12, num_hidden_layers=3, num_attention_heads=3, intermediate_size=20, num_labels=3
    )
    spec = describe(BertForSequenceClassification(config).eval())
    expected = ModelShape(layers=3, d=12, f=20, heads=3, kv_heads=3, head_size=4, classes=3)
    assert ModelShape.from_spec(spec) == shape_of(synthetic.hugging_face()) == expected


def test_shape_of_other_layers():
    llama = shape_of(random_model("llama"))
    assert (llama.kv_heads, llama.gated, llama.pre_norm, llama.masked, llama.foldable) == (2, True, True, True, False)
    assert shape_of(random_model("parallel_causal")).keeps_branch(DecompXConfig())
    assert not shape_of(random_model("parallel_causal")).keeps_branch(DecompXConfig(ffn=False))
    assert shape_of(random_model("gemma")).normed_branches
    assert not shape_of(random_model("network_first")).starts_with_attention


def test_free_memory_is_a_sensible_number():
    free = available_bytes(CPU)
    assert free is None or 1 << 20 < free < 1 << 50


def test_default_workspace_grows_with_the_state():
    assert default_workspace(0, CPU) == 128 * MIB
    assert default_workspace(1 << 40, CPU) == 1 << 37


def test_blocks_cut_evenly():
    assert [(s.start, s.stop) for s in blocks(10, 4)] == [(0, 4), (4, 8), (8, 10)]
    assert [(s.start, s.stop) for s in blocks(10, 9)] == [(0, 5), (5, 10)]
    assert [s.stop for s in blocks(3, 100)] == [3]
    assert list(blocks(0, 4)) == []


def test_workspace_parts_do_not_overlap():
    workspace = Workspace(10, torch.float32, CPU)
    left, right = workspace.take((2, 3), (4,))
    left.fill_(1), right.fill_(2)
    assert left.sum() == 6 and right.sum() == 8
    grown, _ = workspace.take((30,), (5,))
    assert grown.shape == (30,)
