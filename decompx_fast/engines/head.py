"""The head on decomposed vectors: few rows, so one way in plain PyTorch serves the engines that carry vectors.

Rows are ``[b, r, k, d]``: what the head reads, each row by itself. Of a vocabulary only the outputs that are asked for
are formed; what sharing its bias needs of all of them is told by products of ``d`` (:class:`.layer.WholeMap`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..activations import SOFTCAP, get_activation, linear_piece
from ..bias_rules import DOT_RULES, LINEAR_RULES
from ..config import DecompXConfig
from ..errors import OptionError
from ..linearize.layer import Head, HeadStep, WholeMap
from .bias import Rule, bias_shares, safe_norm, shares_by_weights
from .shard import Shard


def through_head(
    rows: Tensor,
    head: Head,
    config: DecompXConfig,
    rule_for: Callable[[str], Rule],
    keep: Callable[[Tensor], None],
) -> tuple[Tensor, Tensor | None]:
    """What the head reads, through all of its steps.

    Args:
        rows: ``[b, r, k, d]``; computed in float32 at least.
        head: its steps.
        config: the options.
        rule_for: how a rule shares biases among the rows' sources.
        keep: is given what the first step makes of them.

    Returns:
        Of the terms ``[b, k, t]``, and the bias token's ``[b, t]`` or ``None``.
    """
    rule = rule_for(config.bias)
    through = _averaged if head.reading.averaged else _through_steps
    before, rows = through(rows, head, config, rule, keep)
    collected = None
    if config.bias == "bias_token":
        rows, collected = _apart(rows, rule.shard)
        if config.bias_token_split is not None:
            split = rule_for(config.bias_token_split)
            split = _of_any_row(split) if head.reading.averaged else split
            rows = _split(rows, collected, lambda: _apart(before, rule.shard), head, split)
            collected = None
    scores = head.reading.pick(_wanted(rows, head))
    return scores, None if collected is None else head.reading.pick(_wanted(collected, head)).squeeze(1)


def _through_steps(
    rows: Tensor, head: Head, config: DecompXConfig, rule: Rule, keep: Callable[[Tensor], None]
) -> tuple[Tensor, Tensor]:
    """What enters the last step, and what comes of it."""
    before = rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    for number, step in enumerate(head.steps):
        before, rows = rows, head_step(step, rows, config, rule)
        if number == 0:
            keep(rows)
    return before, rows


def _averaged(
    rows: Tensor, head: Head, config: DecompXConfig, rule: Rule, keep: Callable[[Tensor], None]
) -> tuple[Tensor, Tensor]:
    """The means over the rows of the same, as one row; one after the other, so that no second state is formed."""
    firsts: list[Tensor] = []
    keep_one = firsts.append if config.stages else lambda _rows: None
    totals: tuple[Tensor, Tensor] | None = None
    for number in range(rows.shape[1]):
        at = slice(number, number + 1)
        found = _through_steps(rows[:, at], head.at(at), config, rule.at(at), keep_one)
        before, after = (part.double() / rows.shape[1] for part in found)
        totals = (before, after) if totals is None else (totals[0] + before, totals[1] + after)
    assert totals is not None  # a text has tokens
    if firsts:
        keep(torch.cat(firsts, dim=1))
    return totals[0].to(found[0].dtype), totals[1].to(found[1].dtype)


def _of_any_row(rule: Rule) -> Rule:
    """Equal shares of what reaches any of the rows, for their mean."""
    if rule.shares is None:
        return rule
    reached = (rule.shares > 0).any(1, keepdim=True).to(rule.shares.dtype)
    count = reached.sum(-1, keepdim=True)  # of the sources that are here
    return replace(rule, shares=reached / (count if rule.shard is None else rule.shard.exchange.sum(count)))


def _apart(rows: Tensor, shard: Shard | None) -> tuple[Tensor, Tensor]:
    """The tokens' vectors ``[b, r, k, c]`` and the bias token's ``[b, r, 1, c]``, in whose place there are zeros where
    not all sources are here."""
    if shard is None:
        return rows[:, :, :-1], rows[:, :, -1:]
    collected, at = shard.pick(rows, -1), shard.place(-1)
    if at is not None:
        rows = rows.clone()
        rows[:, :, at] = 0
    return rows, collected


def _wanted(rows: Tensor, head: Head) -> Tensor:
    return rows if head.is_narrow else head.reading.select(rows)


def head_step(step: HeadStep, rows: Tensor, config: DecompXConfig, rule: Rule) -> Tensor:
    """One step ``norm(act(x W + b))`` of a head on the parts ``[b, r, k, d]`` of its input: ``[b, r, k, c]``.

    ``rule`` is the configuration's, with its shares ``[b, r, k]`` at what the head reads where they are known.
    """
    if step.weight is not None:
        if step.whole is not None:
            rule = _rule_by_all(rule, rows, step.whole)
        rows = rule.add(rows @ step.weight.to(rows.dtype), step.bias)
    if step.activation is not None:
        slope, intercept = head_piece(step, config)
        if intercept is not None and step.narrow and config.bias not in LINEAR_RULES:
            raise OptionError(
                f"the intercept of a head's last activation, {step.activation!r}, would be shared with "
                f"bias={config.bias!r} by the vectors over all outputs, which are not formed: use the option "
                "'zero_origin' for activations, or another rule"
            )
        rows = rule.add(rows * slope.unsqueeze(-2).to(rows.dtype), intercept)
    if step.norm is not None:
        rows = rule.add(step.norm.linear(rows).to(rows.dtype), step.norm.bias)
    return rows


def head_piece(step: HeadStep, config: DecompXConfig) -> tuple[Tensor, Tensor | None]:
    """The slope of a step's activation, and its intercept or ``None``; ``[b, r, c]``."""
    assert step.activation is not None
    is_tanh = step.activation == "tanh" or step.activation.startswith(SOFTCAP)
    approximation = config.tanh if is_tanh else config.activation
    return linear_piece(get_activation(step.activation), step.preactivation, approximation)


def _rule_by_all(rule: Rule, rows: Tensor, whole: WholeMap) -> Rule:
    """The rule with its shares ``[b, r, k]`` in the bias of a map, weighed by the vectors over all of its outputs."""
    if rule.name in LINEAR_RULES or rule.shares is not None or whole.bias is None:
        return rule
    functional = whole.functional(rows.dtype)
    if rule.name in DOT_RULES:  # b . (x W) = x . (W b)
        return replace(rule, shares=bias_shares(rows, functional, rule.name, rule.shard))
    return replace(rule, shares=_Outputs(rows, whole.gram()).shares(functional, rule))


@dataclass(frozen=True)
class _Outputs:
    """The vectors ``x[k] W`` over all outputs, by the rows ``x`` ``[b, r, k, d]`` and ``W W^T``."""

    rows: Tensor
    gram: Tensor

    def norms(self) -> Tensor:
        """``|x W|``, ``[b, r, k]``."""
        size = safe_norm(self.rows)
        unit = (self.rows / torch.where(size == 0, 1, size).unsqueeze(-1)).double()
        return (((unit @ self.gram) * unit).sum(-1).clamp_min(0).sqrt() * size).to(self.rows.dtype)

    def shares(self, functional: Tensor, rule: Rule) -> Tensor:
        """By ``norm`` or ``abssim``; ``functional`` is ``W c`` of what is shared, ``[d]`` or ``[b, r, d]``."""
        weights = self.norms()
        if rule.name == "abssim":
            dots = (self.rows @ functional.unsqueeze(-1)).squeeze(-1).abs()
            weights = torch.where(weights == 0, 0, dots / torch.where(weights == 0, 1, weights))
        return shares_by_weights(weights, self.rows, rule.name, rule.shard)


def _split(
    rows: Tensor, collected: Tensor, before: Callable[[], tuple[Tensor, Tensor]], head: Head, rule: Rule
) -> Tensor:
    """The collected biases ``[b, r, 1, c]`` shared among the tokens ``[b, r, k, c]``, by the vectors over all outputs.

    Of a narrow step these follow from what enters it, which ``before`` gives: the tokens' are ``x[k] W``, the collected
    ``y W + b``.
    """
    step = head.steps[-1]
    bias = collected.squeeze(2)
    if not step.narrow or step.whole is None or rule.shares is not None or rule.name in LINEAR_RULES:
        return rule.add(rows, bias)
    if step.activation is not None:
        raise OptionError(
            f"bias_token_split={rule.name!r} weighs by the vectors over all outputs, which are not formed where a head "
            "ends with an activation: use 'equal' or 'cls', or leave bias_token_split out"
        )
    tokens, token = before()
    gram = step.whole.gram()
    functional = (token.squeeze(2).double() @ gram).to(token.dtype) + step.whole.functional(token.dtype)  # [b, r, d]
    if rule.name in DOT_RULES:
        shares = bias_shares(tokens, functional, rule.name, rule.shard)
    else:
        shares = _Outputs(tokens, gram).shares(functional, rule)
    return replace(rule, shares=shares).add(rows, bias)
