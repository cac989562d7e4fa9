"""The picture that was explained: what the model saw, cut into patches, and which source each patch belongs to."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .checks import owned
from .png import decode, encode


@dataclass(frozen=True, eq=False)
class Picture:
    """What a model saw, and how it was cut.

    Args:
        groups: ``[rows, cols]`` int64, the source that each patch belongs to.
        patch: ``(height, width)`` of a patch, in pixels.
        pixels: ``[rows * height, cols * width, 3]`` uint8, the preprocessed picture, as near to what it looked like as
            the processor's mean and deviation tell; ``None`` if it is not kept.

    Raises:
        InputError: if they do not fit together.
    """

    groups: Tensor
    patch: tuple[int, int]
    pixels: Tensor | None = None

    def __post_init__(self) -> None:
        groups = self.groups
        if groups.ndim != 2 or groups.dtype != torch.int64 or not groups.numel():
            raise InputError(f"groups must be int64 [rows, cols], got {groups.dtype} {list(groups.shape)}")
        object.__setattr__(self, "patch", (int(self.patch[0]), int(self.patch[1])))
        wanted = (groups.shape[0] * self.patch[0], groups.shape[1] * self.patch[1], 3)
        pixels = self.pixels
        if pixels is not None and (tuple(pixels.shape) != wanted or pixels.dtype != torch.uint8):
            raise InputError(f"pixels must be uint8 {list(wanted)}, got {pixels.dtype} {list(pixels.shape)}")
        object.__setattr__(self, "groups", owned(groups))
        object.__setattr__(self, "pixels", None if pixels is None else owned(pixels))

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and strings; the pixels are a PNG in base64."""
        png = None if self.pixels is None else base64.b64encode(encode(self.pixels)).decode()
        return {"groups": self.groups.tolist(), "patch": list(self.patch), "png": png}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Picture:
        """What :meth:`to_dict` made, also after JSON."""
        groups = torch.tensor(data["groups"], dtype=torch.int64, device="cpu")
        png = data.get("png")
        return cls(groups, tuple(data["patch"]), None if png is None else decode(base64.b64decode(png)))

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.groups.shape[0], self.groups.shape[1]

    def regrouped(self, ids: Tensor) -> Picture:
        """The same with other sources: ``ids`` ``[i]`` of all positions, which the sources are so far."""
        return replace(self, groups=ids[self.groups])

    def spread(self, scores: Tensor) -> Tensor:
        """Scores of sources ``[k]`` on the patches, ``[rows, cols]``: a source of several has its score in equal parts
        on them, so that sums are kept."""
        counts = torch.bincount(self.groups.flatten(), minlength=len(scores)).clamp_min(1)
        return (scores / counts.to(scores.dtype))[self.groups]
