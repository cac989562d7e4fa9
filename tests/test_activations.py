"""Each activation against torch's and transformers' own, its slope against autograd, its limit at 0."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers.activations import ACT2FN

from decompx_fast.activations import ACTIVATIONS, ALIASES, get_activation, linear_piece
from decompx_fast.errors import UnsupportedModelError

TORCH = {
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "quick_gelu": lambda z: z * torch.sigmoid(1.702 * z),
    "relu": F.relu,
    "relu2": lambda z: F.relu(z) ** 2,
    "silu": F.silu,
    "tanh": torch.tanh,
}

#: ``theta(0)``, the limit of ``act(z) / z``; for ReLU, whose limits differ, that from the left.
LIMITS = {"gelu": 0.5, "gelu_tanh": 0.5, "quick_gelu": 0.5, "relu": 0.0, "relu2": 0.0, "silu": 0.5, "tanh": 1.0}

NAMES = sorted([*ACTIVATIONS, *ALIASES])


def points(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Both signs, from the smallest to where every activation is a line, and 0."""
    sizes = torch.cat([torch.logspace(-30, 1.5, 300, dtype=torch.float64), torch.linspace(0.01, 12, 200)])
    return torch.cat([-sizes.flip(0), torch.zeros(1), sizes]).to(dtype)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_is_that_of_torch(name):
    z = points()
    # Far out on the left torch's own cancel, to an absolute error of one rounding of z.
    assert torch.allclose(get_activation(name)(z), TORCH[name](z), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", [name for name in NAMES if name in ACT2FN])
def test_aliases_are_those_of_transformers(name):
    z = points()
    # `gelu_fast` writes the square root of 2 / pi with 10 digits.
    assert torch.allclose(get_activation(name)(z), ACT2FN[name](z), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slope_is_the_derivative(name):
    z = points()
    z = z[z != 0] if name == "relu" else z
    derivative = torch.func.vmap(torch.func.grad(TORCH[name]))(z)
    assert torch.allclose(get_activation(name).slope(z), derivative, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_theta_at_zero_is_the_limit(name, dtype):
    tiny = torch.finfo(dtype).tiny
    z = torch.tensor([0.0, -0.0, tiny, -tiny], dtype=dtype)
    theta = get_activation(name).theta(z)
    assert theta.dtype == dtype
    expected = torch.tensor([LIMITS[name]] * 4, dtype=dtype)
    if name == "relu":
        expected[2] = 1
    if name == "relu2":
        expected[2] = tiny
    assert torch.equal(theta, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # what pre-activations are computed in
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_far_out_nothing_is_nan(name, dtype):
    z = torch.tensor([-1e12, -300, -20, 20, 300, 1e12], dtype=torch.float64).to(dtype)
    activation = get_activation(name)
    for values in (activation(z), activation.theta(z), activation.slope(z)):
        assert values.isfinite().all()
    rounded = TORCH[name](z.double())
    assert torch.allclose(activation(z).double(), rounded, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_zero_origin_needs_no_intercept(name):
    z, activation = points(), get_activation(name)
    slope, intercept = linear_piece(activation, z, "zero_origin")
    assert intercept is None
    assert torch.equal(slope * z, activation(z))


@pytest.mark.parametrize("name", NAMES)
def test_tangent_meets_the_activation(name):
    z, activation = points(), get_activation(name)
    slope, intercept = linear_piece(activation, z, "linear")
    assert torch.equal(slope, activation.slope(z))
    # The two parts are larger than their sum, by rounding of the larger.
    assert ((slope * z + intercept - activation(z)).abs() <= 1e-15 * (1 + z.abs())).all()


@pytest.mark.parametrize("name", NAMES)
def test_relu_approximation_is_a_mask(name):
    z = points()
    slope, intercept = linear_piece(get_activation(name), z, "relu")
    assert intercept is None
    assert torch.equal(slope, (z > 0).double())


@pytest.mark.parametrize("name", ["mish", "GELU", "", "gelu_10"])
def test_unknown_activations_are_refused(name):
    with pytest.raises(UnsupportedModelError, match=f"'{name}' cannot be linearised.*gelu, gelu_accurate.*silu"):
        get_activation(name)


def test_unknown_approximation_is_an_error():
    with pytest.raises(ValueError, match="approximation='cubic'.*'zero_origin', 'linear' or 'relu'"):
        linear_piece(get_activation("gelu"), torch.zeros(1), "cubic")
