"""What options of several commands take."""

from __future__ import annotations

from typing import Any

import click


class _Mebibytes(click.IntRange):
    """A whole number of MiB, as bytes."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        return super().convert(value, parameter, context) << 20


WORKSPACE = _Mebibytes(min=1)
#: As :data:`decompx_fast.engines.choose.CHECKS`, which cannot be read without torch.
CHECKS = ("standard", "thorough")
#: As :data:`decompx_fast.engines.storage.STORAGES`, likewise.
STORAGES = ("memory", "disk")
