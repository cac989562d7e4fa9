"""How a layer is cut up for the forward engine: an attention, and what is position-wise after it."""

from __future__ import annotations

from collections.abc import Sequence

from ...config import DecompXConfig
from ...errors import OptionError
from ...linearize.layer import Attention, Sublayer


def segments(sublayers: Sequence[Sublayer]) -> list[list[Sublayer]]:
    """A layer cut before each attention: what follows it up to the next is position-wise."""
    parts: list[list[Sublayer]] = []
    for sublayer in sublayers:
        if sublayer.has_attention or not parts:
            parts.append([])
        parts[-1].append(sublayer)
    return parts


def keeps_branch(sublayer: Sublayer, config: DecompXConfig) -> bool:
    """Whether what the attention gives cannot be added to the state at once: it is normed before, or another
    operation still reads the state."""
    others = config.ffn and len(sublayer.ops) > 1
    return others or (config.ln1 and sublayer.out_norm is not None)


def attention_of(sublayer: Sublayer) -> Attention:
    """The attention of a sublayer.

    Raises:
        OptionError: if it has several.
    """
    found = [op for op in sublayer.ops if isinstance(op, Attention)]
    if len(found) > 1:
        raise OptionError(
            f"a sublayer with {len(found)} attentions in parallel is not in the forward engine: use engine='reference'"
        )
    return found[0]


def rows_are_cheaper(wanted: int, n: int, d: int, heads: int) -> bool:
    """Whether so many rows after a last attention cost less one by one, mixed before they are projected, than all."""
    if wanted == 1:
        return True
    return wanted * (2 * heads * n * d + 4 * d**2) <= n * (4 * d**2 + 2 * n * d)
