"""What the forward engine can be asked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...config import DecompXConfig
from ...errors import InputError, OptionError

#: The stages that this engine can keep: the others never exist for all sources at once.
STAGES = ("encoder", "aggregated", "pooler")


def check_options(config: DecompXConfig) -> None:
    """Whether this engine has these options.

    Raises:
        OptionError: names the option and the engine that has it.
    """
    ways = "use engine='reference'"
    if config.aggregation != "vector":
        raise OptionError(f"aggregation={config.aggregation!r} is not in the forward engine: {ways}")
    for stage in config.stages:
        if stage not in STAGES:
            raise OptionError(
                f"stages={stage!r} is not kept by the forward engine, which keeps {', '.join(STAGES)}: {ways}"
            )
    if config.stages and config.stage_output == "distance":
        raise OptionError(f"stage_output='distance' is not in the forward engine: {ways}")


def check_positions(positions: Sequence[int], n: int) -> tuple[int, ...]:
    """The positions, counted from the start.

    Raises:
        InputError: for what is no position of inputs with ``n`` tokens.
    """
    for position in positions:
        if isinstance(position, bool) or not isinstance(position, int) or not -n <= position < n:
            raise InputError(f"positions holds {position!r}: give whole numbers from {-n} to {n - 1} for {n} tokens")
    return tuple(position % n for position in positions)


def sources_of_tokens(sources: Tensor, b: int, n: int) -> list[list[int]]:
    """The source of each token, on the host.

    Raises:
        InputError: if they are not numbered.
    """
    if tuple(sources.shape) != (b, n) or sources.is_floating_point() or sources.dtype == torch.bool:
        raise InputError(
            f"sources must be integers of the shape [{b}, {n}], one for each token, got {sources.dtype} "
            f"{list(sources.shape)}"
        )
    found: list[list[int]] = sources.tolist()
    if min(map(min, found)) < 0:
        raise InputError(f"sources are numbered from 0, got {min(map(min, found))}")
    return found
