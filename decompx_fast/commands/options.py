"""What options of several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


class _Mebibytes(click.IntRange):
    """A whole number of MiB, as bytes."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        return super().convert(value, parameter, context) << 20


class _Steps(click.IntRange):
    """A whole number, ``auto`` or ``search``."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if value in ("auto", "search"):
            return value
        try:
            return super().convert(value, parameter, context)
        except click.BadParameter:
            self.fail(f"{value!r}: use a whole number from 1, 'auto' or 'search'", parameter, context)


WORKSPACE = _Mebibytes(min=1)
STEPS = _Steps(min=1)
#: As :data:`decompx_fast.engines.choose.CHECKS`, which cannot be read without torch.
CHECKS = ("standard", "thorough")
#: As :data:`decompx_fast.engines.storage.STORAGES`, likewise.
STORAGES = ("memory", "disk")
#: As :data:`decompx_fast.request.versions.BASELINES`, for the same reason.
BASELINES = ("mask", "pad", "remove")
BASELINE_HELP = "What becomes of tokens then. [default: mask; of a search mask and remove]"
#: Of ``--sources focus``.
FOCUS = click.option(
    "--focus",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --sources focus: N tokens by themselves, all others in at most N groups. [default: 64]",
)


def path_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options of scores along paths."""
    for option in (
        click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Of the tokens drawn with --steps."),
        click.option("--baseline", type=click.Choice(BASELINES), help=BASELINE_HELP),
        click.option(
            "--steps",
            type=STEPS,
            metavar="N",
            help="Average over texts without the most important tokens, N of them or 'auto', and without random ones; "
            "'search': search for the order of the tokens.",
        ),
    ):
        command = option(command)
    return command
