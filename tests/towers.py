"""Tiny random models of texts and pictures, inputs for them, and their decomposition in NumPy."""

from __future__ import annotations

from typing import Any

import naive_vision
import numpy as np
import torch
import transformers
from naive import Array, array
from naive_vision import State
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

PICTURE = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "image_size": 16,
    "patch_size": 4,
}
TEXT = PICTURE | {"vocab_size": 50, "max_position_embeddings": 12}
SPECIAL = {"bos_token_id": 48, "eos_token_id": 49, "pad_token_id": 1}

#: Of each class in transformers, less ``Model``: options of its encoder of texts and of that of pictures.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "clip": ("CLIP", {"hidden_size": 16, "num_attention_heads": 2}, {}),
    "clip_old": ("CLIP", {"eos_token_id": 2, "hidden_act": "gelu"}, {"hidden_act": "gelu"}),
    "metaclip2": ("MetaClip2", {}, {}),
    "siglip": ("Siglip", {"projection_size": 24}, {}),
}


def model(case: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    """In eval mode; every weight random, no bias zero and no norm weight one."""
    name, text, picture = CASES[case]
    sizes = {"text_config": TEXT | SPECIAL | text, "vision_config": PICTURE | picture, "projection_dim": 20}
    made = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes)).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, parameter in made.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            gain = 1 if parameter.ndim == 1 and path.endswith("weight") else 0
            parameter.copy_(gain + 0.3 * noise)
    return made


def ids(n: int = 12) -> list[int]:
    """A text of so many tokens, with its end."""
    return [48, *torch.randint(3, 48, (n - 2,), generator=torch.Generator().manual_seed(n)).tolist(), 49]


def pixels() -> torch.Tensor:
    """A prepared picture, ``[3, height, width]``."""
    return torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def truth(made: nn.Module, text: list[int], picture: torch.Tensor) -> Any:
    """What transformers' own forward gives."""
    dtype = next(made.parameters()).dtype
    with torch.no_grad():
        return made(input_ids=torch.tensor([text]), pixel_values=picture[None].to(dtype))


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Of words."""
    vocabulary = {"[UNK]": 0, "<pad>": 1}
    for word in ["a", "photo", "of", "the", "cat", "red", "square", "on", "green", "ground"]:
        vocabulary[word] = len(vocabulary)
    vocabulary |= {"<start>": 48, "<end>": 49}
    whole = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    whole.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 48), ("<end>", 49)]
    )
    special = {"unk_token": "[UNK]", "pad_token": "<pad>", "bos_token": "<start>", "eos_token": "<end>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=whole, model_max_length=12, **special)


def processor() -> transformers.CLIPProcessor:
    """Of texts and pictures."""
    pictures = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return transformers.CLIPProcessor(pictures, tokenizer())


def vectors(made: nn.Module, given: torch.Tensor, rule: str, *, is_text: bool) -> Array:
    """Each source's part of the vector of a text ``[i]`` or a picture ``[c, height, width]``, ``[k, d]``."""
    tower = made.text_model if is_text else made.vision_model
    kept: list[torch.Tensor] = []
    layers = tower.encoder.layers
    handle = layers[0].register_forward_pre_hook(lambda _m, args, kwargs: kept.append(args[0]), with_kwargs=True)
    with torch.no_grad():
        tower(given[None])
    handle.remove()
    x = array(kept[0], row=True)
    n = len(x)
    u = np.zeros((n, n + (rule == "bias_token"), x.shape[1]))
    u[np.arange(n), np.arange(n)] = x
    state, causal = State(u, x), is_text and not type(made).__name__.startswith("Siglip")
    mask = np.where(np.tri(n, dtype=bool), 0.0, -np.inf) if causal else None
    for layer in layers:
        added = None if mask is None else np.broadcast_to(mask, (layer.self_attn.num_heads, n, n))
        normed = naive_vision.norm(state, layer.layer_norm1, rule)
        z = naive_vision.attention(normed, layer.self_attn, layer.self_attn.out_proj, added, 1.0, rule)
        state = State(state.u + z.u, state.x + z.x)
        normed = naive_vision.norm(state, layer.layer_norm2, rule)
        z = naive_vision.network(normed, layer.mlp, tower.config.hidden_act, 1.0, rule)
        state = State(state.u + z.u, state.x + z.x)
    return after(made, tower, state, given, rule, is_text=is_text)


def after(made: nn.Module, tower: nn.Module, state: State, given: torch.Tensor, rule: str, *, is_text: bool) -> Array:
    """What comes after the last layer."""
    siglip = type(made).__name__.startswith("Siglip")
    if is_text:
        eos = tower.config.eos_token_id
        old = eos == 2 and not siglip and not type(made).__name__.startswith("MetaClip2")
        at = len(given) - 1 if siglip else int(given.argmax() if old else (given == eos).int().argmax())
        state = naive_vision.norm(state, tower.final_layer_norm, rule)
        one = State(state.u[at : at + 1], state.x[at : at + 1])
        return naive_vision.affine(one, tower.head if siglip else made.text_projection, rule).u[0]
    if not siglip:
        one = naive_vision.norm(State(state.u[:1], state.x[:1]), tower.post_layernorm, rule)
        return naive_vision.affine(one, made.visual_projection, rule).u[0]
    return pooled(naive_vision.norm(state, tower.post_layernorm, rule), tower.head, tower.config.hidden_act, rule).u[0]


def pooled(state: State, head: nn.Module, kind: str, rule: str) -> State:
    """By the attention of the learned query, head by head, and a network."""
    module = head.attention
    d, heads = module.embed_dim, module.num_heads
    weights, biases = (array(one).reshape(3, d, -1) for one in (module.in_proj_weight, module.in_proj_bias))
    query = array(head.probe).reshape(1, d) @ weights[0].T + biases[0].T
    key, out = state.x @ weights[1].T + biases[1].T, array(module.out_proj.weight).T
    u, x, total = np.zeros((1, *state.u.shape[1:])), np.zeros((1, d)), array(module.out_proj.bias)
    for h in range(heads):
        part = slice(h * d // heads, (h + 1) * d // heads)
        logits = (query[:, part] @ key[:, part].T / np.sqrt(d // heads))[0]
        alpha = np.exp(logits - logits.max())
        alpha /= alpha.sum()
        through = weights[2].T[:, part] @ out[part]
        u[0] += np.einsum("j,jkd->kd", alpha, state.u @ through)
        x[0] += alpha @ (state.x @ through)
        total = total + biases[2].reshape(d)[part] @ out[part]
    one = State(naive_vision.add_bias(u[0], total, rule)[None], x + total)
    z = naive_vision.network(naive_vision.norm(one, head.layernorm, rule), head.mlp, kind, 1.0, rule)
    return State(one.u + z.u, one.x + z.x)
