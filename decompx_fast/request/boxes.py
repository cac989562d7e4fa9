"""Where tokens stand on a page: the boxes ``(x0, y0, x1, y1)`` that layout models take beside the token ids."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .forms import as_tensor, is_whole

#: What models and encodings call them.
BOXES = "bbox"


def box_rows(value: Any) -> list[Tensor]:
    """The boxes of each row of an encoding, ``[i, 4]`` int64; those of a single row are one.

    Args:
        value: ``[i, 4]`` or ``[b, i, 4]``: a tensor, an array, or lists that may be ragged.

    Raises:
        InputError: for what is no boxes of whole numbers.
    """
    try:
        rows = [as_tensor(value)] if _is_one_row(value) else [as_tensor(row) for row in value]
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError, OverflowError) as error:
        raise InputError(f"{BOXES} cannot be read as rows of boxes of four whole numbers ({error})") from error
    for row in rows:
        if row.ndim != 2 or row.shape[1] != 4 or not is_whole(row):
            raise InputError(
                f"{BOXES} must be [i, 4] or [b, i, 4] whole numbers, (x0, y0, x1, y1) for each token, got {row.dtype} "
                f"rows of the shape {list(row.shape)}"
            )
    return [row.to(torch.int64) for row in rows]


def _is_one_row(value: Any) -> bool:
    if hasattr(value, "ndim"):
        return bool(value.ndim == 2)
    return not hasattr(value[0][0], "__len__")  # lists: a box of the first row, or a number of the first box


def check_boxes(boxes: Tensor, where: str) -> None:
    """Refuse boxes that end before they begin, for which a model has no width or height.

    Args:
        boxes: ``[i, 4]``.
        where: what the message calls the input.

    Raises:
        InputError: names the first one and its token.
    """
    backwards = (boxes[:, 2] < boxes[:, 0]) | (boxes[:, 3] < boxes[:, 1])
    if backwards.any():
        token = int(backwards.nonzero()[0])
        raise InputError(
            f"{where} holds the box {boxes[token].tolist()} in {BOXES} for token {token}, which ends before it begins: "
            "give (x0, y0, x1, y1) with x0 <= x1 and y0 <= y1"
        )
