"""DINOv2, with and without registers: a classifier of pictures by the class and the mean of the patches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reading.parts import Module, Parts
from ..reading.pictures import ATTENTION, CLASS, nested_attention, picture_model, pictures_of, scaled_layer
from ..spec import FeedForwardSpec, LayerSpec, ModelSpec
from ..terms import Pooled


def dinov2_layer(layer: Parts) -> LayerSpec:
    """Norm, attention, scale, add; norm, network, scale, add; the network may be gated.

    Earlier versions of transformers name and nest the modules otherwise, and store gates and values as one.
    """
    attention, network = layer["attention"], layer["mlp"]
    if hasattr(attention, "q_proj"):
        heads = getattr(attention, "num_attention_heads", None) or attention.num_heads
        attend = layer.attention(ATTENTION, heads=heads, size=attention.head_dim)
    else:
        attend = nested_attention(layer)
    if hasattr(network, "gate_proj"):
        feed = layer.network("mlp.up_proj", "mlp.down_proj", "mlp.act_fn", "mlp.gate_proj")
    elif hasattr(network, "weights_in"):
        both = layer.affine("mlp.weights_in")
        gate, value = both.part(0, 2), both.part(1, 2)
        feed = FeedForwardSpec(value, layer.affine("mlp.weights_out", value.weight.shape[1]), "silu", gate)
    else:
        activation = "mlp.activation_fn" if hasattr(network, "activation_fn") else "mlp.activation"
        feed = layer.network("mlp.fc1", "mlp.fc2", activation)
    scales = layer["layer_scale1.lambda1"], layer["layer_scale2.lambda1"]
    return scaled_layer(layer, ("norm1", "norm2"), attend, feed, scales)


def dinov2(model: Module, base: str = "dinov2") -> ModelSpec:
    """``Dinov2ForImageClassification``: a classifier on the position of the class and the mean of the patches."""
    config = model.config
    registers = getattr(config, "num_register_tokens", 0)
    special = (CLASS, *(f"[REG{n}]" for n in range(registers)))
    picture = pictures_of(getattr(model, base).embeddings.patch_embeddings, special)
    return picture_model(
        model,
        base,
        "encoder.layer",
        dinov2_layer,
        lambda parts: (parts.step("classifier", features=2 * config.hidden_size),),
        picture,
        width=config.hidden_size,
        read=Pooled(((0, 1), (len(special), None))),
        asks=False,
    )


FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "Dinov2ForImageClassification": dinov2,
    "Dinov2WithRegistersForImageClassification": partial(dinov2, base="dinov2_with_registers"),
}
