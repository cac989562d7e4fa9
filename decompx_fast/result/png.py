"""PNG files of 8-bit colours: written, and read back where this wrote them."""

from __future__ import annotations

import struct
import zlib

import torch
from torch import Tensor

from ..errors import InputError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encode(pixels: Tensor) -> bytes:
    """A PNG of ``pixels`` ``[height, width, 3]`` uint8."""
    height, width, _ = pixels.shape
    unfiltered = torch.zeros(height, 1, dtype=torch.uint8)  # each row begins with the kind of its filter: none
    rows = torch.cat((unfiltered, pixels.reshape(height, 3 * width)), dim=1)
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", size), (b"IDAT", zlib.compress(bytes(rows.flatten().tolist()), 6)), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


def decode(png: bytes) -> Tensor:
    """What :func:`encode` was given.

    Raises:
        InputError: for anything else.
    """
    try:
        kind, size = png[12:16], struct.unpack(">IIBBBBB", png[16:29])
        start = 8 + 12 + 13
        length = int.from_bytes(png[start : start + 4], "big")
        rows = zlib.decompress(png[start + 8 : start + 8 + length])
        width, height, *form = size
        found = torch.tensor(list(rows), dtype=torch.uint8).view(height, 1 + 3 * width)
        if png[:8] != _SIGNATURE or kind != b"IHDR" or form != [8, 2, 0, 0, 0] or bool(found[:, 0].any()):
            raise ValueError("another kind of PNG")
        return found[:, 1:].reshape(height, width, 3).contiguous()
    except (ValueError, RuntimeError, struct.error, zlib.error) as error:
        raise InputError(f"the picture cannot be read back ({error}): it is no PNG that this package wrote") from error


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
