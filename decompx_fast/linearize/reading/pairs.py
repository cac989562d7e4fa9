"""What models tell of two texts in one input by themselves, from the tokens that separate them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...errors import InputError


def question_types(inputs: Mapping[str, Tensor], *, separator: int) -> dict[str, Tensor]:
    """Which of the two texts each token is of, as BigBird has it where it is not told: the first ends at the first
    separator."""
    if "token_type_ids" in inputs:
        return {}
    ids = inputs["input_ids"]
    question = (ids == separator).int().argmax(-1, keepdim=True) + 1
    return {"token_type_ids": (torch.arange(ids.shape[1], device=ids.device) >= question).long()}


def global_question(inputs: Mapping[str, Tensor], *, separator: int, choice: bool) -> dict[str, Tensor]:
    """The tokens that Longformer's heads make global, all of the question, or of the choice that stands behind it.

    Raises:
        InputError: for a text that has not the three separators of a pair, where the model would stop.
    """
    if "global_attention_mask" in inputs:
        return {}
    is_end = inputs["input_ids"] == separator
    if bool((is_end.sum(1) != 3).any()):
        raise InputError(
            f"this Longformer makes the tokens before the first separator global, and needs a pair of texts with three "
            f"separators (token {separator}) in all, but the inputs have {is_end.sum(1).tolist()}: give pairs of texts"
        )
    end = is_end.int().argmax(1, keepdim=True)
    position = torch.arange(is_end.shape[1], device=is_end.device)
    return {"global_attention_mask": (position > end + 1 if choice else position < end).long()}
