"""The options of the method, validated once, at construction."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from .bias_rules import LINEAR_RULES
from .errors import OptionError

BiasRule = Literal["absdot", "abssim", "norm", "equal", "cls", "dot", "bias_token", "none"]
SplitRule = Literal["absdot", "abssim", "norm", "equal", "cls", "dot"]
Variant = Literal["paper", "released"]
Approximation = Literal["zero_origin", "linear", "relu"]
TanhApproximation = Literal["zero_origin", "linear"]
GateRule = Literal["half", "value"]
Aggregation = Literal["vector", "rollout", "none"]
StageOutput = Literal["norm", "vector", "distance"]
Stage = Literal["attention", "res1", "ln1", "ffn", "res2", "encoder", "aggregated", "pooler"]

STAGES: tuple[str, ...] = get_args(Stage)

#: Rules whose shares do not depend on the decomposed vectors, so that a score is linear in the inputs.
LINEAR_BIAS_RULES = LINEAR_RULES


@dataclass(frozen=True, kw_only=True)
class DecompXConfig:
    """What is decomposed, and how (the defaults are the paper's full method).

    Args:
        bias: how a bias is shared among the sources. ``absdot``: by ``|b . u[k]|`` (the paper); ``abssim``: by the
            absolute cosine; ``norm``: by ``|u[k]|``; ``equal``: equally among the sources that can reach a position, by
            the masks of the attentions; ``cls``: all to the first token; ``dot``: by the signed ``b . u[k]``;
            ``bias_token``: collected in one extra source; ``none``: biases are left out, so scores do not add up to
            the logit.
        bias_token_split: with ``bias="bias_token"``, the rule that shares the collected biases among the tokens at
            the very end. ``None`` keeps them apart.
        variant: ``paper`` follows the published equations; ``released`` follows the authors' code, where the weights
            of the attention bias are taken after the residual and the value bias of the first layer follows the
            attention weights.
        activation: ``zero_origin``: slope ``act(z) / z``; ``linear``: the tangent, whose intercept is shared like a
            bias; ``relu``: the mask ``z > 0`` (incomplete, for ablation).
        tanh: the same for the tanh of a classification head.
        gate: for gated feed-forward networks ``act(g) * u``. ``half``: each factor receives half of the product, which
            is the more faithful (``bench/results/gates.md``); ``value``: ``act(g)`` is frozen and ``u`` decomposed.
        ln1, ffn, ln2, head: ``False`` leaves that component out of the decomposition (ablations).
        aggregation: ``vector``: the vectors are carried through all layers; ``rollout``: each layer on its own, the
            matrices of norms multiplied; ``none``: each layer on its own.
        row_normalize: for ``rollout``: divide each row of norms by its sum first. ``None``: yes for ``paper``, no for
            ``released``.
        stages: which intermediate stages to keep, of ``attention``, ``res1``, ``ln1``, ``ffn``, ``res2``,
            ``encoder``, ``aggregated``, ``pooler``; for every layer.
        stage_output: ``norm`` keeps ``|x[i,k]|``, ``vector`` the vectors themselves, ``distance`` the normalised
            L1 proximity of the released code.

    Raises:
        OptionError: for a value, or a combination of values, that does not exist.

    Source: Modarressi et al., ACL 2023, sections 3 and 4; the authors' configuration class for ``released``.
    """

    bias: BiasRule = "absdot"
    bias_token_split: SplitRule | None = None
    variant: Variant = "paper"
    activation: Approximation = "zero_origin"
    tanh: TanhApproximation = "zero_origin"
    gate: GateRule = "half"
    ln1: bool = True
    ffn: bool = True
    ln2: bool = True
    head: bool = True
    aggregation: Aggregation = "vector"
    row_normalize: bool | None = None
    stages: tuple[Stage, ...] = ()
    stage_output: StageOutput = "norm"

    def __post_init__(self) -> None:
        stages: Any = (self.stages,) if isinstance(self.stages, str) else self.stages
        if not isinstance(stages, (tuple, list)):
            raise OptionError(f"stages={stages!r} is not a list of stages: use some of {', '.join(map(repr, STAGES))}")
        object.__setattr__(self, "stages", tuple(stages))
        for name, allowed in _allowed().items():
            if name != "stages":
                _check_choice(name, getattr(self, name), allowed)
        for stage in self.stages:
            _check_choice("stages", stage, STAGES)
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.bias_token_split is not None and self.bias != "bias_token":
            raise OptionError(
                f"bias_token_split={self.bias_token_split!r} needs bias='bias_token', but bias is {self.bias!r}: "
                "set bias='bias_token', or leave bias_token_split out"
            )
        if self.bias_token_split is not None and not self.head:
            raise OptionError(
                "bias_token_split shares the collected biases of the logits, so it needs head=True: "
                "set head=True, or leave bias_token_split out"
            )
        if self.aggregation != "vector" and self.head:
            raise OptionError(
                f"aggregation={self.aggregation!r} yields no vectors that a head could read: "
                "set head=False, or aggregation='vector'"
            )
        if self.aggregation != "vector" and self.bias == "bias_token":
            raise OptionError(
                f"bias='bias_token' needs aggregation='vector', but aggregation is {self.aggregation!r}: "
                "choose another bias rule, or aggregation='vector'"
            )
        if self.row_normalize is not None and self.aggregation != "rollout":
            raise OptionError(f"row_normalize={self.row_normalize!r} needs aggregation='rollout'")
        if "aggregated" in self.stages and self.aggregation == "none":
            raise OptionError("the stage 'aggregated' does not exist with aggregation='none': ask for 'encoder'")
        if "pooler" in self.stages and not self.head:
            raise OptionError("the stage 'pooler' does not exist with head=False")
        if "ffn" in self.stages and not self.ffn:
            raise OptionError("the stage 'ffn' does not exist with ffn=False")

    @property
    def normalizes_rows(self) -> bool:
        """Whether rollout divides each row by its sum."""
        return self.variant == "paper" if self.row_normalize is None else self.row_normalize

    def to_dict(self) -> dict[str, Any]:
        """The options as plain values that JSON can hold."""
        return {**vars(self), "stages": list(self.stages)}

    def replace(self, **changes: Any) -> DecompXConfig:
        """A copy with some options changed.

        Raises:
            OptionError: if an option is unknown (the nearest name is suggested) or its value does not exist.
        """
        return type(self).from_dict(self.to_dict() | changes) if changes else self

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> DecompXConfig:
        """Options from a mapping; unknown names are refused.

        Raises:
            OptionError: if an option is unknown (the nearest name is suggested) or its value does not exist.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"options are {', '.join(known)}"
                raise OptionError(f"unknown option {name!r}: {hint}")
        return cls(**options)


@functools.cache
def _allowed() -> dict[str, tuple[Any, ...]]:
    """The values of each option; to read them from the types takes as long as a few operations of a model."""
    hints = get_type_hints(DecompXConfig)
    return {field.name: _choices(hints[field.name]) for field in dataclasses.fields(DecompXConfig)}


def _choices(hint: Any) -> tuple[Any, ...]:
    """The values that a field's type allows: those of its Literals, True and False for bool, None where optional."""
    if hint is bool:
        return (True, False)
    if hint is type(None):
        return (None,)
    values: list[Any] = []
    for arg in get_args(hint):
        values.extend(_choices(arg) if arg is bool or arg is type(None) or get_args(arg) else [arg])
    return tuple(values)


def _check_choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    # `1 == True`, so the type counts as well.
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        listed = ", ".join(repr(choice) for choice in allowed)
        raise OptionError(f"{name}={value!r} is not an option: use one of {listed}")
