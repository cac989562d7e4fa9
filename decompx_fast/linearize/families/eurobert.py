"""EuroBERT: the layers of Llama, attending to both sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...errors import UnsupportedModelError
from ..reading.heads import BARE, TOKENS, Read, headed, linear
from ..reading.parts import Module, Parts, embedding_limits, stack, whole
from ..reading.rotary_attention import attention
from ..spec import LayerSpec, ModelSpec, SublayerSpec


def eurobert_layer(layer: Parts) -> LayerSpec:
    """RMSNorm, attention, add; RMSNorm, gated network, add."""
    feed = layer.network("mlp.up_proj", "mlp.down_proj", "mlp.act_fn", gate="mlp.gate_proj")
    return (
        SublayerSpec((attention(layer),), pre_norm=layer.rms_norm("input_layernorm")),
        SublayerSpec((feed,), pre_norm=layer.rms_norm("post_attention_layernorm")),
    )


def eurobert_body(model: Module, encoder: str) -> ModelSpec:
    """The layers and the norm after them, whatever the head."""
    base = whole(model, encoder)
    limits = embedding_limits(base, "embed_tokens", most=model.config.max_position_embeddings)
    return stack(base, "layers", eurobert_layer, limits=limits, norm="norm", read_norm=Parts.rms_norm, in_float32=True)


def eurobert(model: Module) -> ModelSpec:
    """``EuroBertForSequenceClassification``: dense, activation, classifier, on the first token, the mean, or each."""
    pooling = model.classifier_pooling
    if pooling not in EUROBERT_READ:
        raise UnsupportedModelError(f"classifier_pooling={pooling!r}: supported are {', '.join(EUROBERT_READ)}")
    spec = eurobert_body(model, "model")
    parts = Parts(model, "", spec.width)
    head = (parts.step("dense", parts.activation("activation")), parts.step("classifier"))
    return replace(spec, head=head, read=EUROBERT_READ[pooling])


#: What is read, by the option ``classifier_pooling``: the first token, the mean of all, or each, whose logits are
#: averaged.
EUROBERT_READ: dict[str, Read] = {"bos": 0, "mean": "mean", "late": "averaged"}


_EUROBERT = {"ForTokenClassification": TOKENS, "ForMaskedLM": linear("lm_head"), "Model": BARE}

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "EuroBertForSequenceClassification": eurobert,
    **headed("EuroBert", eurobert_body, "model", _EUROBERT),
}
