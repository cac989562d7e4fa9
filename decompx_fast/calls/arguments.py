"""The keywords of a call, typed once: for editors, type checkers and ``help``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

if TYPE_CHECKING:
    import torch

    from ..config import (
        Aggregation,
        Approximation,
        BiasRule,
        GateRule,
        SplitRule,
        Stage,
        StageOutput,
        TanhApproximation,
        Variant,
    )

_Function = TypeVar("_Function", bound=Callable[..., Any])


#: Arguments that tell what kind of results there will be: overloads name them.
TELLING = ("on_error", "is_split_into_words")


class Options(TypedDict, total=False):
    """Single options of :class:`decompx_fast.DecompXConfig`, which says what each is."""

    bias: BiasRule
    bias_token_split: SplitRule | None
    variant: Variant
    activation: Approximation
    tanh: TanhApproximation
    gate: GateRule
    ln1: bool
    ffn: bool
    ln2: bool
    head: bool
    aggregation: Aggregation
    row_normalize: bool | None
    stages: Sequence[Stage]
    stage_output: StageOutput


class Arguments(Options, total=False):
    """Of :meth:`decompx_fast.DecompX.explain_iter`, which says what each is, but for :data:`TELLING`."""

    targets: Any
    at: Any
    top_k: int | None
    max_answer_tokens: int | None
    max_seq_len: int | None
    doc_stride: int | None
    ignore_labels: Sequence[str] | None
    continuation: Any
    generate: Any
    seed: int | None
    contrast: Literal["mean"] | None
    answer: Literal["tokens", "sum", "both"] | None
    sources: Any
    focus: int | None
    truncate: bool
    ids: Any
    batch_size: int | None
    engine: Literal["auto", "reference", "forward", "adjoint"] | None
    dtype: str | torch.dtype | None
    progress: bool | None
    path: Literal["auto", "direct", "operator"]
    backend: str
    workspace_bytes: int | None
    storage: Literal["memory", "disk"]
    folder: str | None
    positions: Sequence[int]
    check: Literal["standard", "thorough"]
    read_ahead: int | None
    steps: int | Literal["auto", "search"] | None
    baseline: Literal["mask", "pad", "remove"] | None


def spelled_out(as_in: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Show a function, which hands its keywords on, with the keywords of what takes them, and with all options.

    Args:
        as_in: a method that names them, with their defaults.
    """
    from ..config import DecompXConfig

    taken = inspect.signature(as_in).parameters.values()
    # Where an option is not given, the explainer's own holds.
    options = [one.replace(default=...) for one in inspect.signature(DecompXConfig).parameters.values()]
    named = [one for one in (*taken, *options) if one.kind is inspect.Parameter.KEYWORD_ONLY]

    def show(function: _Function) -> _Function:
        own = inspect.signature(function)
        first = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        known = {one.name for one in first}
        keywords = [one for one in named if one.name not in known]
        function.__signature__ = own.replace(parameters=[*first, *keywords])  # type: ignore[attr-defined]
        return function

    return show
