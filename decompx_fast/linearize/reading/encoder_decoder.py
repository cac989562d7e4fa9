"""What encoder-decoders have in common: two stacks of layers, what their decoders read, and the heads on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError
from ..readers import embedding_module
from ..spec import (
    AttentionSpec,
    FeedForwardSpec,
    HeadStepSpec,
    InputLimits,
    LayerSpec,
    ModelSpec,
    NormSpec,
    OpSpec,
    ScaleSpec,
    SublayerSpec,
)
from .heads import HeadKind, Read, in_turn, with_head
from .parts import Module, Parts, model_spec, stacked


@dataclass(frozen=True)
class Stack:
    """An encoder or a decoder.

    Attributes:
        parts: of it.
        layers: the path of its layers.
        describe: reads one.
        norm: what comes after the last of them, as a module and as it was read.
    """

    parts: Parts
    layers: str
    describe: Callable[[Parts], LayerSpec]
    norm: tuple[nn.Module, NormSpec] | None = None

    def read(self) -> tuple[tuple[nn.Module, ...], tuple[LayerSpec, ...], tuple[nn.Module, ...]]:
        """As :func:`.parts.stacked` has it."""
        return stacked(self.parts.each(self.layers), self.describe, self.norm)

    def vocabulary(self) -> int:
        """How many tokens it has embeddings for."""
        return embedding_module(self.parts["embed_tokens"], f"{self.parts.name}.embed_tokens").num_embeddings

    def alone(self, *, positions: int | None, in_float32: bool = False) -> ModelSpec:
        """The layers of an encoder that no decoder attends, without a head, with arguments as for :func:`joined`."""
        limits = InputLimits(positions, {"input_ids": self.vocabulary()})
        return model_spec(
            self.parts.each(self.layers), self.describe, (), limits, final_norm=self.norm, in_float32=in_float32
        )


def layer_of(
    own: AttentionSpec,
    cross: AttentionSpec | None,
    feed: FeedForwardSpec,
    norms: Iterable[NormSpec],
    *,
    norms_first: bool,
) -> LayerSpec:
    """An attention, in a decoder a cross attention, and a network; each with a norm after the sum, or before."""
    decodes = () if cross is None else (replace(cross, memory=True),)
    ops: tuple[OpSpec, ...] = (replace(own, causal=cross is not None), *decodes, feed)
    return tuple(
        SublayerSpec((op,), pre_norm=norm) if norms_first else SublayerSpec((op,), post_norm=norm)
        for op, norm in zip(ops, norms, strict=True)
    )


def joined(encoder: Stack, decoder: Stack, *, positions: int | None, in_float32: bool = False) -> ModelSpec:
    """The layers of both, without a head.

    Args:
        encoder, decoder: in one model.
        positions: how many tokens each of them takes.
        in_float32: as :class:`..spec.ModelSpec` has it.
    """
    modules, layers, states = encoder.read()
    more_modules, more_layers, more_states = decoder.read()
    sizes = {"input_ids": encoder.vocabulary(), "decoder_input_ids": decoder.vocabulary()}
    return ModelSpec(
        modules + more_modules,
        layers + more_layers,
        (),
        0,
        InputLimits(positions, sizes),
        states + more_states,
        in_float32,
        given=_without_cache,
        encoder_layers=len(layers),
    )


def _without_cache(_inputs: Mapping[str, Tensor]) -> Mapping[str, bool]:
    return {"use_cache": False}


def shifted(ids: Tensor, *, start: int) -> Tensor:
    """A text's ids ``[b, i]`` one place on, behind the token that decoders start with."""
    return torch.cat((torch.full_like(ids[:, :1], start), ids[:, :-1]), dim=1)


def wrapped(ids: Tensor, *, padding: int) -> Tensor:
    """A text's ids ``[b, i]`` one place on, behind the last of them, as mBART does it, which takes padding tokens for
    padding wherever it stands."""
    last = (ids != padding).sum(1, keepdim=True) - 1
    return torch.cat((ids.gather(1, last.clamp_min(0)), ids[:, :-1]), dim=1)


class BothStacks(nn.Module):
    """The encoder and the decoder of a model without a part for both, called one after the other as it calls them."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(
        self, input_ids: Tensor, decoder_input_ids: Tensor, *, use_cache: bool, return_dict: bool, **options: Any
    ) -> Any:
        """What the decoder gives, with its ``last_hidden_state``."""
        memory = self.encoder(input_ids=input_ids, **options).last_hidden_state
        return self.decoder(input_ids=decoder_input_ids, encoder_hidden_states=memory, use_cache=use_cache, **options)


def headed(model: Module, body: ModelSpec, head: HeadKind, base: str | None) -> ModelSpec:
    """An encoder-decoder with a head.

    Args:
        model: the whole.
        body: both stacks, as :func:`joined` describes them.
        head: what is put on the decoder.
        base: where both are in the model; ``None``: in the model itself.
    """
    spec = with_head(body, Parts(model, "", body.width), head, base)
    return replace(spec, backbone=BothStacks(model.encoder, model.decoder)) if base is None else spec


def of_text(model: Module, body: ModelSpec, head: HeadKind, base: str | None, *, wraps: bool = False) -> ModelSpec:
    """The same of a model whose decoder reads the text that its encoder reads, one place on: behind the token that
    decoders start with, or where it ``wraps`` behind the text's own last."""
    config = model.config
    shift = partial(wrapped, padding=config.pad_token_id) if wraps else None
    shift = shift or partial(shifted, start=config.decoder_start_token_id)
    return replace(headed(model, body, head, base), shifted=shift)


def last_end(inputs: Mapping[str, Tensor], *, end: int) -> Tensor:
    """The last token ``[b]`` that ends a sequence, at whose place a classifier reads the decoder.

    Raises:
        InputError: if a text has none.
    """
    is_end = inputs["input_ids"] == end
    if not bool(is_end.any(1).all()):
        raise InputError(
            f"this model reads the last end of a sequence, and a text has none: give ids with the token {end}, as its "
            "tokenizer does"
        )
    return (is_end * torch.arange(is_end.shape[1], device=is_end.device)).argmax(-1)


def _reads_last_end(model: Module) -> Read:
    return partial(last_end, end=model.config.eos_token_id)


#: BART's classifier, which T5 has too.
CLASSES_AT_END = replace(
    in_turn(("classification_head.dense", "tanh"), ("classification_head.out_proj",), calls=("classification_head",)),
    read_of=_reads_last_end,
)


def next_token(scale: float = 1.0, bias: str | None = None) -> HeadKind:
    """The next token of the output, at each position of the decoder.

    Args:
        scale: what the states are multiplied by before.
        bias: the path of what is added to the outputs, ``[1, C]``.
    """
    return HeadKind(partial(_next_steps, scale=scale, bias=bias), partial(_next, scale=scale, bias=bias))


def _next_steps(parts: Parts, *, scale: float, bias: str | None) -> tuple[HeadStepSpec, ...]:
    map_ = parts.affine("lm_head")
    if bias is not None:
        added = parts[bias].detach().flatten()
        map_ = replace(map_, bias=added if map_.bias is None else map_.bias + added, module=None)
    before = () if scale == 1 else (HeadStepSpec(norm=ScaleSpec(scale)),)
    return (*before, HeadStepSpec(map_))


def _next(model: Module, rows: Tensor, *, scale: float, bias: str | None) -> Tensor:
    found: Tensor = model.lm_head(rows if scale == 1 else rows * scale)
    return found if bias is None else found + getattr(model, bias)
