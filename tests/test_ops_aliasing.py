"""What an op writes shares no memory with what it reads, nor with itself: checked for every op and argument."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from decompx_fast import ops
from decompx_fast.errors import InputError
from decompx_fast.ops import checks

N_B, N_I, N_K, N_D = 2, 3, 5, 8
SCALE = torch.ones(N_B, N_I)


def state() -> Tensor:
    return torch.randn(N_B, N_I, N_K, N_D, generator=torch.Generator().manual_seed(0))


def inside(t: Tensor, *shape: int) -> Tensor:
    """Some of the numbers of ``t`` in another shape: a row of the state as a constant."""
    return t.flatten()[: torch.Size(shape).numel()].view(shape)


#: name: op, tensors that are written, tensors that are read, as functions of one written tensor.
CASES = {
    "bias_split_": (
        lambda x, **read: ops.bias_split_(x, **{"bias": None} | read),
        {"bias": (N_D,), "residual": (N_B, N_I, N_K, N_D)},
    ),
    "layernorm_": (
        lambda x, **read: ops.layernorm_(x, **{"scale": SCALE, "bias": torch.ones(N_D)} | read),
        {"scale": (N_B, N_I), "weight": (N_D,), "bias": (N_D,)},
    ),
    "add_norm_": (
        lambda x, **read: ops.add_norm_(x, **{"branch": state(), "branch_bias": None, "scale": SCALE} | read),
        {"branch": (N_B, N_I, N_K, N_D), "branch_bias": (N_D,), "scale": (N_B, N_I), "weight": (N_D,), "bias": (N_D,)},
    ),
    "activation_": (
        lambda x, **read: ops.activation_(x, **{"slope": torch.ones(N_B, N_I, N_D)} | read),
        {"slope": (N_B, N_I, N_D), "bias": (N_D,), "intercept": (N_B, N_I, N_D)},
    ),
    "mixing": (
        lambda x, **read: ops.mixing(
            **{"alpha": torch.ones(N_B, 1, N_I, N_I), "p": state()[..., None, :]} | read, out=x[..., None, :]
        ),
        {"alpha": (N_B, 1, N_I, N_I), "p": (N_B, N_I, N_K, 1, N_D)},
    ),
    "network": (
        lambda x, **read: ops.network(
            **{"u": state(), "w_in": torch.ones(N_D, 4), "w_out": torch.ones(4, N_D), "slope": torch.ones(N_B, N_I, 4)}
            | read,
            out=x,
        ),
        {"u": (N_B, N_I, N_K, N_D), "w_in": (N_D, 4), "w_out": (4, N_D), "slope": (N_B, N_I, 4)},
    ),
    "position_apply": (
        lambda x, **read: ops.position_apply(**{"r": state(), "t": torch.ones(N_B, N_I, N_D, N_D)} | read, out=x),
        {"r": (N_B, N_I, N_K, N_D)},
    ),
    "position_operator": (
        lambda x, **read: ops.position_operator(
            **{"theta": torch.ones(N_B, N_I, 4), "w_in": torch.ones(N_D, 4), "w_out": torch.ones(4, N_D)} | read,
            out=x,
        ),
        {},
    ),
}
ALIASED = [(op, name) for op, (_, read) in CASES.items() for name in read]


@pytest.mark.parametrize(("op", "name"), ALIASED)
def test_reading_what_is_written_is_refused(op, name):
    call, read = CASES[op]
    x = state()
    before = x.clone()
    with pytest.raises(InputError, match=rf"{op}: `(x|a|out)` overlaps `{name}` in memory"):
        call(x, **{name: inside(x, *read[name])})
    assert torch.equal(x, before)


def test_a_row_as_the_bias_is_refused():
    x = state()
    with pytest.raises(InputError, match="bias_split_: `x` overlaps `bias` in memory"):
        ops.bias_split_(x, x[0, 0, 0])


@pytest.mark.parametrize("name", ["branch_bias", "scale", "weight", "bias"])
def test_a_branch_is_written_too(name):
    branch, sizes = state(), {"scale": (N_B, N_I)}
    given = {"branch_bias": None, "scale": SCALE} | {name: inside(branch, *sizes.get(name, (N_D,)))}
    with pytest.raises(InputError, match=f"add_norm_: `branch` overlaps `{name}` in memory"):
        ops.add_norm_(state(), branch, **given)


@pytest.mark.parametrize("name", ["theta", "w_in", "w_out"])
def test_an_operator_that_overlaps_its_weights_is_refused(name):
    out = torch.zeros(N_B, N_I, N_D, N_D)
    given = {"theta": torch.ones(N_B, N_I, 4), "w_in": torch.ones(N_D, 4), "w_out": torch.ones(4, N_D)}
    given[name] = inside(out, *given[name].shape)
    with pytest.raises(InputError, match=f"position_operator: `out` overlaps `{name}` in memory"):
        ops.position_operator(**given, out=out)


@pytest.mark.parametrize("name", ["w_in", "w_out", "norm_in.scale", "norm_in.weight", "norm_out.scale"])
def test_an_operator_that_overlaps_weights_which_are_folded_is_refused(name):
    """With norms, what is multiplied are copies of the weights: the user's own would be overwritten in silence."""
    out = torch.randn(N_B, N_I, N_D, N_D, generator=torch.Generator().manual_seed(3))
    before = out.clone()
    given = {"w_in": torch.ones(N_D, 4), "w_out": torch.ones(4, N_D)}
    norms = {f"norm_{end}.{part}": size for end in ("in", "out") for part, size in (("scale", SCALE), ("weight", None))}
    if name in given:
        given[name] = inside(out, *given[name].shape)
    else:
        norms[name] = inside(out, N_B, N_I) if name.endswith("scale") else inside(out, N_D)
    norm_in, norm_out = (
        ops.FrozenNorm(norms[f"norm_{end}.scale"], norms[f"norm_{end}.weight"]) for end in ("in", "out")
    )
    with pytest.raises(InputError, match=f"position_operator: `out` overlaps `{name}` in memory"):
        ops.position_operator(torch.ones(N_B, N_I, 4), **given, norm_in=norm_in, norm_out=norm_out, out=out)
    assert torch.equal(out, before)


@pytest.mark.parametrize("op", CASES)
def test_writing_to_a_view_that_negates_is_refused(op):
    """The imaginary part of a conjugate is one: what is in memory are the negatives of its numbers."""
    call, _ = CASES[op]
    shape = (N_B, N_I, N_D if op == "position_operator" else N_K, N_D)
    with pytest.raises(InputError, match=rf"{op}: `(x|a|out)` is written to, but is a view that negates.*resolve_neg"):
        call(torch._neg_view(torch.ones(shape)))


def test_what_is_only_read_may_be_a_view_that_negates():
    bias = torch.arange(1.0, N_D + 1)
    found, expected = (ops.bias_split_(state(), b) for b in (torch._neg_view(bias), -bias))
    assert torch.equal(found, expected)
    with pytest.raises(InputError, match="add_norm_: `branch` is written to, but is a view that negates"):
        ops.add_norm_(state(), torch._neg_view(state()), None, SCALE)


@pytest.mark.parametrize("op", CASES)
def test_writing_to_a_number_twice_is_refused(op):
    call, _ = CASES[op]
    overlapping = torch.zeros(400).as_strided(
        (N_B, N_I, N_K, N_D), (120, 40, 4, 1)
    )  # sources share half of their numbers
    if op == "position_operator":
        overlapping = torch.zeros(400).as_strided((N_B, N_I, N_D, N_D), (120, 40, 4, 1))
    with pytest.raises(InputError, match=rf"{op}: `(x|a|out)` is written to, .* share memory"):
        call(overlapping)


def test_a_branch_that_overlaps_itself_is_refused():
    branch = torch.zeros(400).as_strided((N_B, N_I, N_K, N_D), (120, 40, 4, 1))
    with pytest.raises(InputError, match="add_norm_: `branch` is written to, .* share memory"):
        ops.add_norm_(state(), branch, None, SCALE)


def test_two_tensors_on_one_array_overlap():
    """Each has a storage of its own; the memory is one."""
    array = np.zeros((N_B, N_I, N_K, N_D), np.float32)
    x, row = torch.from_numpy(array), torch.from_numpy(array[0, 0, 0])
    assert x.untyped_storage().data_ptr() == row.untyped_storage().data_ptr()
    shifted = torch.from_numpy(array[0, 1, 0])
    assert x.untyped_storage().data_ptr() != shifted.untyped_storage().data_ptr()
    for bias in (row, shifted):
        with pytest.raises(InputError, match="`x` overlaps `bias`"):
            ops.bias_split_(x, bias)


def test_neighbours_in_one_buffer_are_taken():
    """Numbers between those that are written may be read: columns of one tensor, or rows beside the state."""
    buffer = torch.randn(N_B, N_I, N_K + 1, 2 * N_D, generator=torch.Generator().manual_seed(1))
    x, bias, slope = buffer[:, :, :N_K, :N_D], buffer[0, 0, N_K, :N_D], buffer[:, :, 0, N_D:]
    expected = ops.bias_split_(x.clone(), bias.clone())
    ops.activation_(expected, slope.clone())
    ops.bias_split_(x, bias)
    ops.activation_(x, slope)
    assert torch.equal(x, expected)


MEMORY = torch.zeros(100)


@pytest.mark.parametrize(
    ("size", "strides", "apart"),
    [
        ((3, 4), (4, 1), True),
        ((4, 3), (1, 4), True),
        ((3, 4), (5, 1), True),
        ((3, 4), (3, 1), False),
        ((3, 4), (0, 1), False),
        ((1, 4), (0, 1), True),
        ((0, 4), (0, 1), True),
        ((2, 3, 4), (12, 4, 1), True),
        ((2, 3, 4), (4, 8, 1), True),
        ((2, 3, 4), (4, 4, 1), False),
        ((), (), True),
    ],
)
def test_a_tensor_that_overlaps_itself_is_told(size, strides, apart):
    t = MEMORY.as_strided(size, strides)
    offsets = [sum(n * s for n, s in zip(index, strides, strict=True)) for index in np.ndindex(*size)]
    assert apart is (len(set(offsets)) == len(offsets))
    assert checks.overlaps_itself(t) is not apart
