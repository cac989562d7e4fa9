"""Activations as a slope through the origin: ``act(z) = theta(z) * z``.

Writing each activation by its ``theta`` needs no division, so ``theta(0)`` is the exact limit (1/2 for GELU, 1 for
tanh), never 0/0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import UnsupportedModelError

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
SQRT_2_PI = math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class Activation:
    """An activation: ``theta(z) = act(z) / z`` with its limit at 0, and ``slope(z) = act'(z)``; elementwise."""

    name: str
    theta: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]

    def __call__(self, z: Tensor) -> Tensor:
        return self.theta(z) * z


def _gelu_theta(z: Tensor) -> Tensor:
    return torch.special.ndtr(z)


def _gelu_slope(z: Tensor) -> Tensor:
    return torch.special.ndtr(z) + z * torch.exp(-0.5 * z * z) / SQRT_2_PI


def _gelu_tanh_theta(z: Tensor) -> Tensor:
    return torch.sigmoid(2 * SQRT_2_OVER_PI * (z + 0.044715 * z**3))


def _gelu_tanh_slope(z: Tensor) -> Tensor:
    theta = _gelu_tanh_theta(z)
    return theta + z * theta * (1 - theta) * 2 * SQRT_2_OVER_PI * (1 + 3 * 0.044715 * z * z)


def _scaled_silu(name: str, beta: float) -> Activation:
    def slope(z: Tensor) -> Tensor:
        theta = torch.sigmoid(beta * z)
        return theta + beta * z * theta * (1 - theta)

    return Activation(name, lambda z: torch.sigmoid(beta * z), slope)


def _softcap(name: str) -> Activation:
    """``cap tanh(z / cap)``, called ``softcap:cap``: what keeps the logits of some language models in bounds."""
    cap = float(name.partition(":")[2])
    return Activation(name, lambda z: _tanh_theta(z / cap), lambda z: 1 - torch.tanh(z / cap) ** 2)


def _step(z: Tensor) -> Tensor:
    return (z > 0).to(z.dtype)


def _tanh_theta(z: Tensor) -> Tensor:
    # Where z is 0 the limit is taken; everywhere else the quotient is accurate to rounding.
    zero = z == 0
    return torch.where(zero, torch.ones_like(z), torch.tanh(z) / torch.where(zero, torch.ones_like(z), z))


ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation("gelu", _gelu_theta, _gelu_slope),
    "gelu_tanh": Activation("gelu_tanh", _gelu_tanh_theta, _gelu_tanh_slope),
    "quick_gelu": _scaled_silu("quick_gelu", 1.702),
    "relu": Activation("relu", _step, _step),
    "silu": _scaled_silu("silu", 1.0),
    "tanh": Activation("tanh", _tanh_theta, lambda z: 1 - torch.tanh(z) ** 2),
}

#: How the names of caps begin, such as ``softcap:30.0``.
SOFTCAP = "softcap:"

#: The names that configurations use, and ours.
ALIASES: dict[str, str] = {
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "swish": "silu",
}


def get_activation(name: str) -> Activation:
    """The activation of that name.

    Raises:
        UnsupportedModelError: if it is none of those that can be linearised; lists them.
    """
    if name.startswith(SOFTCAP):
        return _softcap(name)
    activation = ACTIVATIONS.get(ALIASES.get(name, name))
    if activation is None:
        known = ", ".join(sorted([*ACTIVATIONS, *ALIASES]))
        raise UnsupportedModelError(f"the activation {name!r} cannot be linearised yet: supported are {known}")
    return activation


def linear_piece(activation: Activation, z: Tensor, approximation: str) -> tuple[Tensor, Tensor | None]:
    """The affine map ``slope * x + intercept`` that stands for an activation at the true pre-activation ``z``.

    Args:
        activation: from :func:`get_activation`.
        z: the true pre-activation, any shape and floating dtype.
        approximation: ``zero_origin`` (slope ``act(z) / z``, no intercept), ``linear`` (the tangent) or ``relu``
            (the mask ``z > 0``, no intercept, incomplete).

    Returns:
        ``(slope, intercept)``, each of the shape of ``z``; the intercept is ``None`` where there is none.

    Source: DecompX (ACL 2023), section 3 (zero-origin slope) and appendix A (linear approximation).
    """
    if approximation == "zero_origin":
        return activation.theta(z), None
    if approximation == "linear":
        slope = activation.slope(z)
        return slope, activation(z) - slope * z
    if approximation == "relu":
        return _step(z), None
    raise ValueError(f"approximation={approximation!r}: use 'zero_origin', 'linear' or 'relu'")
