"""Llama and the decoders that share its layers: a causal attention with rotary positions, and a gated network.

They differ in where their norms stand and of which kind they are, in what happens to queries and keys before they
meet, and in a few numbers. Which is which says :class:`Kind`; one function reads the layers of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ...errors import UnsupportedModelError
from ..spec import (
    AttentionSpec,
    Context,
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
from .decoder import STATE
from .decoder import classifier as last_token_classifier
from .heads import SPANS, HeadKind, linear, with_head
from .parts import Module, Parts, embedding_limits, stack
from .positions import paired_rotary_positions, rotary_positions

#: Which numbers of a head are rotated together: those of its two halves, or neighbours.
Rotate = Callable[[Tensor, Tensor, Context], tuple[Tensor, Tensor, None]]

#: What the outputs of ``lm_head`` are multiplied by (Cohere), divided by (Granite) or capped at (Gemma), as the
#: configuration calls it.
OutputNumber = Literal["logit_scale", "logits_scaling", "final_logit_softcapping"]


def neighbours(query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor, None]:
    """GLM: pairs of neighbours are rotated, though cosines and sines come as for halves, each twice."""
    cos, sin = (part[..., : part.shape[-1] // 2] for part in context["position_embeddings"])
    return paired_rotary_positions(query, key, {"position_embeddings": (sin, cos)})


def neighbours_in_float32(query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor, None]:
    """Cohere: the same, in float32 whatever the model computes in; each cosine and sine comes twice in a row."""
    cos, sin = (part[..., ::2].float() for part in context["position_embeddings"])
    given = {"position_embeddings": (sin, cos)}
    rotated_query, rotated_key, _ = paired_rotary_positions(query.float(), key.float(), given)
    return rotated_query.to(query.dtype), rotated_key.to(key.dtype), None


def halves_once(query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor, None]:
    """GPT-OSS: halves are rotated, by cosines and sines that come once."""
    cos, sin = (torch.cat((part, part), dim=-1) for part in context["position_embeddings"])
    return rotary_positions(query, key, {"position_embeddings": (cos, sin)})


@dataclass(frozen=True)
class NormedPositions:
    """Norms of queries and keys, and then rotary positions, or none.

    Attributes:
        rotate: the positions; ``None`` for a layer without any.
        query, key: the norms: over a head's numbers, weighed by ``[v]`` or, for each head apart, ``[h, v]``.
        joined: whether they are over the numbers of all heads instead, weighed by ``[(h v)]``.
    """

    rotate: Rotate | None
    query: NormSpec | None = None
    key: NormSpec | None = None
    joined: bool = False

    def __call__(self, query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor, None]:
        query, key = self._norm(self.query, query), self._norm(self.key, key)
        return (query, key, None) if self.rotate is None else self.rotate(query, key, context)

    def _norm(self, spec: NormSpec | None, x: Tensor) -> Tensor:
        """``[b, h, i, v]`` to the same."""
        if spec is None:
            return x
        x = x.transpose(1, 2)  # [b, i, h, v]
        rows = x.flatten(2) if self.joined else x
        centred = rows - rows.mean(-1, keepdim=True) if spec.centre else rows
        normed = centred / (centred.square().mean(-1, keepdim=True) + spec.eps).sqrt()
        normed = normed if spec.weight is None else normed * spec.weight.to(x.dtype)
        return normed.view_as(x).transpose(1, 2)


@dataclass(frozen=True)
class Kind:
    """How the layers of a family differ from Llama's.

    Attributes:
        norm: reads a norm of the hidden state, by its path.
        before: the norms before the attention and before the network; the latter is ``None`` where both stand side by
            side after the first.
        after: those after each of them, before the residual.
        rotate: the rotary positions.
        joined_norms: whether the norms of queries and keys are over all heads at once.
        network: reads the operations of the network, by the path of its module.
        window: whether ``config.sliding_window`` holds for every layer, and not what the layer's own attention says.
        rotates: whether an attention has any positions.
        capped: whether the logits of the attentions are capped.
        outputs: which numbers of the configuration change the outputs of ``lm_head``; of other models they are no part.
    """

    norm: Callable[[Parts, str], NormSpec] = Parts.rms_norm
    before: tuple[str | None, str | None] = ("input_layernorm", "post_attention_layernorm")
    after: tuple[str | None, str | None] = (None, None)
    rotate: Rotate = rotary_positions
    joined_norms: bool = False
    network: Callable[[Parts, str], tuple[OpSpec, ...]] = lambda layer, path: (gated_network(layer, path),)
    window: bool = False
    rotates: Callable[[Module], bool] = lambda attention: bool(getattr(attention, "use_rope", True))
    capped: bool = False
    outputs: OutputNumber | None = None


def gated_network(layer: Parts, path: str) -> FeedForwardSpec:
    """``act(gate(x)) * up(x)``, whose maps may be stored as one, the gate first."""
    module = layer[path]
    activation = f"{path}.{'act_fn' if hasattr(module, 'act_fn') else 'activation_fn'}"
    if not hasattr(module, "gate_up_proj"):
        return layer.network(f"{path}.up_proj", f"{path}.down_proj", activation, gate=f"{path}.gate_proj")
    both = layer.affine(f"{path}.gate_up_proj")
    gate, value = both.part(0, 2), both.part(1, 2)
    out = layer.affine(f"{path}.down_proj", value.weight.shape[1])
    return FeedForwardSpec(value, out, layer.activation(activation), gate)


def attention(layer: Parts, kind: Kind) -> AttentionSpec:
    """The attention of a layer; its maps of queries, keys and values may be stored as one, one after the other."""
    module = layer["self_attn"]
    config = module.config
    if getattr(config, "clip_qkv", None) is not None:
        raise UnsupportedModelError(
            f"{layer.name}.self_attn clips its values (clip_qkv={config.clip_qkv}): what is cut off is no linear map "
            "of the values, so this model cannot be explained exactly"
        )
    packed = hasattr(module, "qkv_proj")
    names = ["qkv_proj", "o_proj"] if packed else [f"{name}_proj" for name in "qkvo"]
    spec = layer.attention(
        [f"self_attn.{name}" for name in names],
        heads=config.num_attention_heads,
        size=module.head_dim,
        kv_heads=config.num_key_value_heads,
        scale=module.scaling,
        causal=getattr(module, "is_causal", True),
        window=getattr(config if kind.window else module, "sliding_window", None),
        positions=_positions(layer, kind),
    )
    sink = getattr(module, "sinks", None)
    # PyTorch's fused attention, which earlier versions of transformers let Gemma 2 have, caps nothing
    softcap = module.attn_logit_softcapping if kind.capped and config._attn_implementation != "sdpa" else None
    return replace(spec, softcap=softcap, sink=None if sink is None else sink.detach())


def _positions(layer: Parts, kind: Kind) -> NormedPositions:
    module = layer["self_attn"]
    rotate = kind.rotate if kind.rotates(module) else None
    if not hasattr(module, "q_norm"):
        return NormedPositions(rotate)
    # They are of the same kind as the norms of the state in all families.
    query, key = (kind.norm(layer, f"self_attn.{name}_norm") for name in "qk")
    return NormedPositions(rotate, query, key, kind.joined_norms)


def llama_layer(layer: Parts, kind: Kind) -> LayerSpec:
    """An attention and a gated network, one after the other or side by side, each with norms around it."""
    before = [None if path is None else kind.norm(layer, path) for path in kind.before]
    after: list[NormSpec | ScaleSpec | None] = [None if path is None else kind.norm(layer, path) for path in kind.after]
    multiplier = getattr(layer.module, "residual_multiplier", 1.0)
    if multiplier != 1:  # of what is added to the residual stream
        after = [ScaleSpec(multiplier), ScaleSpec(multiplier)]
    attend, feed = attention(layer, kind), kind.network(layer, "mlp")
    if kind.before[1] is None and kind.before[0] is not None:
        return (SublayerSpec((attend, *feed), before[0], after[0]),)
    return SublayerSpec((attend,), before[0], after[0]), SublayerSpec(feed, before[1], after[1])


def classifier(model: Module, kind: Kind) -> ModelSpec:
    """``score`` on the last token that is no padding."""
    parts = Parts(model, "", model.config.hidden_size)
    return last_token_classifier(model, layers_of(parts.below("model"), kind), (parts.step("score"),))


def _limits(body: Parts) -> InputLimits:
    """What a model has embeddings for: positions are computed."""
    return embedding_limits(body, "embed_tokens", most=body["config"].max_position_embeddings)


def layers_of(body: Parts, kind: Kind) -> ModelSpec:
    """The layers and the norm after them; norms compute in float32 whatever the model does."""
    describe = partial(llama_layer, kind=kind)
    return stack(body, "layers", describe, norm="norm", read_norm=kind.norm, limits=_limits(body), in_float32=True)


def with_outputs(model: Module, kind: Kind, head: HeadKind) -> ModelSpec:
    """The layers with a head on each position, or none: then the model is the layers alone."""
    parts = Parts(model, "", model.config.hidden_size)
    path = None if head is STATE else model.base_model_prefix
    body = parts if path is None else parts.below(path)
    return with_head(layers_of(body, kind), parts, head, path)


def language_model(model: Module, kind: Kind) -> ModelSpec:
    """The next token at each position."""
    holder = model if kind.outputs == "logit_scale" else model.config  # Cohere reads it once, when it is made
    number = None if kind.outputs is None else getattr(holder, kind.outputs)
    factor, cap = 1.0, None
    if number is not None and kind.outputs == "final_logit_softcapping":
        cap = float(number)
    elif number is not None:
        factor = 1 / float(number) if kind.outputs == "logits_scaling" else float(number)
    head = HeadKind(partial(_vocabulary, factor=factor, cap=cap), partial(_logits, factor=factor, cap=cap))
    return with_outputs(model, kind, head)


def _vocabulary(parts: Parts, *, factor: float, cap: float | None) -> tuple[HeadStepSpec, ...]:
    """``lm_head``; what multiplies its outputs multiplies its inputs here, since it has no bias."""
    step = parts.step("lm_head", None if cap is None else f"softcap:{cap}")
    if factor == 1:
        return (step,)
    if step.map is not None and step.map.bias is not None:
        raise UnsupportedModelError(f"the outputs of lm_head are multiplied by {factor}, and it has a bias")
    return HeadStepSpec(norm=ScaleSpec(factor)), step


def _logits(model: Module, rows: Tensor, *, factor: float, cap: float | None) -> Tensor:
    logits: Tensor = model.lm_head(rows)
    logits = logits if factor == 1 else logits * factor
    return logits if cap is None else torch.tanh(logits / cap) * cap


HEADS: dict[str, Callable[..., ModelSpec]] = {
    "CausalLM": language_model,
    "SequenceClassification": classifier,
    "TokenClassification": partial(with_outputs, head=linear("score")),
    "QuestionAnswering": partial(with_outputs, head=SPANS),
}

#: Which of these transformers has: of most families all, of some all but the last, and so on.
LANGUAGE, CLASSES, TOKENS, ALL = (tuple(HEADS)[:count] for count in range(1, 5))


def families(kinds: Mapping[str, tuple[Kind, Sequence[str]]]) -> dict[str, Callable[[Module], ModelSpec]]:
    """The descriptions by the names of classes: of each family the layers alone, and with each of its heads."""
    found: dict[str, Callable[[Module], ModelSpec]] = {}
    for name, (kind, tasks) in kinds.items():
        found[f"{name}Model"] = partial(with_outputs, kind=kind, head=STATE)
        found |= {f"{name}For{task}": partial(HEADS[task], kind=kind) for task in tasks}
    return found
