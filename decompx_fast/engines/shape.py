"""The sizes of a model that a plan needs, read from its layers or from their specification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import DecompXConfig
from ..linearize.layer import Linearization, LinearizedLayer, Terms


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes of a model, the largest of all layers where they differ.

    Attributes:
        layers: how many.
        d, f: hidden size, size of a network's hidden layer (0 without networks).
        heads, kv_heads, head_size: of the attention.
        classes: of the head, or the columns that are asked for.
        networks: how many feed-forward networks a layer has.
        gated: whether they have gates.
        pre_norm: whether a norm comes before an operation.
        masked: whether attention is causal or windowed.
        branches: whether an attention stands beside another operation.
        normed_branches: whether a norm follows an attention before the residual.
        starts_with_attention: whether the first operation is an attention.
        foldable: whether all layers have the form of the operator path, rules aside.
        reads_all: whether the head reads the mean of all positions.
        least_kv_heads: of the attention that has the fewest; 0 where all have as many.
        narrow: the size of the narrower state that layers work on; 0 without one.
        taps: how many tokens a convolution of the embedding reads at a position; 0 without one.
        rows: how many positions the head reads, of all items of a batch together.
        outputs: of the head's last map, where only the columns that are asked for are formed of it; else 0.
    """

    layers: int
    d: int
    f: int
    heads: int
    kv_heads: int
    head_size: int
    classes: int = 2
    networks: int = 1
    gated: bool = False
    pre_norm: bool = False
    masked: bool = False
    branches: bool = False
    normed_branches: bool = False
    starts_with_attention: bool = True
    foldable: bool = True
    reads_all: bool = False
    least_kv_heads: int = 0
    taps: int = 0
    narrow: int = 0
    rows: int = 1
    outputs: int = 0

    @classmethod
    def from_linearization(
        cls, linearization: Linearization, layer: LinearizedLayer, terms: Terms | None = None
    ) -> ModelShape:
        """The sizes of a model on some input, from one of its layers; where terms are asked for, their columns are
        its classes."""
        classes = linearization.logits.shape[-1] if terms is None else terms.count
        d, reads_all = linearization.embedding.shape[-1], linearization.reads_all
        shape = _read([layer.sublayers], linearization.num_layers, d, classes, reads_all)
        rows = 1 if terms is None or terms.positions is None else len(terms.positions.unique())
        return replace(shape, rows=rows)

    @classmethod
    def from_spec(cls, spec: Any, *, rows: int = 1, columns: int | None = None) -> ModelShape:
        """The sizes of a model that has not run.

        Args:
            spec: a :class:`decompx_fast.linearize.spec.ModelSpec`.
            rows: how many positions will be read.
            columns: how many columns will be asked for; ``None``: all outputs.
        """
        columns = spec.classes if columns is None else columns
        shape = _read(spec.layers, len(spec.layers), spec.width, columns, spec.read == "mean")
        return replace(shape, rows=rows, outputs=spec.classes if spec.classes > spec.width else 0)

    def vocabulary_flops(self, batch: int, rule: str) -> int:
        """What all outputs of a map take of which only some are decomposed: the model's own at the rows that are read,
        and the sharing of its bias."""
        sharing = {"absdot": 1, "dot": 1, "norm": self.d, "abssim": self.d + 1}.get(rule, 0)
        return 2 * self.d * self.outputs * (batch * self.rows + sharing)

    def keeps_branch(self, config: DecompXConfig) -> bool:
        """Whether what an attention gives must be kept beside the state, all of it."""
        return (self.branches and config.ffn) or (self.normed_branches and config.ln1)


def form_refusal(sublayers: Sequence[Any]) -> str | None:
    """Why a layer has not the form of the operator path, or ``None``; for layers and for their specifications."""
    if len(sublayers) != 2 or any(len(s.ops) != 1 or s.pre_norm or s.out_norm for s in sublayers):
        return "its layers are not an attention and a network, each with a norm after the residual only"
    attention, network = (s.ops[0] for s in sublayers)
    if attention.kind != "attention" or network.kind != "ffn" or _is_gated(network):
        return "its layers are not an attention and then a plain network"
    return None


def _read(layers: Sequence[Sequence[Any]], n_layers: int, d: int, classes: int, reads_all: bool) -> ModelShape:
    sublayers = [sublayer for layer in layers for sublayer in layer]
    ops = [op for sublayer in sublayers for op in sublayer.ops]
    attentions, networks, convolutions = (
        [op for op in ops if op.kind == kind] for kind in ("attention", "ffn", "convolution")
    )
    masks = [getattr(op, "pattern", op) for op in attentions]
    attending = [s for s in sublayers if any(op.kind == "attention" for op in s.ops)]
    return ModelShape(
        layers=n_layers,
        d=d,
        f=max((_hidden_size(op) for op in networks), default=0),
        heads=max((op.heads for op in attentions), default=1),
        kv_heads=max((op.kv_heads for op in attentions), default=1),
        head_size=max((_value_size(op) // op.heads for op in attentions), default=1),
        classes=classes,
        networks=max(sum(op.kind == "ffn" for s in layer for op in s.ops) for layer in layers),
        gated=any(map(_is_gated, networks)),
        pre_norm=any(s.pre_norm is not None for s in sublayers),
        masked=any(mask.causal or mask.window is not None for mask in masks),
        branches=any(len(s.ops) > 1 for s in attending),
        normed_branches=any(s.out_norm is not None for s in attending),
        starts_with_attention=bool(sublayers) and sublayers[0].ops[0].kind == "attention",
        foldable=all(form_refusal(layer) is None for layer in layers),
        reads_all=reads_all,
        least_kv_heads=_least([op.kv_heads for op in attentions]),
        taps=max((op.weight.shape[2] for op in convolutions), default=0),
        narrow=max((_narrow_size(op) for op in ops if op.kind == "narrow"), default=0),
    )


# A linearised operation holds `w_in`, `w_out`, a specified one `into`, `out`.


def _value_size(op: Any) -> int:
    return (op.w_out if hasattr(op, "w_out") else op.out.weight).shape[0]


def _narrow_size(op: Any) -> int:
    return (op.map.weight if hasattr(op, "map") else op.weight).shape[1]


def _hidden_size(op: Any) -> int:
    return (op.w_in if hasattr(op, "w_in") else op.into.weight).shape[1]


def _is_gated(op: Any) -> bool:
    return (op.w_gate if hasattr(op, "w_in") else getattr(op, "gate", None)) is not None


def _least(counts: Sequence[int]) -> int:
    """The smallest, or 0 where all are the same."""
    return min(counts) if len(set(counts)) > 1 else 0
