"""Attributions by the call that captum's users write: ``attribute(input_ids, target=...)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import InputError

if TYPE_CHECKING:
    from ..explainer import DecompX


class DecompXAttribution:
    """DecompX with the call of captum's attribution methods, for code that is written for one of them.

    What is returned sums, with the delta, to the model's logit. There are no baselines and no steps, since nothing is
    integrated, and no hooks are left on the model.

    Args:
        explainer: of the model; its tokenizer is not used.
        **arguments: of :meth:`DecompX.explain`, such as ``bias="none"``, for every call.
    """

    def __init__(self, explainer: DecompX, **arguments: Any) -> None:
        self.explainer = explainer
        self.arguments = arguments

    def has_convergence_delta(self) -> bool:
        """True: :meth:`attribute` tells by how much the attributions do not add up to the logit."""
        return True

    def attribute(
        self,
        inputs: Tensor,
        *,
        target: int | Sequence[int] | Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        return_convergence_delta: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The score of each token for a class.

        Args:
            inputs: token ids with special tokens, int64 ``[b, k]``.
            target: index of the class: one for all rows, or one for each; None: what is predicted for each.
            attention_mask: ``[b, k]``, 1 for tokens and 0 for padding; None: there is no padding.
            token_type_ids: ``[b, k]``, the text of a pair that a token is in.
            return_convergence_delta: also return the sum of each row less the logit.

        Returns:
            Attributions ``[b, k]``, float32 or float64, on the device of ``inputs``, 0 for padding; and the deltas
            ``[b]`` if asked for.

        Raises:
            InputError: for inputs of another shape, or a class that the model does not have.
        """
        if not isinstance(inputs, Tensor) or inputs.ndim != 2 or inputs.is_floating_point() or not len(inputs):
            found = f"{inputs.dtype} {list(inputs.shape)}" if isinstance(inputs, Tensor) else type(inputs).__name__
            raise InputError(f"inputs must be token ids, integers [b, k], got {found}.")
        columns = _targets(target, len(inputs))
        encoding = {"input_ids": inputs}
        for name, value in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if value is not None:
                encoding[name] = value
        explained = self.explainer.explain(encoding, **self.arguments)
        mask = torch.ones_like(inputs) if attention_mask is None else attention_mask
        mask = mask.to(inputs.device).bool()
        rows, deltas = [], []
        for one, index in zip(explained, columns, strict=True):
            column = one.column(index)
            rows.append(one.scores[:, column])
            start = 0.0 if one.baseline_logits is None else one.baseline_logits[column].double()
            deltas.append(float(one.scores[:, column].double().sum() + start - one.target_logits[column].double()))
        attributions = torch.zeros(inputs.shape, dtype=rows[0].dtype, device=inputs.device)
        attributions[mask] = torch.cat(rows).to(inputs.device)
        if not return_convergence_delta:
            return attributions
        return attributions, torch.tensor(deltas, dtype=attributions.dtype, device=inputs.device)


def _targets(target: int | Sequence[int] | Tensor | None, rows: int) -> list[int | None]:
    """The class of each row."""
    given = target.tolist() if isinstance(target, Tensor) else target
    if given is None or isinstance(given, int):
        return [given] * rows
    found = list(given)
    if len(found) != rows or not all(isinstance(one, int) for one in found):
        raise InputError(f"target must be one class, or one for each of the {rows} rows, got {target!r}.")
    return [*found]
