"""Zeros that the forward engine leaves out: in decoders, with windows, in groups; float64, against the reference.

The rule ``dot`` divides by a signed sum that may nearly cancel, so that rounding is amplified: 1e-6 there.
"""

from __future__ import annotations

import encoder_decoders
import pytest
import random_models
import torch
from exactness import relative
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import Parts, random_model

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import blocks as engine_blocks
from decompx_fast.engines import reference
from decompx_fast.engines.blocks import Workspace
from decompx_fast.engines.forward import attention as attention_path
from decompx_fast.engines.forward import direct as direct_path
from decompx_fast.engines.forward import live
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.forward.plan import plan
from decompx_fast.engines.forward.propagation import Propagation
from decompx_fast.engines.shape import Mask, ModelShape
from decompx_fast.engines.terms import Terms
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.spec import LayerSpec, SublayerSpec

RULES = ("absdot", "abssim", "norm", "equal", "cls", "dot", "bias_token", "none")


def post_norm_causal(p: Parts, last: bool) -> LayerSpec:
    """The first GPT."""
    return (
        SublayerSpec((p.attention(causal=True),), post_norm=p.norm()),
        SublayerSpec((p.network(),), post_norm=p.norm()),
    )


SHAPES = ("gpt", "rms_gated", "around", "branches", "parallel_causal", "post_norm_causal", "parallel")


@pytest.fixture(autouse=True)
def shapes(monkeypatch):
    monkeypatch.setitem(random_models.LAYERS, "post_norm_causal", post_norm_causal)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of a row and a source, as if starting a product cost nothing."""
    monkeypatch.setattr(live, "THIN_ON_CPU", 0)


@pytest.fixture
def poisoned(monkeypatch):
    """What is not written yet is NaN."""
    take, begin = Workspace.take, Propagation._begin

    def poisoning(self, *shapes):
        parts = take(self, *shapes)
        for part in parts:
            part.fill_(float("nan"))
        return parts

    def beginning(self, layer):
        begin(self, layer)
        self._whole.fill_(float("nan"))

    monkeypatch.setattr(Workspace, "take", poisoning)
    monkeypatch.setattr(Propagation, "_begin", beginning)


def check_same(model, config, *, sources=None, limit=None, **options):
    limit = (1e-6 if config.bias == "dot" else 1e-10) if limit is None else limit
    ours = forward.attribute(model, config, sources=sources, **options)
    theirs = reference.attribute(model, config, sources=sources)
    assert relative(ours.scores, theirs.scores) < limit
    for name in theirs.stages:
        assert relative(ours.stages[name], theirs.stages[name]) < limit
    return ours


def computed(monkeypatch):
    """Counts the operations of products with weights."""
    count = [0]

    def counting(x, weight, *, out):
        count[0] += 2 * x.numel() * weight.shape[1]
        engine_blocks.matmul(x, weight, out=out)

    monkeypatch.setattr(attention_path, "matmul", counting)
    monkeypatch.setattr(direct_path, "matmul", counting)
    return count


@pytest.mark.parametrize(
    ("shape", "rule", "variant"),  # all pairs of two of them
    [
        (shape, rule, ("paper", "released")[(m + n) % 2])
        for m, shape in enumerate(SHAPES)
        for n, rule in enumerate(RULES)
    ],
)
def test_without_zeros_all_is_as_with_them(poisoned, shape, rule, variant):
    model = random_model(shape, n=9, layers=3, b=2, position=-1)
    check_same(model, DecompXConfig(bias=rule, variant=variant, stages=("encoder",), stage_output="vector"))


@pytest.mark.parametrize("rule", ["absdot", "equal", "cls", "dot", "bias_token", "none"])
def test_by_operators_too(rule):
    for b in (1, 3):
        model = random_model("post_norm_causal", n=7, b=b, layers=3, position=-1)
        check_same(model, DecompXConfig(bias=rule), path="operator")


@settings(max_examples=40)
@given(
    shape=st.sampled_from(SHAPES),
    rule=st.sampled_from(RULES),
    n=st.integers(1, 13),
    b=st.integers(1, 3),
    thin=st.sampled_from([0, 1, 4, 32]),
    groups=st.integers(0, 4),
    workspace=st.sampled_from([None, 1]),
    position=st.sampled_from([-1, "mean"]),
    seed=st.integers(0, 99),
)
def test_every_size_block_and_group(shape, rule, n, b, thin, groups, workspace, position, seed):
    model = random_model(shape, seed, n=n, b=b, position=position)
    sources = None
    if groups:  # in any order, and of tokens apart
        generator = torch.Generator().manual_seed(seed)
        sources = torch.stack([torch.randint(groups, (n,), generator=generator) for _ in range(b)])
        sources[:, 0] = groups - 1  # so that all items have as many
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "THIN_ON_CPU", thin)
        check_same(model, DecompXConfig(bias=rule), sources=sources, workspace_bytes=workspace)


@pytest.mark.parametrize("rule", ["absdot", "equal", "cls", "bias_token"])
@pytest.mark.parametrize("case", ["t5", "bart", "mbart", "pegasus"])
def test_a_decoder_beside_its_encoder(poisoned, case, rule):
    model, given = encoder_decoders.model_of(case), encoder_decoders.inputs(7, 9)
    terms = Terms(torch.tensor([[15, 15], [12, 14]]), torch.tensor([[3, 8], [0, 9]]))
    config = DecompXConfig(bias=rule)
    expected = reference.attribute(linearize(model, given), config, terms=terms).scores
    assert relative(forward.attribute(linearize(model, given), config, terms=terms).scores, expected) < 1e-10
    sources = (torch.arange(16) // 3).expand(2, -1)  # one of them of both
    expected = reference.attribute(linearize(model, given), config, terms=terms, sources=sources).scores
    found = forward.attribute(linearize(model, given), config, terms=terms, sources=sources).scores
    assert relative(found, expected) < 1e-10


@pytest.mark.parametrize("shape", ["gpt", "parallel_causal", "post_norm_causal"])
def test_what_must_be_zero_is_zero(shape):
    config = DecompXConfig(stages=("encoder",), stage_output="vector")
    stages = forward.attribute(random_model(shape, n=9, layers=3, position=-1), config).stages
    for stage in stages.values():
        assert (stage.abs().amax(-1) != 0).tolist() == torch.ones(2, 9, 9).tril().bool().tolist()


@pytest.mark.parametrize("dead", ["attention", "ffn", "token"])
@pytest.mark.parametrize("rule", ["absdot", "dot", "norm", "abssim"])
@pytest.mark.parametrize("shape", ["gpt", "parallel_causal", "post_norm_causal", "around"])
def test_what_is_shared_among_all_reaches_the_later_ones_too(monkeypatch, shape, rule, dead):
    """Where all vectors are zero, so that a bias is shared among all sources: of an attention, of a network, and at a
    first token without a vector."""
    model = random_model(shape, n=6, layers=3, position=-1)
    for op in (op for sublayer in model.specs[1] for op in sublayer.ops if op.kind == dead):
        last = op.value if dead == "attention" else op.out
        last.weight.zero_()
        if dead == "attention":
            last.bias.zero_()
    if dead == "token":
        model.embedding[:, 0] = 0
    runs, through = [], forward._through
    monkeypatch.setattr(forward, "_through", lambda *args: runs.append(args) or through(*args))
    check_same(model, DecompXConfig(bias=rule))
    assert len(runs) == 2  # not for nothing


@pytest.mark.parametrize("thin", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "sources", [[0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0], [1, 2, 1, 0, 1, 2], [1, 1, 0, 2, 0, 1, 2, 2, 2]]
)
def test_what_is_shared_within_a_block_is_seen(poisoned, monkeypatch, sources, thin):
    """The last block of rows has all groups, and its first rows do not: an attention of the next layer begins with a
    group behind these rows."""
    monkeypatch.setattr(live, "THIN_ON_CPU", thin)
    model = random_model("gpt", 3, n=len(sources), b=1, layers=2, position=-1)
    model.embedding[:, 0] = 0
    check_same(model, DecompXConfig(), sources=torch.tensor([sources]))


@pytest.mark.parametrize("groups", [None, 4])
@pytest.mark.parametrize("thin", [0, 8])
@pytest.mark.parametrize("shape", ["gpt", "rms_gated", "post_norm_causal"])
def test_products_are_those_of_the_plan(monkeypatch, shape, thin, groups):
    """Within 5 %: the plan knows of blocks how large they are at the most."""
    monkeypatch.setattr(live, "THIN_ON_CPU", thin)
    n, b, config = 32, 2, DecompXConfig()
    model = random_model(shape, n=n, b=b, layers=3, position="mean")
    sources = None if groups is None else (torch.arange(n) * groups // n).expand(b, n)
    count = computed(monkeypatch)
    forward.attribute(model, config, sources=sources, path="direct")
    sizes = ModelShape.from_linearization(model, next(model.layers()))
    flops = plan(sizes, n, groups, b, dtype=torch.float64, config=config, path="direct").flops
    foretold = flops["projections"] + flops["position-wise"]
    assert count[0] == pytest.approx(foretold, rel=0.05)


def test_half_of_a_decoder_is_left_out():
    """Nearly half at 512 positions, and no part of an encoder."""
    sizes = dict(layers=12, d=768, f=3072, heads=12, kv_heads=12, head_size=64)
    decoder = ModelShape(**sizes, masks=(Mask(causal=True),), foldable=False)
    encoder = ModelShape(**sizes, foldable=False)
    flops = [plan(shape, 512, device="cpu", available=1 << 40).flops for shape in (decoder, encoder)]
    for part, most in (("projections", 0.52), ("position-wise", 0.52), ("mixing", 0.36)):
        assert flops[0][part] <= most * flops[1][part]


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "rule"), [("gpt", "absdot"), ("gemma", "bias_token"), ("parallel_causal", "absdot")])
def test_through_kernels(shape, rule):
    """The same by Triton's kernels, which mix from a multiple of 16 positions on."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    single = random_model(shape, n=17, layers=2, b=1, dtype=torch.float32, device=device, position=-1)
    ours = forward.attribute(single, DecompXConfig(bias=rule), backend="triton").scores
    exact = reference.attribute(random_model(shape, n=17, layers=2, b=1, position=-1), DecompXConfig(bias=rule))
    assert relative(ours.cpu(), exact.scores) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_every_dtype(monkeypatch, dtype):
    """As near to the exact scores as with zeros."""
    single = random_model("gpt", n=24, layers=3, d=48, f=96, dtype=torch.float32, position=-1)
    exact = reference.attribute(random_model("gpt", n=24, layers=3, d=48, f=96, position=-1), DecompXConfig()).scores
    without = relative(forward.attribute(single, DecompXConfig(), dtype=dtype).scores, exact)
    monkeypatch.setattr(live.Live, "of", lambda *args: None)
    whole = relative(forward.attribute(single, DecompXConfig(), dtype=dtype).scores, exact)
    assert without < 2 * whole + 1e-6
