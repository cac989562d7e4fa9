"""The ops give results that know nothing of gradients, so what is differentiated or transformed is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ops_cases import random
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

from decompx_fast import ops
from decompx_fast.errors import InputError

SHAPE = (2, 3, 5, 8)
VECTOR, SCALE = random(8).cpu(), random(2, 3, low=1).cpu()
SLOPE, W, T = random(2, 3, 8).cpu(), random(8, 8).cpu(), random(2, 3, 8, 8).cpu()
ALPHA = random(2, 1, 3, 3).cpu()


def state(seed: int = 1) -> Tensor:
    return random(*SHAPE, seed=seed).cpu()


#: Each op on tensors by name, so that each of them in turn can be one that is differentiated.
CALLS: dict[str, tuple[Callable[..., Tensor], dict[str, Tensor]]] = {
    "bias_split_": (ops.bias_split_, {"x": state(), "bias": VECTOR, "residual": state(2)}),
    "layernorm_": (ops.layernorm_, {"x": state(), "scale": SCALE, "weight": VECTOR, "bias": VECTOR.clone()}),
    "add_norm_": (
        ops.add_norm_,
        {"x": state(), "branch": state(2), "branch_bias": VECTOR, "scale": SCALE, "weight": VECTOR, "bias": VECTOR},
    ),
    "activation_": (ops.activation_, {"a": state(), "slope": SLOPE, "bias": VECTOR, "intercept": SLOPE}),
    "mixing": (ops.mixing, {"alpha": ALPHA, "p": state()[..., None, :], "out": state(2)[..., None, :]}),
    "functional_dots": (ops.functional_dots, {"x": state(), "g": SLOPE[:, :, None]}),
    "network": (
        ops.network,
        {
            "u": state(),
            "w_in": W,
            "w_out": W,
            "slope": SLOPE,
            "bias": VECTOR,
            "shares": state()[..., 0],
            "out": state(2),
        },
    ),
    "position_apply": (
        ops.position_apply,
        {"r": state(), "t": T, "shares": state()[..., :1], "u": SLOPE[:, :, None], "out": state(2)},
    ),
    "position_operator": (ops.position_operator, {"theta": SLOPE, "w_in": W, "w_out": W, "out": T.clone()}),
}
ARGUMENTS = [(op, name) for op, (_, tensors) in CALLS.items() for name in tensors]


def copies(op: str) -> tuple[Callable[..., Tensor], dict[str, Tensor]]:
    call, tensors = CALLS[op]
    return call, {name: t.clone() for name, t in tensors.items()}


@pytest.mark.parametrize(("op", "name"), ARGUMENTS)
def test_what_requires_grad_is_refused(op, name):
    call, tensors = copies(op)
    before = tensors[name].clone()
    for given in (tensors[name].requires_grad_(), tensors[name] * 1):  # a leaf, and what came from one
        with pytest.raises(InputError, match=rf"{op}: `{name}` requires grad, .* torch.no_grad\(\), or .detach\(\)"):
            call(**tensors | {name: given})
    assert torch.equal(tensors[name], before)


@pytest.mark.parametrize(("op", "name"), ARGUMENTS)
def test_without_grad_mode_weights_of_a_model_are_taken(op, name):
    call, tensors = copies(op)
    expected = call(**tensors).clone()
    for mode in (torch.no_grad, torch.inference_mode):
        _, tensors = copies(op)
        tensors[name].requires_grad_()
        with mode():
            assert torch.equal(call(**tensors), expected)
    _, tensors = copies(op)
    tensors[name].requires_grad_()
    assert torch.equal(call(**{key: t.detach() for key, t in tensors.items()}), expected)


@pytest.mark.parametrize("norm", ["norm_in", "norm_out"])
def test_a_norm_that_requires_grad_is_refused(norm):
    weight = VECTOR.clone().requires_grad_()
    with pytest.raises(InputError, match=f"position_operator: `{norm}.weight` requires grad"):
        ops.position_operator(SLOPE, W, W, **{norm: ops.FrozenNorm(SCALE, weight)})


@pytest.mark.parametrize(("op", "name"), ARGUMENTS)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyTorch's own, in jvp
def test_transforms_are_refused_in_our_words(op, name):
    call, tensors = copies(op)
    given = tensors.pop(name)

    def scalar(t):
        return call(**tensors, **{name: t}).sum()

    transformed = f"{op}: `{name}` is transformed by torch.func .* call it outside"
    with pytest.raises(InputError, match=transformed):
        vmap(scalar)(torch.stack([given, given]))
    with pytest.raises(InputError, match=f"{op}: `{name}` (requires grad|is transformed by torch.func)"):
        grad(scalar)(given)
    with pytest.raises(InputError, match=transformed):
        jvp(scalar, (given,), (given,))
    with forward_ad.dual_level():
        with pytest.raises(InputError, match=f"{op}: `{name}` carries a tangent .* forward-mode"):
            scalar(forward_ad.make_dual(given, given.clone()))


def test_what_is_not_transformed_may_be_used_inside_a_transform():
    x, g = CALLS["functional_dots"][1].values()
    expected = ops.functional_dots(x, g)
    got = vmap(lambda factor: factor * ops.functional_dots(x, g))(torch.tensor([1.0, 2.0]))
    assert torch.equal(got[0], expected) and torch.equal(got[1], 2 * expected)


class Split(torch.nn.Module):
    """A user's module with a weight that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(VECTOR.clone())

    def forward(self, x: Tensor) -> Tensor:
        return ops.bias_split_(x, self.bias)


def test_a_module_with_an_op_says_what_to_do():
    with pytest.raises(InputError, match="`bias` requires grad"):
        Split()(state())
    with torch.no_grad():
        assert torch.equal(Split()(state()), ops.bias_split_(state(), VECTOR))
        detached = functional_call(Split(), {"bias": VECTOR}, (state(),))
    assert torch.equal(detached, ops.bias_split_(state(), VECTOR))
