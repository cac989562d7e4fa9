"""A sentence encoder: a Transformer without a head, the pooling of its last states, and what follows.

The pooling belongs to no class of transformers, so this module runs what sentence-transformers would, and
:mod:`.families.sentence` describes it. What it gives is one vector for a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import InputError, NumericalError
from .architectures import describe, unwrap
from .linearization import only_device
from .model_run import plain_mode, run_model, undisturbed

Pooling = Literal["mean", "cls", "lasttoken"]

#: Poolings that sentence-transformers has besides, and why they are refused.
REFUSED_POOLINGS = {
    "max": "takes the largest number of each dimension, which is not linear in the states",
    "mean_sqrt_len_tokens": "divides by a root of the number of tokens, which cannot be described yet",
    "weightedmean": "weighs states by their places, which cannot be described yet",
}


class EmbeddingStep(nn.Module):
    """``norm(act(x W + b))`` on a pooled vector, each part optional.

    Args:
        linear, activation, norm: modules; what is ``None`` is left out.
    """

    def __init__(
        self, linear: nn.Module | None = None, activation: nn.Module | None = None, norm: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.linear, self.activation, self.norm = linear, activation, norm

    def forward(self, x: Tensor) -> Tensor:
        """``[b, d]`` to ``[b, d']``."""
        for module in (self.linear, self.activation, self.norm):
            x = x if module is None else module(x)
        return x


class SentenceEncoder(nn.Module):
    """One vector ``[b, d]`` of a text, which a similarity compares.

    Args:
        encoder: a supported Transformer without a head, such as ``BertModel``.
        pooling: of its last states: their ``mean``, the first (``cls``), or the last (``lasttoken``).
        steps: what is applied to the pooled vector, in order.
        normalized: whether the model divides its vectors by their length, so that their dot is their cosine.
        max_tokens: how many tokens a text may have, if fewer than the encoder has positions for.

    Raises:
        InputError: for a pooling that cannot be described, with the reason.
    """

    def __init__(
        self,
        encoder: nn.Module,
        pooling: Pooling,
        *,
        steps: Sequence[EmbeddingStep] = (),
        normalized: bool = False,
        max_tokens: int | None = None,
    ) -> None:
        super().__init__()
        check_pooling(pooling)
        self.encoder = unwrap(encoder)
        self.config: Any = self.encoder.config
        self.pooling = pooling
        self.steps = nn.ModuleList(steps)
        self.normalized = normalized
        self.max_tokens = max_tokens

    def forward(self, **inputs: Any) -> SimpleNamespace:
        """The vectors, before they are normalised, as ``logits``; for inputs without padding."""
        states = self.encoder(**inputs)[0]  # [b, i, d]
        x = states.mean(1) if self.pooling == "mean" else states[:, 0 if self.pooling == "cls" else -1]
        for step in self.steps:
            x = step(x)
        return SimpleNamespace(logits=x)


def check_pooling(pooling: Any) -> None:
    """Raise an InputError for a pooling that is not described here, with the reason."""
    known = get_args(Pooling)
    if isinstance(pooling, (list, tuple)) and len(pooling) > 1:
        raise InputError(f"pooling={pooling!r} joins several poolings, which cannot be described yet: one of {known}")
    if pooling not in known:
        reason = REFUSED_POOLINGS.get(pooling, "is none") if isinstance(pooling, str) else "is none"
        raise InputError(f"pooling={pooling!r} {reason}: use one of {', '.join(map(repr, known))}")


def embed(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """The model's own vectors ``[b, d]``, before they are normalised; in eval mode, whatever mode it is in.

    Args:
        model: a :class:`SentenceEncoder`, perhaps wrapped.
        inputs: as for :func:`.linearization.linearize`.

    Raises:
        NumericalError: if they are not finite.
    """
    model = unwrap(model)
    with plain_mode(only_device(model)), undisturbed(model) as own:
        found = run_model(own, describe(own), inputs).logits
    if not torch.isfinite(found).all():
        raise NumericalError(
            f"the embedding holds NaN or infinity in {found.dtype}: load the model in a wider dtype, or repair it"
        )
    return found
