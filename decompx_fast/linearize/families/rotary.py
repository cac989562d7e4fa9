"""Encoders with rotary positions: RoFormer, NomicBERT, GTE, Jina v3 (post-norm) and EuroBERT (Llama's layers)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...errors import UnsupportedModelError
from ..spec import AttentionSpec, LayerSpec, ModelSpec, SublayerSpec
from .bert import ATTENTION, classifier, dense_and_out_proj, pooler_and_classifier, summary_read
from .heads import BARE, LM_HEAD, PREDICTIONS, SPANS, TOKENS, Read, headed, in_turn, linear, module, steps_of
from .parts import Module, Parts, embedding_limits, interleaved_rotary_positions, model_spec, rotary_positions


def roformer_layer(layer: Parts) -> LayerSpec:
    """BERT's layer; neighbours are rotated."""
    if layer["attention.self.rotary_value"]:
        raise UnsupportedModelError(f"{layer.name} rotates its values too (rotary_value): this cannot be explained yet")
    attend = layer.attention(
        ATTENTION,
        heads=layer["attention.self.num_attention_heads"],
        causal=layer["is_decoder"],
        positions=interleaved_rotary_positions,
    )
    feed = layer.network("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
    return (
        SublayerSpec((attend,), post_norm=layer.norm("attention.output.LayerNorm")),
        SublayerSpec((feed,), post_norm=layer.norm("output.LayerNorm")),
    )


def _attention(layer: Parts) -> AttentionSpec:
    size = layer["self_attn.head_dim"]
    names = (f"self_attn.{name}_proj" for name in "qkvo")
    heads = layer["self_attn.config"].num_attention_heads
    op = layer.attention(names, heads=heads, size=size, positions=rotary_positions)
    return replace(op, kv_heads=op.key.weight.shape[1] // size)


def nomic_layer(layer: Parts) -> LayerSpec:
    """Attention, add and norm; network, which is gated in all but Jina's, add and norm."""
    if hasattr(layer["mlp"], "fc1"):
        feed = layer.network("mlp.fc1", "mlp.fc2", "mlp.activation_fn")
    else:
        feed = layer.network("mlp.up_proj", "mlp.down_proj", "mlp.act_fn", gate="mlp.gate_proj")
    return (
        SublayerSpec((_attention(layer),), post_norm=layer.norm("post_attention_layernorm")),
        SublayerSpec((feed,), post_norm=layer.norm("post_mlp_layernorm")),
    )


def eurobert_layer(layer: Parts) -> LayerSpec:
    """RMSNorm, attention, add; RMSNorm, gated network, add."""
    feed = layer.network("mlp.up_proj", "mlp.down_proj", "mlp.act_fn", gate="mlp.gate_proj")
    return (
        SublayerSpec((_attention(layer),), pre_norm=layer.rms_norm("input_layernorm")),
        SublayerSpec((feed,), pre_norm=layer.rms_norm("post_attention_layernorm")),
    )


def roformer_body(model: Module, encoder: str) -> ModelSpec:
    """The layers, whatever the head; ``encoder`` is where they are in the model."""
    base = Parts(model, "", model.config.hidden_size).below(encoder)
    layers = [base.below(f"encoder.layer.{n}") for n in range(len(base["encoder.layer"]))]
    limits = embedding_limits(base.below("embeddings"), most=model.config.max_position_embeddings)
    return model_spec(layers, roformer_layer, (), limits)


def roformer(model: Module) -> ModelSpec:
    """``RoFormerForSequenceClassification``: dense, activation, out_proj."""
    spec = roformer_body(model, "roformer")
    parts = Parts(model, "", spec.width)
    return replace(
        spec, head=(parts.step("classifier.dense", model.config.hidden_act), parts.step("classifier.out_proj"))
    )


def nomic_body(model: Module, encoder: str) -> ModelSpec:
    """The layers of NomicBERT, GTE or Jina v3, whatever the head."""
    base = Parts(model, "", model.config.hidden_size).below(encoder)
    layers = [base.below(f"layers.{n}") for n in range(len(base["layers"]))]
    limits = embedding_limits(base.below("embeddings"), most=model.config.max_position_embeddings)
    return model_spec(layers, nomic_layer, (), limits)


def eurobert_body(model: Module, encoder: str) -> ModelSpec:
    """The layers and the norm after them, whatever the head."""
    base = Parts(model, "", model.config.hidden_size).below(encoder)
    return model_spec(
        [base.below(f"layers.{n}") for n in range(len(base["layers"]))],
        eurobert_layer,
        head=(),
        limits=embedding_limits(base, "embed_tokens", most=model.config.max_position_embeddings),
        final_norm=(base["norm"], base.rms_norm("norm")),
        in_float32=True,
    )


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

#: The summary is the last token alone.
_CHOICE = in_turn(
    ("sequence_summary.summary", "sequence_summary.activation"),
    ("classifier",),
    calls=("classifier",),
    pooler="sequence_summary",
)
_ROFORMER = {
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": SPANS,
    "ForMaskedLM": PREDICTIONS,
    "ForMultipleChoice": replace(_CHOICE, read_of=summary_read),
    "Model": BARE,
}
_NOMIC_PREDICTIONS = module(
    "cls.predictions",
    steps_of(("transform.dense", "transform.transform_act_fn", "transform.layer_norm"), ("decoder",)),
)
_NOMIC = {"ForTokenClassification": TOKENS, "ForMaskedLM": _NOMIC_PREDICTIONS, "Model": BARE}
_GTE = {"ForTokenClassification": TOKENS, "ForMaskedLM": LM_HEAD, "Model": BARE}
_EUROBERT = {"ForTokenClassification": TOKENS, "ForMaskedLM": linear("lm_head"), "Model": BARE}

_nomic = partial(classifier, body=nomic_body)

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "EuroBertForSequenceClassification": eurobert,
    "GteForSequenceClassification": partial(_nomic, encoder="gte", head=pooler_and_classifier),
    "JinaEmbeddingsV3ForSequenceClassification": partial(_nomic, encoder="roberta", head=dense_and_out_proj),
    "NomicBertForSequenceClassification": partial(_nomic, encoder="nomic_bert", head=pooler_and_classifier),
    "RoFormerForSequenceClassification": roformer,
    **headed("EuroBert", eurobert_body, "model", _EUROBERT),
    **headed("Gte", nomic_body, "gte", _GTE),
    **headed("JinaEmbeddingsV3", nomic_body, "roberta", _GTE | {"ForQuestionAnswering": SPANS}),
    **headed("NomicBert", nomic_body, "nomic_bert", _NOMIC),
    **headed("RoFormer", roformer_body, "roformer", _ROFORMER),
}
