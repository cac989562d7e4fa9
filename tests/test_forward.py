"""The forward engine against the reference engine (float64: 1e-10 of the largest score), and the golden files.

The rule ``dot`` divides by a signed sum that may nearly cancel, so that rounding is amplified: 1e-6 there.
"""

from __future__ import annotations

import golden
import pytest
import synthetic
import torch
from exactness import relative, spearman
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import LAYERS, random_model

from decompx_fast import ops
from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.forward import attention as attention_path
from decompx_fast.engines.forward import direct as direct_path
from decompx_fast.engines.forward import run as forward
from decompx_fast.errors import OptionError
from decompx_fast.linearize.linearization import linearize

RULES = ("absdot", "abssim", "norm", "equal", "cls", "dot", "bias_token", "none")
FUNCTIONAL_RULES = ("absdot", "equal", "cls", "dot", "bias_token", "none")
PATHS = ("direct", "operator")
TINY = 1  # bytes: every block becomes one source or one row


def tolerance(config):
    return 1e-6 if "dot" in (config.bias, config.bias_token_split) else 1e-10


def is_complete(config):
    """Whether scores and bias token must add up to the logit."""
    whole = config.ln1 and config.ln2 and config.ffn and config.head and config.aggregation == "vector"
    return whole and config.bias != "none" and config.activation != "relu"


def check_same(linearization, config, *, limit=None, sources=None, **options):
    """The forward engine gives what the reference engine gives."""
    limit = tolerance(config) if limit is None else limit
    ours = forward.attribute(linearization, config, sources=sources, **options)
    theirs = reference.attribute(linearization, config, sources=sources, dtype=options.get("dtype"))
    assert relative(ours.scores, theirs.scores) < limit
    assert (ours.bias_token is None) == (theirs.bias_token is None)
    if theirs.bias_token is not None:
        assert relative(ours.bias_token, theirs.bias_token) < limit
    assert ours.gap.shape == theirs.gap.shape
    if is_complete(config):
        assert ours.gap.max() < limit * theirs.scores.abs().max()
    assert ours.stages.keys() == theirs.stages.keys()
    for name in ours.stages:
        assert relative(ours.stages[name], theirs.stages[name]) < limit
    return ours


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("rule", RULES)
def test_forward_matches_reference_for_every_rule(rule, variant, path):
    if path == "operator" and rule not in FUNCTIONAL_RULES:
        with pytest.raises(OptionError, match=f"bias='{rule}' needs the norms"):
            forward.attribute(synthetic.hugging_face(), DecompXConfig(bias=rule), path=path)
        return
    for family in synthetic.FAMILIES:
        linearization = synthetic.hugging_face(family, batch=2, n=7)
        for activation in ("zero_origin", "linear", "relu"):
            config = DecompXConfig(bias=rule, variant=variant, activation=activation)
            check_same(linearization, config, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("n", [1, 2, 7, 33])
def test_forward_matches_reference_for_every_size(n, batch, path):
    linearization = synthetic.hugging_face(batch=batch, n=n)
    for workspace_bytes in (None, TINY, 40_000):
        if workspace_bytes != TINY or batch * n < 33:  # a thousand blocks say no more than fifty
            check_same(linearization, DecompXConfig(), path=path, workspace_bytes=workspace_bytes)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_forward_matches_reference_for_few_layers(layers, variant):
    linearization = synthetic.hugging_face(layers=layers, batch=2)
    for rule in RULES:
        check_same(linearization, DecompXConfig(bias=rule, variant=variant))


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("switches", [{"ln1": False}, {"ln2": False}, {"ffn": False}, {"head": False}])
def test_forward_matches_reference_without_components(switches, variant):
    linearization = synthetic.hugging_face("roberta", batch=2)
    for rule in ("absdot", "bias_token", "none"):
        for path in PATHS if switches.get("ffn", True) else ("direct",):
            check_same(linearization, DecompXConfig(bias=rule, variant=variant, **switches), path=path)


@pytest.mark.parametrize("split", ["absdot", "abssim", "norm", "equal", "cls", "dot"])
def test_forward_splits_the_bias_token(split):
    config = DecompXConfig(bias="bias_token", bias_token_split=split, tanh="linear")
    assert check_same(synthetic.hugging_face(batch=2), config).bias_token is None


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rule", ["absdot", "norm", "cls", "bias_token"])
def test_forward_matches_reference_for_groups(rule, path):
    if path == "operator" and rule == "norm":
        rule = "dot"  # norms are for the direct path alone
    linearization = synthetic.hugging_face(batch=2, n=7)
    groups = torch.tensor([[0, 0, 1, 2, 2, 2, 0], [2, 1, 1, 0, 0, 0, 0]])
    for variant in ("paper", "released"):
        for workspace_bytes in (None, TINY):
            config = DecompXConfig(bias=rule, variant=variant)
            check_same(linearization, config, sources=groups, path=path, workspace_bytes=workspace_bytes)


def test_forward_of_one_token_groups_is_that_of_tokens():
    linearization = synthetic.hugging_face(batch=2, n=5)
    own = torch.arange(5).expand(2, 5)
    grouped = forward.attribute(linearization, DecompXConfig(), sources=own)
    plain = forward.attribute(linearization, DecompXConfig())
    assert relative(grouped.scores, plain.scores) < 1e-12


@pytest.mark.parametrize("stage_output", ["norm", "vector"])
def test_forward_keeps_stages(stage_output):
    stages = ("encoder", "aggregated", "pooler")
    config = DecompXConfig(stages=stages, stage_output=stage_output)
    kept = check_same(synthetic.hugging_face(batch=2), config).stages
    assert set(kept) == {f"{stage}.{n}" for stage in stages[:2] for n in range(3)} | {"pooler.2"}


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("shape", LAYERS)
def test_forward_matches_reference_for_every_layer_shape(shape, variant):
    linearization = random_model(shape, layers=2, n=5, position=-1)
    gate, workspace_bytes = ("half", None) if variant == "paper" else ("value", TINY)
    for rule in RULES:
        config = DecompXConfig(bias=rule, variant=variant, gate=gate)
        check_same(linearization, config, workspace_bytes=workspace_bytes)


@pytest.mark.parametrize("shape", LAYERS)
def test_forward_matches_reference_for_layer_shapes_with_groups_and_stages(shape):
    linearization = random_model(shape, n=6, layers=3, position=2)
    groups = torch.tensor([[0, 1, 1, 0, 2, 2], [0, 0, 0, 1, 1, 2]])
    config = DecompXConfig(stages=("encoder",), activation="linear")
    check_same(linearization, config, sources=groups)
    check_same(linearization, DecompXConfig(ln1=False), sources=groups)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_forward_matches_released_code(family, path):
    """The scores of the golden files themselves, 1e-9: the released code adds 1e-12 to its denominators."""
    expected = golden.expected(family)
    model = golden.model(family)
    rows = [linearize(model, row) for row in golden.inputs(family)]
    compared = 0
    for name, case in golden.cases(family).items():
        config = DecompXConfig(**golden.options(case))
        functional = config.bias in FUNCTIONAL_RULES and config.ffn
        if config.aggregation != "vector" or not config.head or (path == "operator" and not functional):
            continue
        for row, linearization in enumerate(rows):
            result = forward.attribute(linearization, config, path=path)
            scores = result.scores[0]
            if result.bias_token is not None:
                scores = torch.cat([scores, result.bias_token])
            theirs = expected[f"{name}/classifier"][row]
            theirs = torch.cat([theirs[: result.scores.shape[1]], theirs[11:]])
            assert relative(scores, theirs) < 1e-9, name
        compared += 1
    assert compared >= 10


@st.composite
def requests(draw):
    heads = draw(st.sampled_from([1, 2, 3]))
    model = dict(
        family=draw(st.sampled_from(synthetic.FAMILIES)),
        batch=draw(st.integers(1, 3)),
        n=draw(st.integers(1, 9)),
        layers=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 99)),
        heads=heads,
        d=heads * draw(st.integers(2, 5)),
        f=draw(st.integers(1, 24)),
        hidden_act=draw(st.sampled_from(["gelu", "relu", "gelu_new", "silu"])),
    )
    config = DecompXConfig(
        bias=draw(st.sampled_from([rule for rule in RULES if rule != "dot"])),
        variant=draw(st.sampled_from(["paper", "released"])),
        activation=draw(st.sampled_from(["zero_origin", "linear", "relu"])),
        ln1=draw(st.booleans()),
        ln2=draw(st.booleans()),
        ffn=draw(st.booleans()),
        head=draw(st.booleans()),
    )
    groups = None
    if draw(st.booleans()):
        count = draw(st.integers(1, model["n"]))
        row = st.lists(st.integers(0, count - 1), min_size=model["n"], max_size=model["n"])
        groups = torch.tensor([draw(row) for _ in range(model["batch"])])
    foldable = config.ffn and config.bias in FUNCTIONAL_RULES
    path = draw(st.sampled_from(["auto", *PATHS])) if foldable else "auto"
    return model, config, groups, {"workspace_bytes": draw(st.integers(1, 100_000)), "path": path}


@settings(max_examples=60)
@given(requests())
def test_forward_matches_reference_whatever_is_asked(request_):
    model, config, groups, options = request_
    linearization = synthetic.hugging_face(**model)
    # A norm or a gate of such small random models may be nearly singular, hence ten times the usual tolerance.
    check_same(linearization, config, limit=1e-9, sources=groups, **options)


@pytest.mark.parametrize("path", PATHS)
def test_forward_is_accurate_in_float32(path):
    exact = synthetic.hugging_face(batch=2, n=16, d=48, f=96, heads=4)
    theirs = reference.attribute(exact, DecompXConfig()).scores
    single = synthetic.hugging_face(batch=2, n=16, d=48, f=96, heads=4, dtype=torch.float32)
    ours = forward.attribute(single, DecompXConfig(), path=path).scores
    assert ours.dtype == torch.float32
    assert relative(ours, theirs) < 1e-5


@pytest.mark.parametrize("path", PATHS)
def test_forward_keeps_the_order_in_bfloat16(path):
    linearization = synthetic.hugging_face(batch=1, n=16, d=48, f=96, heads=4, dtype=torch.float32)
    theirs = reference.attribute(linearization, DecompXConfig()).scores
    for rule in ("absdot", "bias_token"):
        config = DecompXConfig(bias=rule)
        theirs = reference.attribute(linearization, config).scores
        ours = forward.attribute(linearization, config, dtype=torch.bfloat16, path=path).scores
        assert ours.dtype == torch.float32
        assert spearman(ours, theirs) >= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_forward_through_kernels_matches_reference(variant, path):
    """In Triton's interpreter where there is no GPU; float32, so 1e-5 of the largest score."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    single = synthetic.hugging_face(n=5, batch=2, layers=2, dtype=torch.float32, device=device)
    exact = synthetic.hugging_face(n=5, batch=2, layers=2)
    groups = torch.tensor([[0, 0, 1, 2, 2], [2, 1, 1, 0, 0]])
    for rule, sources in [("absdot", None), ("absdot", groups), ("cls", None), ("equal", None), ("bias_token", None)]:
        config = DecompXConfig(bias=rule, variant=variant, activation="linear" if rule == "cls" else "zero_origin")
        on_device = None if sources is None else sources.to(device)
        ours = forward.attribute(single, config, sources=on_device, path=path, backend="triton").scores
        theirs = reference.attribute(exact, config, sources=sources).scores
        assert relative(ours.cpu(), theirs) < 1e-5


@pytest.mark.parametrize(("backend", "step"), [("triton", 16), ("torch", 5)])
def test_forward_pads_attention_weights_for_kernels_alone(monkeypatch, backend, step):
    strides = []

    def listening(alpha, *args, **options):
        strides.append(alpha.stride(2))
        return mixing(alpha, *args, **options)

    mixing = attention_path.mixing
    monkeypatch.setattr(attention_path, "mixing", listening)
    linearization = synthetic.hugging_face(n=5, layers=3, dtype=torch.float32)
    forward.attribute(linearization, DecompXConfig(), backend=backend)
    assert set(strides) == {step}


@pytest.mark.parametrize("shape", ["llama", "gemma", "parallel_causal"])
def test_forward_through_kernels_matches_reference_for_layer_shapes(shape):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    single = random_model(shape, n=4, layers=2, b=1, dtype=torch.float32, device=device, position=-1)
    ours = forward.attribute(single, DecompXConfig(), backend="triton").scores
    exact = random_model(shape, n=4, layers=2, b=1, position=-1)
    assert relative(ours.cpu(), reference.attribute(exact, DecompXConfig()).scores) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rule", FUNCTIONAL_RULES)
def test_forward_on_a_gpu_matches_reference(rule, path):
    # A model in which no sum of signed dots nearly cancels: in others "dot" is wrong by its own size in float32.
    sizes = dict(batch=2, n=40, d=96, f=384, heads=6, seed=4)
    config = DecompXConfig(bias=rule)
    theirs = reference.attribute(synthetic.hugging_face(**sizes), config).scores
    single = synthetic.hugging_face(**sizes, dtype=torch.float32, device="cuda")
    ours = forward.attribute(single, config, path=path).scores.cpu()
    assert relative(ours, theirs) < (1e-2 if rule == "dot" else 1e-5)
    if rule != "dot":  # a signed sum that nearly cancels has no order to keep in half precision
        half = forward.attribute(single, config, dtype=torch.bfloat16, path=path).scores.cpu()
        assert spearman(half, theirs) >= 0.99


@pytest.mark.gpu
@pytest.mark.parametrize("path", PATHS)
def test_peak_on_a_gpu_is_as_planned(path):
    single = synthetic.hugging_face(n=256, d=192, f=768, heads=6, dtype=torch.float32, device="cuda")
    config, workspace_bytes = DecompXConfig(), 32 << 20
    forward.attribute(single, config, path=path, workspace_bytes=workspace_bytes)  # compiles
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    forward.attribute(single, config, path=path, workspace_bytes=workspace_bytes)
    peak = torch.cuda.max_memory_allocated() - before
    assert peak <= 1.3 * 256 * 256 * 192 * 4 + workspace_bytes


@pytest.mark.skipif(not ops.usable("native", "cpu")[0], reason="the C++ kernels are not built")
@pytest.mark.parametrize("rule", ["absdot", "dot", "cls", "bias_token", "none"])
@pytest.mark.parametrize("bias", ["random", "zero", "on dead neurons"])
def test_forward_with_networks_as_one_op(monkeypatch, rule, bias):
    """Also where dots are known to vanish without the hidden layer, and where it alone tells who shares the bias."""
    slopes, linear_piece = [], direct_path.linear_piece
    monkeypatch.setattr(direct_path, "linear_piece", lambda *args: slopes.append(1) or linear_piece(*args))
    sizes = dict(n=9, d=24, f=40, heads=3)
    single, exact = (synthetic.hugging_face(**sizes, dtype=t) for t in (torch.float32, torch.float64))
    for linearization in (single, exact):
        for layer in linearization._spec.layers:
            into = layer[1].ops[0].into
            if bias == "zero":
                into.bias.zero_()
            elif bias == "on dead neurons":  # of a neuron that reads nothing, the dots are zero and the bias is not
                into.bias[1:] = 0
                into.weight[:, 0] = 0
        linearization._values.own = _own_logits(linearization)
    config = DecompXConfig(bias=rule)
    expected = reference.attribute(exact, config).scores
    ours = forward.attribute(single, config, path="direct", backend="native")
    assert relative(ours.scores, expected) < (1e-2 if rule == "dot" else 1e-5)
    layers, undecided = 3, bias == "on dead neurons" and rule in ("absdot", "dot")
    assert len(slopes) > layers if undecided else len(slopes) == layers


def test_forward_shares_equally_where_attention_gives_nothing():
    """Zero value weights: the bias of the attention is shared among all, and then what is zero stays told apart."""
    linearization = synthetic.hugging_face(batch=1, n=4)
    for layer in linearization._spec.layers:
        layer[0].ops[0].value.weight.zero_()
        layer[0].ops[0].value.bias.zero_()
    linearization._values.own = _own_logits(linearization)
    for rule in ("absdot", "dot", "equal", "norm"):
        for variant in ("paper", "released"):
            for path in PATHS if rule in FUNCTIONAL_RULES else ("direct",):
                check_same(linearization, DecompXConfig(bias=rule, variant=variant), path=path)


def _own_logits(linearization):
    x = linearization.embedding
    linearization._check = lambda *args, **kwargs: None
    for layer in linearization.layers():
        x = layer.output
    return linearization.head(x).logits
