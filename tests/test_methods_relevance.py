"""AttnLRP against its equations: relevance passed back layer by layer, without autograd, with its leaks counted."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from types import SimpleNamespace

import models
import pytest
import random_models
import torch
from models import classifier, snapshot, unchanged
from random_models import random_model
from torch import Tensor

from decompx_fast.errors import InputError, UnsupportedModelError
from decompx_fast.evaluation.method import Problem, get_method
from decompx_fast.evaluation.methods import relevance
from decompx_fast.linearize.layer import AttentionPattern
from decompx_fast.linearize.linearization import linearize, specification
from decompx_fast.linearize.spec import Affine, AttentionSpec, FeedForwardSpec, NormSpec
from decompx_fast.models.demo import load_demo
from decompx_fast.request.encoded import Encoded
from decompx_fast.request.encoding import Reader

#: The equations divide by outputs, which may come near 0, where autograd does not.
DIVIDED = 1e-7

IDS = [101, 7, 23, 42, 9, 15, 102]


@dataclass
class Backward:
    """AttnLRP as its equations say, on one sequence; counts the relevance that constant terms absorb."""

    absorbed: float = 0.0

    def linear(self, x: Tensor, map_: Affine, r: Tensor) -> Tensor:
        """Equation 8: ``R_j = sum_i x_j W_ji R_i / z_i``; the bias takes ``b_i R_i / z_i``."""
        z = x @ map_.weight if map_.bias is None else x @ map_.weight + map_.bias
        if map_.bias is not None:
            self.absorbed += (map_.bias * r / z).sum().item()
        return torch.einsum("...j,ji,...i->...j", x, map_.weight, r / z)

    def norm(self, x: Tensor, spec: NormSpec | None, r: Tensor) -> Tensor:
        """Proposition 3.4: the division by the standard deviation, and the weight, pass relevance on unchanged."""
        if spec is None:
            return r
        centred = x - x.mean(-1, keepdim=True) if spec.centre else x
        y = centred / (centred.square().mean(-1, keepdim=True) + spec.eps).sqrt()
        y = y if spec.weight is None else y * spec.weight
        if spec.bias is not None:
            self.absorbed += (spec.bias * r / (y + spec.bias)).sum().item()
            r = y * r / (y + spec.bias)
        if not spec.centre:
            return r
        d = x.shape[-1]
        centre = torch.eye(d, dtype=x.dtype) - 1 / d
        return torch.einsum("...j,ji,...i->...j", x, centre, r / centred)

    def softmax(self, logits: Tensor, r: Tensor) -> Tensor:
        """Proposition 3.1: ``R_i = x_i (R_i - s_i sum_j R_j)``; what is missing the expansion's bias has taken."""
        s = logits.softmax(-1)
        finite = logits.masked_fill(logits.isinf(), 0)
        passed = finite * (r - s * r.sum(-1, keepdim=True))
        self.absorbed += (r.sum() - passed.sum()).item()
        return passed

    def product(self, a: Tensor, b: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """Proposition 3.3: ``R_ji = sum_p a_ji b_ip R_jp / (2 o_jp)``, and likewise for ``b``."""
        share = r / (2 * (a @ b))
        return a * (share @ b.transpose(-1, -2)), b * (a.transpose(-1, -2) @ share)

    def attention(self, spec: AttentionSpec, u: Tensor, r: Tensor) -> Tensor:
        """``u`` and relevance ``[i, d]``; one head at a time."""
        n, size = len(u), spec.query.weight.shape[1] // spec.heads
        q, k, v = (m.weight.new_tensor(0) + m(u) for m in (spec.query, spec.key, spec.value))
        r_q, r_k, r_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        allowed = AttentionPattern(q.view(1, 1, n, -1), k.view(1, 1, n, -1), 1.0, spec.causal, spec.window).allowed()
        heads, outputs = [], []
        for h in range(spec.heads):
            own = slice(h * size, (h + 1) * size)
            g = h // (spec.heads // spec.kv_heads)
            shared = slice(g * size, (g + 1) * size)
            logits = spec.scale * q[:, own] @ k[:, shared].T
            logits = logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)
            heads.append((own, shared, logits))
            outputs.append(logits.softmax(-1) @ v[:, shared])
        r_mixed = self.linear(torch.cat(outputs, -1), spec.out, r)
        for own, shared, logits in heads:
            r_alpha, r_value = self.product(logits.softmax(-1), v[:, shared], r_mixed[:, own])
            r_logits = self.softmax(logits, r_alpha)
            # The logits that a mask puts to minus infinity have no relevance.
            share = r_logits / (2 * (q[:, own] @ k[:, shared].T))
            r_q[:, own] += q[:, own] * (share @ k[:, shared])
            r_k[:, shared] += k[:, shared] * (share.T @ q[:, own])
            r_v[:, shared] += r_value
        return self.linear(u, spec.query, r_q) + self.linear(u, spec.key, r_k) + self.linear(u, spec.value, r_v)

    def feed_forward(self, spec: FeedForwardSpec, u: Tensor, r: Tensor) -> Tensor:
        """Equation 9: an activation passes relevance on unchanged; proposition 3.2: a gate and its value get half."""
        act = ACTIVATIONS[spec.activation]
        if spec.gate is None:
            return self.linear(u, spec.into, self.linear(act(spec.into(u)), spec.out, r))
        r_hidden = self.linear(act(spec.gate(u)) * spec.into(u), spec.out, r)
        return self.linear(u, spec.gate, r_hidden / 2) + self.linear(u, spec.into, r_hidden / 2)

    def op(self, op: AttentionSpec | FeedForwardSpec, u: Tensor, r: Tensor) -> Tensor:
        return self.attention(op, u, r) if isinstance(op, AttentionSpec) else self.feed_forward(op, u, r)


ACTIVATIONS = {
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "relu": torch.relu,
    "tanh": torch.tanh,
}


def normed(spec: NormSpec | None, x: Tensor) -> Tensor:
    return relevance.norm(spec, x[None])[0]


def norms_of(sublayer) -> list[NormSpec | None]:
    """Before each operation: a network's own, or that of all."""
    return [getattr(op, "norm", None) or sublayer.pre_norm for op in sublayer.ops]


def ops_of(sublayer, x: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """What goes into the operations, what comes out of each, and the sum before its norm; by the functions tested."""
    read = [normed(norm, x) for norm in norms_of(sublayer)]
    run = {AttentionSpec: relevance.attention, FeedForwardSpec: relevance.feed_forward}
    outputs = [run[type(op)](op, u[None])[0] for op, u in zip(sublayer.ops, read, strict=True)]
    return read, outputs, torch.stack(outputs).sum(0)


def relevance_by_hand(layers, steps, position: int, x: Tensor, target: int) -> tuple[Tensor, float, float]:
    """Scores ``[i]`` of ``x`` ``[i, d]``, what was absorbed, and the logit."""
    tape, state = [], x
    for sublayer in (part for layer in layers for part in layer):
        read, outputs, branch = ops_of(sublayer, state)
        residual = state + normed(sublayer.out_norm, branch)
        tape.append((sublayer, state, read, outputs, branch, residual))
        state = normed(sublayer.post_norm, residual)
    inputs, h = [], state[position]
    for step in steps:
        inputs.append(h)
        h = step.map(h) if step.activation is None else ACTIVATIONS[step.activation](step.map(h))

    back = Backward()
    r = torch.zeros_like(h)
    r[target] = h[target]
    for step, before in zip(reversed(steps), reversed(inputs), strict=True):
        r = back.linear(before, step.map, r)
    r_state = torch.zeros_like(x)
    r_state[position] = r
    for sublayer, before, read, outputs, branch, residual in reversed(tape):
        r_residual = back.norm(residual, sublayer.post_norm, r_state)
        share = r_residual / residual  # equation 8 for a sum
        r_branch = back.norm(branch, sublayer.out_norm, (residual - before) * share)
        r_state = before * share
        # A norm that several read takes the relevance of all of them: its bias counts in their sum, which is linear.
        for op, norm, u, output in zip(sublayer.ops, norms_of(sublayer), read, outputs, strict=True):
            r_state = r_state + back.norm(before, norm, back.op(op, u, output * r_branch / branch))
    return r_state.sum(-1), back.absorbed, h[target].item()


def by_autograd(layers, steps, position: int, x: Tensor, target: int) -> tuple[Tensor, Tensor]:
    x = x[None].clone().requires_grad_()
    logits = relevance.head(steps, relevance.forward(layers, x)[:, position])
    return relevance.gradient_times_input(logits[:, target], x)[0], logits[0].detach()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", random_models.KINDS)
def test_gradient_times_input_is_the_relevance_of_the_equations(kind, seed):
    model = random_model(kind, seed, b=1)
    parts = (model.specs, model.steps, model.position, model.embedding[0])
    scores, logits = by_autograd(*parts, target=1)
    assert torch.allclose(logits, model.logits[0], rtol=1e-10), "the function itself is unchanged"
    expected, absorbed, logit = relevance_by_hand(*parts, target=1)
    size = expected.abs().max().item()
    assert torch.allclose(scores, expected, rtol=0, atol=DIVIDED * size)
    # Nothing is lost but what the constant terms take.
    assert scores.sum().item() + absorbed == pytest.approx(logit, abs=DIVIDED * (abs(absorbed) + size))


def without_biases(part):
    """The same specification with every bias left out."""
    if isinstance(part, tuple):
        return tuple(without_biases(entry) for entry in part)
    if isinstance(part, (Affine, NormSpec)):
        return replace(part, bias=None)
    if is_dataclass(part):
        return replace(part, **{f.name: without_biases(getattr(part, f.name)) for f in fields(part)})
    return part


def with_frozen_attention(part):
    """The same specification with keys that are 0, so that every token is attended alike."""
    if isinstance(part, tuple):
        return tuple(with_frozen_attention(entry) for entry in part)
    if isinstance(part, AttentionSpec):
        return replace(part, key=Affine(torch.zeros_like(part.key.weight), None))
    if is_dataclass(part):
        return replace(part, **{f.name: with_frozen_attention(getattr(part, f.name)) for f in fields(part)})
    return part


@pytest.mark.parametrize("kind", random_models.KINDS)
def test_without_biases_the_softmax_alone_takes_relevance(kind):
    model = random_model(kind, 0, b=1)
    layers, steps = without_biases(model.specs), without_biases(model.steps)
    parts = (layers, steps, model.position, model.embedding[0])
    scores, logits = by_autograd(*parts, target=0)
    expected, absorbed, logit = relevance_by_hand(*parts, target=0)
    assert torch.allclose(scores, expected, rtol=0, atol=DIVIDED * expected.abs().max().item())
    assert scores.sum().item() + absorbed == pytest.approx(logit, abs=DIVIDED * (abs(absorbed) + 1))
    # Layers without attention conserve it exactly, to rounding.
    feed_forward = tuple(
        tuple(
            replace(s, ops=ops) for s in layer if (ops := tuple(o for o in s.ops if not isinstance(o, AttentionSpec)))
        )
        for layer in layers
    )
    scores, logits = by_autograd(feed_forward, steps, model.position, model.embedding[0], target=0)
    assert scores.sum().item() == pytest.approx(logits[0].item(), rel=1e-10)


def test_a_softmax_of_zeros_takes_half_of_what_its_product_passes_on():
    """By hand: one layer ``o = A V`` with logits 0. The softmax gets half, of which ``x_i = 0`` passes on none."""
    p = random_models.Parts()
    spec = with_frozen_attention(without_biases(p.attention()))
    x = p.normal(1, 5, random_models.D).requires_grad_()
    out = relevance.attention(spec, x)
    direction = p.normal(random_models.D)
    scores = relevance.gradient_times_input((out[:, 0] @ direction), x)
    values = x.detach()[0] @ spec.value.weight @ spec.out.weight / 5  # what each token adds to every position
    assert torch.allclose(scores[0], values @ direction / 2, rtol=1e-10)
    assert scores.sum().item() == pytest.approx((out[0, 0] @ direction).item() / 2, rel=1e-10)


# Each rule alone, against its equation.


def test_the_rule_of_an_activation_is_the_identity():
    z = torch.tensor([-2.0, -0.1, 0.3, 4.0], dtype=torch.float64, requires_grad=True)
    for name, function in ACTIVATIONS.items():
        y = relevance.activation(name, z)
        assert torch.allclose(y, function(z))
        r = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
        (gradient,) = torch.autograd.grad(y, z, grad_outputs=torch.where(y == 0, 0, r / y))
        assert torch.allclose(z.detach() * gradient, torch.where(y == 0, 0, r))
    zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(relevance.activation("gelu", zero).sum(), zero)
    assert gradient.item() == 0.5  # theta(0), and no 0/0


def test_the_rule_of_a_norm_is_the_identity_after_the_centring():
    x = torch.tensor([[[1.0, 2.0, 6.0]]], dtype=torch.float64, requires_grad=True)
    rms = NormSpec(torch.tensor([2.0, -1.0, 3.0], dtype=torch.float64), None, 1e-6, centre=False)
    y = relevance.norm(rms, x)
    r = torch.tensor([[[1.0, 2.0, 3.0]]], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(y, x, grad_outputs=r / y)
    assert torch.allclose(x.detach() * gradient, r)
    y = relevance.norm(NormSpec(None, None, 0.0), x)  # centred: (-2, -1, 3)
    (gradient,) = torch.autograd.grad(y, x, grad_outputs=r / y)
    # R_j = x_j sum_i (delta_ij - 1/3) R_i / c_i with R / c = (-1/2, -2, 1), whose mean is -1/2
    expected = torch.tensor([[[0.0, -3.0, 9.0]]], dtype=torch.float64)
    assert torch.allclose(x.detach() * gradient, expected)
    assert expected.sum() == r.sum()


def test_the_rule_of_a_product_gives_half_to_each():
    a = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([5.0], dtype=torch.float64, requires_grad=True)
    y = relevance.half(a) * relevance.half(b)
    assert y.item() == 10
    g_a, g_b = torch.autograd.grad(y, (a, b))
    assert (a * g_a).item() == (b * g_b).item() == 5


def test_the_rule_of_a_softmax_is_its_gradient():
    x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    s = x.softmax(-1)
    r = torch.tensor([1.0, 2.0, -4.0], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(s, x, grad_outputs=r / s)
    assert torch.allclose(x.detach() * gradient, (x * (r - s * r.sum())).detach())


# The method on models.


def encoded(ids: list[int]) -> Encoded:
    special = tuple(k in (0, len(ids) - 1) for k in range(len(ids)))
    return Encoded({"input_ids": torch.tensor(ids)}, tuple(map(str, ids)), (None,) * len(ids), special, ())


def scores_of(model, *ids: list[int], target: int = 1) -> list[Tensor]:
    problem = Problem(model, SimpleNamespace(), [encoded(row) for row in ids], [target] * len(ids))
    return get_method("attn-lrp").score(problem)


@pytest.mark.parametrize("family", models.FAMILIES)
def test_models_get_the_relevance_of_the_equations(family):
    model = classifier(family, labels=3)
    ids = [IDS, [101, 8, 30, 102]]
    for row, found in zip(ids, scores_of(model, *ids, target=2), strict=True):
        spec = specification(model)
        embedding = linearize(model, {"input_ids": torch.tensor([row])}).embedding[0]
        expected, absorbed, logit = relevance_by_hand(spec.layers, spec.head, spec.read, embedding, 2)
        with torch.no_grad():
            assert logit == pytest.approx(model(input_ids=torch.tensor([row])).logits[0, 2].item(), rel=1e-9)
        assert found.dtype == torch.float64 and found.shape == (len(row),)
        assert torch.allclose(found, expected, rtol=0, atol=DIVIDED * expected.abs().max().item())


@pytest.mark.slow
def test_the_demo_model_gets_the_relevance_of_the_equations():
    model, tokenizer = load_demo()
    model = model.double()
    spec = specification(model)
    text = Reader(tokenizer, 512).read_one("A gripping film, and a moving one.", "the text")
    (found,) = get_method("attn-lrp").score(Problem(model, tokenizer, [text], [1]))
    embedding = linearize(model, {name: value[None] for name, value in text.inputs.items()}).embedding[0]
    expected, absorbed, logit = relevance_by_hand(spec.layers, spec.head, spec.read, embedding, 1)
    size = expected.abs().max().item()
    assert torch.allclose(found, expected, rtol=0, atol=DIVIDED * size)
    assert found.sum().item() + absorbed == pytest.approx(logit, abs=DIVIDED * (abs(absorbed) + size))


def test_a_class_that_the_model_has_not_is_refused():
    for target in (-1, 2):
        with pytest.raises(InputError, match=f"classes holds {target}, and the model has the classes 0 to 1"):
            scores_of(classifier(), IDS, target=target)


def test_whatever_mode_the_caller_is_in_the_scores_are_the_same():
    model = classifier(dtype=torch.float32)
    (expected,) = scores_of(model, IDS)
    problem = Problem(model, None, [encoded(IDS)], [1])
    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    for mode in (torch.no_grad(), torch.inference_mode(), autocast, torch.device("meta")):
        with mode:
            (found,) = get_method("attn-lrp").score(problem)
        assert torch.equal(found, expected) and not found.is_inference() and not found.requires_grad


def test_the_model_is_left_as_it_was():
    (expected,) = scores_of(classifier(), IDS)
    model = classifier(hidden_dropout_prob=0.3)
    for n, module in enumerate(model.modules()):
        module.training = n % 2 == 0
    for n, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(n % 2 == 0)
    with unchanged(model):
        assert torch.equal(scores_of(model, IDS)[0], expected)
    with torch.inference_mode():
        model = classifier()
    with unchanged(model):
        assert torch.equal(scores_of(model, IDS)[0], expected)


def test_a_model_that_computes_something_else_is_refused():
    model = classifier()
    model.bert.encoder.layer[1].register_forward_hook(lambda module, args, output: 2 * output)
    before = snapshot(model)
    with pytest.raises(UnsupportedModelError, match="the head"):
        scores_of(model, IDS)
    assert snapshot(model) == before
