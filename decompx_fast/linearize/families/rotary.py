"""Encoders with rotary positions: RoFormer, NomicBERT, GTE, Jina v3 (post-norm) and EuroBERT (Llama's layers)."""

from __future__ import annotations

from ...errors import UnsupportedModelError
from ..spec import AttentionSpec, LayerSpec, ModelSpec, SublayerSpec
from .bert import ATTENTION, dense_and_out_proj, pooler_and_classifier
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
    config, size = layer["self_attn.config"], layer["self_attn.head_dim"]
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", heads)
    names = (f"self_attn.{name}_proj" for name in "qkvo")
    return layer.attention(names, heads=heads, size=size, kv_heads=kv_heads, positions=rotary_positions)


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


def roformer(model: Module) -> ModelSpec:
    """``RoFormerForSequenceClassification``: dense, activation, out_proj."""
    parts = Parts(model, "", model.config.hidden_size)
    layers = [parts.below(f"roformer.encoder.layer.{n}") for n in range(len(model.roformer.encoder.layer))]
    head = (parts.step("classifier.dense", model.config.hidden_act), parts.step("classifier.out_proj"))
    limits = embedding_limits(parts.below("roformer.embeddings"), most=model.config.max_position_embeddings)
    return model_spec(layers, roformer_layer, head, limits)


def nomic(model: Module) -> ModelSpec:
    """``NomicBert-``, ``Gte-`` and ``JinaEmbeddingsV3ForSequenceClassification``: BERT's head or RoBERTa's."""
    name = next(name for name in ("nomic_bert", "gte", "roberta") if hasattr(model, name))
    parts = Parts(model, "", model.config.hidden_size)
    layers = [parts.below(f"{name}.layers.{n}") for n in range(len(parts[f"{name}.layers"]))]
    head = (dense_and_out_proj if name == "roberta" else pooler_and_classifier)(parts, name)
    limits = embedding_limits(parts.below(f"{name}.embeddings"), most=model.config.max_position_embeddings)
    return model_spec(layers, nomic_layer, head, limits)


def eurobert(model: Module) -> ModelSpec:
    """``EuroBertForSequenceClassification``: dense, activation, classifier, on the first token or the mean."""
    config = model.config
    pooling = model.classifier_pooling
    if pooling not in ("bos", "mean"):
        raise UnsupportedModelError(
            f"classifier_pooling={pooling!r} applies the head to every token and takes the mean of the logits: only "
            "'bos' and 'mean' can be explained yet"
        )
    parts = Parts(model, "", config.hidden_size)
    layers = [parts.below(f"model.layers.{n}") for n in range(len(model.model.layers))]
    return model_spec(
        layers,
        eurobert_layer,
        head=(parts.step("dense", parts.activation("activation")), parts.step("classifier")),
        limits=embedding_limits(parts.below("model"), "embed_tokens", most=config.max_position_embeddings),
        read="mean" if pooling == "mean" else 0,
        final_norm=(model.model.norm, parts.rms_norm("model.norm")),
        in_float32=True,
    )


FAMILIES = {
    "EuroBertForSequenceClassification": eurobert,
    "GteForSequenceClassification": nomic,
    "JinaEmbeddingsV3ForSequenceClassification": nomic,
    "NomicBertForSequenceClassification": nomic,
    "RoFormerForSequenceClassification": roformer,
}
