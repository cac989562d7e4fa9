"""NomicBERT, GTE and Jina v3: post-norm layers with rotary positions, and gated networks in all but Jina's."""

from __future__ import annotations

from collections.abc import Callable

from ..reading.classifiers import dense_and_out_proj
from ..reading.heads import BARE, LM_HEAD, SPANS, TOKENS, headed, module, pooled_classes, steps_of
from ..reading.parts import Module, Parts, embedding_limits, stack, whole
from ..reading.rotary_attention import attention
from ..spec import LayerSpec, ModelSpec, SublayerSpec


def nomic_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm; network, which is gated in all but Jina's, add and norm."""
    if hasattr(layer["mlp"], "fc1"):
        feed = layer.network("mlp.fc1", "mlp.fc2", "mlp.activation_fn")
    else:
        feed = layer.network("mlp.up_proj", "mlp.down_proj", "mlp.act_fn", gate="mlp.gate_proj")
    return (
        SublayerSpec((attention(layer),), post_norm=layer.norm("post_attention_layernorm")),
        SublayerSpec((feed,), post_norm=layer.norm("post_mlp_layernorm")),
    )


def nomic_body(model: Module, encoder: str) -> ModelSpec:
    """The layers of NomicBERT, GTE or Jina v3, whatever the head."""
    base = whole(model, encoder)
    limits = embedding_limits(base.below("embeddings"), most=model.config.max_position_embeddings)
    return stack(base, "layers", nomic_layer, limits=limits)


_NOMIC_PREDICTIONS = module(
    "cls.predictions",
    steps_of(("transform.dense", "transform.transform_act_fn", "transform.layer_norm"), ("decoder",)),
)

_NOMIC = {"ForTokenClassification": TOKENS, "ForMaskedLM": _NOMIC_PREDICTIONS, "Model": BARE}

_GTE = {"ForTokenClassification": TOKENS, "ForMaskedLM": LM_HEAD, "Model": BARE}

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    **headed("Gte", nomic_body, "gte", _GTE, pooled_classes("gte")),
    **headed("JinaEmbeddingsV3", nomic_body, "roberta", _GTE | {"ForQuestionAnswering": SPANS}, dense_and_out_proj),
    **headed("NomicBert", nomic_body, "nomic_bert", _NOMIC, pooled_classes("nomic_bert")),
}
