"""A feed-forward network on one input, linearised: its weights, and the true input of its activation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from ..activations import get_activation
from .norm import Norm


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward network with its activation's input known.

    Plain: ``act(x W_1 + b_1) W_2 + b_2``. Gated: ``(act(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2``, where the second
    factor may be clamped, and a number may be added to it.

    Attributes:
        w_in, b_in: ``[d, f]``, ``[f]`` or ``None``.
        w_out, b_out: ``[f, d]``, ``[d]`` or ``None``.
        activation: a name of :mod:`decompx_fast.activations`.
        preactivation: ``[b, i, f]``, the true input of the activation.
        w_gate, b_gate: the gate's map, for a gated network.
        value: ``[b, i, f]``, the true ``x W_1 + b_1`` that the gate multiplies; ``None`` without a gate.
        norm: its own, in place of the sublayer's ``pre_norm``, or ``None``.
        limit: what ``value`` is clamped to, from both sides, or ``None``.
        shift: what is added to it then: ``act(g) * (u + shift)`` is a gated network and ``shift`` times a plain one.
    """

    kind: ClassVar[str] = "ffn"

    w_in: Tensor
    b_in: Tensor | None
    w_out: Tensor
    b_out: Tensor | None
    activation: str
    preactivation: Tensor
    w_gate: Tensor | None = None
    b_gate: Tensor | None = None
    value: Tensor | None = None
    norm: Norm | None = None
    limit: float | None = None
    shift: float = 0.0

    def frozen_gate(self, rows: slice = slice(None)) -> Tensor:
        """What ``x W_1 + b_1`` is multiplied by with the gate frozen, ``[b, i, f]`` of the positions ``rows``.

        A clamp counts as an activation: the slope through the origin that gives its true value.
        """
        gate = get_activation(self.activation)(self.preactivation[:, rows])
        if self.limit is None or self.value is None:
            return gate
        return gate * (self.limit / self.value[:, rows].abs().clamp_min(self.limit))

    def gate_factor(self, half: bool, rows: slice = slice(None)) -> Tensor | float | None:
        """What multiplies the activation of the gate where that is decomposed too: half of the value if ``half``, and
        what is added to the value. ``None`` if the gate is only frozen."""
        value = self.gated(rows)
        if value is None or not (half or self.shift):
            return None
        return 0.5 * value + self.shift if half else self.shift

    def gated(self, rows: slice = slice(None)) -> Tensor | None:
        """The true second factor less its shift, ``[b, i, f]`` of the positions ``rows``; ``None`` without a gate."""
        if self.value is None:
            return None
        value = self.value[:, rows]
        return value if self.limit is None else value.clamp(-self.limit, self.limit)

    @property
    def constants(self) -> dict[str, Tensor]:
        """What depends on the input."""
        return {"preactivation": self.preactivation} | ({} if self.value is None else {"value": self.value})

    def replace_constants(self, constants: Mapping[str, Tensor]) -> FeedForward:
        """The same with other :attr:`constants`."""
        changes: dict[str, Any] = dict(constants)
        return replace(self, **changes)

    def __call__(self, x: Tensor) -> Tensor:
        """The forward value, ``[b, i, d]``; ``x`` is not read again, since the pre-activations are known."""
        out = self.hidden() @ self.w_out
        return out if self.b_out is None else out + self.b_out

    def hidden(self) -> Tensor:
        """What the output's map is applied to, ``[b, i, f]``."""
        hidden, value = get_activation(self.activation)(self.preactivation), self.gated()
        return hidden if value is None else hidden * (value + self.shift if self.shift else value)
