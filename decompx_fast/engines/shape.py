"""The sizes of a model that a plan needs, read from its layers or from their specification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import DecompXConfig
from ..linearize.layer import Linearization, LinearizedLayer, Terms


@dataclass(frozen=True)
class Mask:
    """Which positions an attention pairs; without arguments, all.

    Attributes:
        causal, window: as for :class:`decompx_fast.linearize.layer.AttentionPattern`.
    """

    causal: bool = False
    window: int | None = None

    @property
    def hides(self) -> bool:
        """Whether it leaves any out."""
        return self.causal or self.window is not None

    def pairs(self, n: int) -> int:
        """How many pairs of ``n`` positions it allows."""
        reach = n if self.window is None else min(self.window, n)
        back = reach * n - reach * (reach - 1) // 2  # a position and those before it
        return back if self.causal else 2 * back - n

    def width(self, rows: int, n: int) -> int:
        """From how many neighbouring positions on all are that so many neighbours attend."""
        if self.window is None:
            return n
        return min(rows + (1 if self.causal else 2) * (self.window - 1), n)


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
        shares_before: whether such a norm has a bias, which an attention must know the shares of.
        masks: of the attention of each layer; of one, if all have the same; none, where nothing is hidden.
        branches: whether an attention stands beside another operation.
        normed_branches: whether a norm follows an attention before the residual.
        starts_with_attention: whether the first operation is an attention.
        foldable: whether all layers have the form of the operator path, rules aside.
        reads_all: whether the head reads a mean of positions.
        least_kv_heads: of the attention that has the fewest; 0 where all have as many.
        narrow: the size of the narrower state that layers work on; 0 without one.
        taps: how many tokens a convolution of the embedding reads at a position; 0 without one.
        rows: how many positions the head reads, of all items of a batch together.
        outputs: of the head's last map, where only the columns that are asked for are formed of it; else 0.
        routed: whether positions choose among networks; then ``networks`` are those that one of them goes through.
        shifted: whether a number is added to what gates multiply, so that gates are decomposed too.
        biased: whether there are biases to share among the sources.
        sites: in how many places of a layer biases are added.
        decodes: whether some layers are a decoder's, after those of an encoder.
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
    shares_before: bool = False
    masks: tuple[Mask, ...] = ()
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
    routed: bool = False
    shifted: bool = False
    biased: bool = True
    sites: int = 5
    decodes: bool = False

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
        decodes = linearization.encoder is not None
        return replace(shape, rows=rows, foldable=shape.foldable and not decodes, decodes=decodes)

    @classmethod
    def from_spec(cls, spec: Any, *, rows: int = 1, columns: int | None = None) -> ModelShape:
        """The sizes of a model that has not run.

        Args:
            spec: a :class:`decompx_fast.linearize.spec.ModelSpec`.
            rows: how many positions will be read.
            columns: how many columns will be asked for; ``None``: all outputs.
        """
        columns = spec.classes if columns is None else columns
        shape = _read(spec.layers, len(spec.layers), spec.width, columns, spec.reads_all)
        outputs = spec.classes if spec.classes > spec.width else 0
        return replace(shape, rows=rows, outputs=outputs, biased=spec.has_bias)

    def vocabulary_flops(self, batch: int, rule: str) -> int:
        """What all outputs of a map take of which only some are decomposed: the model's own at the rows that are read,
        and the sharing of its bias."""
        sharing = {"absdot": 1, "dot": 1, "norm": self.d, "abssim": self.d + 1}.get(rule, 0)
        return 2 * self.d * self.outputs * (batch * self.rows + sharing)

    @property
    def masked(self) -> bool:
        """Whether attention is causal or windowed anywhere."""
        return any(mask.hides for mask in self.masks)

    @property
    def causal(self) -> bool:
        """Whether all attention is."""
        return bool(self.masks) and all(mask.causal for mask in self.masks) and not self.decodes

    @property
    def lags(self) -> bool:
        """Whether sources that are far away, or later, have not come to all positions after the first layer."""
        return self.decodes or self.masked

    def pairs(self, n: int, layers: slice = slice(None)) -> int:
        """How many pairs of ``n`` positions the attentions of these layers have, together."""
        return sum(mask.pairs(n) for mask in self.masks_of(layers))

    def masks_of(self, layers: slice) -> tuple[Mask, ...]:
        """Those of some layers."""
        masks = self.masks if len(self.masks) == self.layers else (self.masks or (Mask(),))[:1] * self.layers
        return masks[layers]

    def keeps_branch(self, config: DecompXConfig) -> bool:
        """Whether what an attention gives must be kept beside the state, all of it."""
        return (self.branches and config.ffn) or (self.normed_branches and config.ln1)

    def opens_gates(self, config: DecompXConfig) -> bool:
        """Whether gates are decomposed, and not only frozen."""
        return self.gated and (self.shifted or config.gate == "half")


def form_refusal(sublayers: Sequence[Any]) -> str | None:
    """Why a layer has not the form of the operator path, or ``None``; for layers and for their specifications."""
    if len(sublayers) != 2 or any(len(s.ops) != 1 or s.pre_norm or s.out_norm for s in sublayers):
        return "its layers are not an attention and a network, each with a norm after the residual only"
    attention, network = (s.ops[0] for s in sublayers)
    if attention.kind != "attention" or network.kind != "ffn" or _is_routed(network):
        return "its layers are not an attention and then a plain network"
    if _is_gated(network) or network.norm is not None:
        return "its layers are not an attention and then a plain network"
    return None


def _read(layers: Sequence[Sequence[Any]], n_layers: int, d: int, classes: int, reads_all: bool) -> ModelShape:
    sublayers = [sublayer for layer in layers for sublayer in layer]
    ops = [op for sublayer in sublayers for op in sublayer.ops]
    attentions, convolutions = ([op for op in ops if op.kind == kind] for kind in ("attention", "convolution"))
    networks = [network for op in ops for network in _networks(op)]
    attending = [s for s in sublayers if any(op.kind == "attention" for op in s.ops)]
    return ModelShape(
        layers=n_layers,
        d=d,
        f=max((_hidden_size(op) for op in networks), default=0),
        heads=max((op.heads for op in attentions), default=1),
        kv_heads=max((op.kv_heads for op in attentions), default=1),
        head_size=max((_value_size(op) // op.heads for op in attentions), default=1),
        classes=classes,
        networks=max(sum(_active(op) for s in layer for op in s.ops) for layer in layers),
        gated=any(map(_is_gated, networks)),
        pre_norm=any(s.pre_norm is not None for s in sublayers) or any(op.norm is not None for op in networks),
        shares_before=any(s.pre_norm is not None and s.pre_norm.bias is not None for s in attending),
        masks=_masks(layers),
        branches=any(len(s.ops) > 1 for s in attending),
        normed_branches=any(s.out_norm is not None for s in attending),
        starts_with_attention=bool(sublayers) and sublayers[0].ops[0].kind == "attention",
        foldable=all(form_refusal(layer) is None for layer in layers),
        reads_all=reads_all,
        least_kv_heads=_least([op.kv_heads for op in attentions]),
        taps=max((op.weight.shape[2] for op in convolutions), default=0),
        routed=any(_is_routed(op) for op in ops),
        shifted=any(network.shift for network in networks),
        narrow=max((_narrow_size(op) for op in ops if op.kind == "narrow"), default=0),
        sites=max(sum(map(_sites, layer)) for layer in layers),
    )


def _sites(sublayer: Any) -> int:
    """In how many places of a sublayer biases are added: of norms, attentions, and before and after networks."""
    norms = [
        sublayer.pre_norm,
        sublayer.out_norm,
        sublayer.post_norm,
        *(getattr(op, "norm", None) for op in sublayer.ops),
    ]
    places = [norm is not None and norm.bias is not None for norm in norms]
    for op in sublayer.ops:
        if op.kind == "attention":
            maps = (op.b_value, op.b_out) if hasattr(op, "w_out") else (op.value.bias, op.out.bias)
            places.append(any(bias is not None for bias in maps))
        if op.kind == "ffn":
            network = _networks(op)[0]
            maps = (network.b_in, network.b_out) if hasattr(network, "w_in") else (network.into.bias, network.out.bias)
            places += [bias is not None for bias in maps]
    return sum(places)


def _masks(layers: Sequence[Sequence[Any]]) -> tuple[Mask, ...]:
    """As :attr:`ModelShape.masks` has them."""
    masks = tuple(map(_mask, layers))
    if len(set(masks)) > 1:
        return masks
    return masks[:1] if masks[0].hides else ()


def _mask(layer: Sequence[Any]) -> Mask:
    """That of the first attention of a layer."""
    found = (getattr(op, "pattern", op) for sublayer in layer for op in sublayer.ops if op.kind == "attention")
    first = next(found, None)
    return Mask() if first is None else Mask(first.causal, first.window)


# A linearised operation holds `w_in`, `w_out`, a specified one `into`, `out`; networks that positions choose among are
# in the `parts` of a linearised one, and are the `experts` of a specified one.


def _is_routed(op: Any) -> bool:
    return hasattr(op, "active")


def _active(op: Any) -> int:
    """How many networks a position goes through."""
    return op.active if _is_routed(op) else int(op.kind == "ffn")


def _networks(op: Any) -> list[Any]:
    if not _is_routed(op):
        return [op] if op.kind == "ffn" else []
    return list(op.experts) if hasattr(op, "experts") else [part.network for part in op.parts]


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
