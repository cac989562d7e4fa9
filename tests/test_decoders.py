"""Decoders with biases and packed maps: random odd configurations in float64, all engines, NumPy beside them."""

from __future__ import annotations

import functools

import naive
import numpy as np
import peft
import pytest
import torch
import transformers
from exactness import (
    ROUNDING,
    WEIGHTS,
    all_layers_are_recorded,
    changed_parts_are_refused,
    engines_agree,
    is_decomposition,
    item_for,
    weights_are_views,
    with_rules,
)
from models import randomized
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from decompx_fast import DecompX, DecompXConfig, UnsupportedModelError
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.linearize.linearization import linearize

COMMON = {
    "hidden_size": 20,
    "num_attention_heads": 5,
    "num_hidden_layers": 2,
    "intermediate_size": 28,
    "vocab_size": 50,
    "max_position_embeddings": 40,
    "num_labels": 3,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
GPT_NEO = {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 3}
EIGHT = {"hidden_size": 24, "num_attention_heads": 3}  # heads of 8 numbers, of which half can be rotated in pairs
MPT = {"d_model": 20, "n_heads": 5, "n_layers": 2, "max_seq_len": 30}
FALCON = {"num_attention_heads": 6, "hidden_size": 24, "num_ln_in_parallel_attn": None, "alibi": False}
OLD = FALCON | {"new_decoder_architecture": False}

#: Of each class in transformers, less its prefix: options beside :data:`COMMON`.
CASES: dict[str, tuple[str, dict]] = {
    "gpt2": ("GPT2", {"n_inner": 28}),
    "gpt2_relu": ("GPT2", {"activation_function": "relu", "scale_attn_by_inverse_layer_idx": True}),
    "bigcode": ("GPTBigCode", {"n_inner": 28, "activation_function": "gelu_pytorch_tanh"}),
    "bigcode_all_heads": ("GPTBigCode", {"multi_query": False}),
    "gpt_neo": ("GPTNeo", GPT_NEO | {"activation_function": "gelu_new"}),
    "gptj": ("GPTJ", EIGHT | {"rotary_dim": 4, "activation_function": "gelu_fast"}),
    "neox": ("GPTNeoX", EIGHT | {"rotary_pct": 0.5}),
    "neox_in_sequence": ("GPTNeoX", EIGHT | {"use_parallel_residual": False, "attention_bias": False}),
    "persimmon": ("Persimmon", EIGHT | {"qk_layernorm": True}),
    "phi": ("Phi", EIGHT | {"qk_layernorm": True, "num_key_value_heads": 1}),
    "phi_plain": ("Phi", EIGHT | {"partial_rotary_factor": 0.5}),
    "stablelm": ("StableLm", EIGHT | {"use_qkv_bias": True, "qk_layernorm": True, "num_key_value_heads": 1}),
    "stablelm_parallel": ("StableLm", EIGHT | {"use_parallel_residual": True, "num_key_value_heads": 3}),
    "starcoder2": ("Starcoder2", EIGHT | {"num_key_value_heads": 1, "sliding_window": 3}),
    "starcoder2_whole": ("Starcoder2", EIGHT | {"num_key_value_heads": 3, "sliding_window": None, "use_bias": False}),
    "bloom": ("Bloom", {}),
    "bloom_normed_residual": ("Bloom", {"apply_residual_connection_post_layernorm": True}),
    "mpt": ("Mpt", MPT),
    "falcon_old": ("Falcon", OLD | {"parallel_attn": False, "multi_query": False, "bias": True}),
    "falcon_7b": ("Falcon", OLD | {"parallel_attn": True, "multi_query": True}),
    "falcon_new": ("Falcon", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon_new_one_norm": (
        "Falcon",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1},
    ),
    "falcon_alibi": ("Falcon", OLD | {"parallel_attn": False, "multi_query": True, "alibi": True, "bias": True}),
    "falcon_alibi_eager": ("Falcon", OLD | {"alibi": True, "attn_implementation": "eager"}),
    "opt": ("OPT", {"ffn_dim": 28, "word_embed_proj_dim": 20}),
    "opt_narrow_words": ("OPT", {"ffn_dim": 28, "word_embed_proj_dim": 12, "do_layer_norm_before": False}),
    "opt_without_biases": (
        "OPT",
        {"word_embed_proj_dim": 12, "enable_bias": False, "layer_norm_elementwise_affine": False, "ffn_dim": 28},
    ),
}
#: Those that transformers has no classifier of.
LANGUAGE_MODELS = {
    "codegen": ("CodeGen", {"hidden_size": 48, "num_attention_heads": 8, "rotary_dim": 4, "n_inner": 28}),
}

#: Cases whose model takes some steps in float32 whatever its dtype: it can be compared with no more closely.
IN_FLOAT32 = dict.fromkeys(
    ["gpt_neo", "bloom", "bloom_normed_residual", "mpt"]
    + ([] if transformers.GPTJModel._supports_sdpa else ["gptj", "codegen"]),
    1e-5,
)


def classifier(
    case: str,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    head: str = "ForSequenceClassification",
    **options,
) -> nn.Module:
    """In eval mode; every weight random, no bias zero and no norm weight one."""
    name, own = (CASES | LANGUAGE_MODELS)[case]
    config = getattr(transformers, f"{name}Config")(**(COMMON | own | options))
    model = getattr(transformers, f"{name}{head}")._from_config(config).to(dtype).eval()
    return randomized(model, seed)


def inputs(batch: int = 2, tokens: int = 7) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return {"input_ids": torch.randint(5, 50, (batch, tokens), generator=generator)}


@pytest.mark.parametrize(("case", "rule"), with_rules(CASES))
def test_engines_and_a_second_decomposition_agree(case, rule):
    model, given = classifier(case), inputs()
    expected = engines_agree(model, given, rule)
    size = expected.abs().max().item()
    item = item_for(rule)
    one = {name: value[item : item + 1] for name, value in given.items()}
    scores, _ = naive.decompose(linearize(model, one), DecompXConfig(bias=rule))
    is_decomposition(scores, expected[item], rule, size)


@pytest.mark.parametrize("case", CASES)
def test_scores_sum_to_the_logits_at_every_length(case):
    model = classifier(case, seed=1)
    for tokens in (1, 2, 13):
        linearization = linearize(model, inputs(1, tokens))
        result = forward.attribute(linearization, DecompXConfig())
        rounding = IN_FLOAT32.get(case, ROUNDING)
        assert result.gap.max().item() <= rounding * linearization.logits.abs().max().item()
        assert linearization.max_gap <= rounding


@pytest.mark.parametrize("case", CASES)
def test_all_layers_are_recorded(case):
    dtype = torch.float32 if case in IN_FLOAT32 else torch.float64
    all_layers_are_recorded(classifier(case, dtype=dtype), inputs())


@pytest.mark.parametrize("case", CASES)
def test_weights_are_not_copied(case):
    weights_are_views(classifier(case), inputs(), [name for name in WEIGHTS if name != "b_value"])


@pytest.mark.parametrize("case", CASES)
def test_a_replaced_linear_map_is_refused(case):
    model = classifier(case)
    maps = [
        name
        for name, module in model.named_modules()
        if getattr(module._parameters.get("weight"), "ndim", 0) == 2 and any(map(str.isdigit, name.split(".")))
    ]
    assert len(maps) >= 8
    changed_parts_are_refused(model, inputs(), maps[:6], lambda _m, _a, output: output + 0.01 * output.abs())


OPTIONS = {
    "released": {"variant": "released"},
    "without norms": {"ln1": False, "bias": "norm"},
    "without the networks' norms": {"ln2": False},
    "without networks": {"ffn": False, "bias": "equal"},
    "tangents": {"activation": "linear", "bias": "abssim"},
    "half of the gate": {"gate": "half", "bias": "equal"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("case", ["neox", "falcon_new", "phi", "stablelm", "bloom_normed_residual"])
def test_engines_agree_with_every_option(case, options):
    model, given, config = classifier(case), inputs(1), DecompXConfig(**options)
    expected, _ = naive.decompose(linearize(model, given), config)
    engines = [reference, forward] + ([adjoint] if config.bias in ("none", "equal") else [])
    for engine in engines:
        found = engine.attribute(linearize(model, given), config).scores[0].numpy()
        assert np.abs(found - expected).max() <= ROUNDING * np.abs(expected).max()


@pytest.mark.parametrize("case", ["neox", "falcon_new", "bigcode_all_heads", "gpt2"])
def test_small_blocks_and_groups_of_tokens_change_nothing(case):
    model, given, config = classifier(case), inputs(2, 9), DecompXConfig()
    groups = torch.tensor([[0, 0, 1, 2, 2, 2, 3, 3, 3], [0, 1, 1, 1, 2, 3, 3, 3, 3]])
    expected = reference.attribute(linearize(model, given), config, sources=groups).scores
    for room in (None, 120_000):
        found = forward.attribute(linearize(model, given), config, sources=groups, workspace_bytes=room).scores
        assert (found - expected).abs().max() <= ROUNDING * expected.abs().max()


@pytest.mark.parametrize("case", ["neox", "falcon_new", "bloom", "gpt2", "bigcode_all_heads"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_and_compiled_operations_take_maps_stored_in_turns(case, dtype):
    expected = reference.attribute(linearize(classifier(case), inputs()), DecompXConfig()).scores
    model = classifier(case, dtype=dtype)
    found = forward.attribute(linearize(model, inputs()), DecompXConfig(), dtype=dtype).scores
    # Of each number 24 or 8 bits are kept, and random weights of this size magnify that by a hundred.
    rounding = 100 * torch.finfo(dtype).eps
    assert (found.double() - expected).abs().max() <= rounding * expected.abs().max()


# What the head reads.


@functools.cache
def tokenizer():
    """Words in small letters; no token is put around a text."""
    vocabulary = {word: n for n, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, model_input_names=["input_ids", "attention_mask"], **names
    )


TEXTS = ["a b c", "d e f g h i j", "k", "l m n o"]


@pytest.mark.parametrize("case", ["gpt2", "bloom", "falcon_alibi", "opt", "neox"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(case, side):
    explainer = DecompX(classifier(case), tokenizer())
    found = explainer.explain(dict(tokenizer()(TEXTS, padding=True, padding_side=side)))
    for explanation, text in zip(found, TEXTS, strict=True):
        alone = explainer.explain(text)
        assert torch.allclose(explanation.scores, alone.scores, rtol=0, atol=1e-9 * alone.scores.abs().max().item())
        assert explanation.completeness_error < IN_FLOAT32.get(case, 1e-9)


@pytest.mark.parametrize("case", ["gpt2", "phi", "opt"])
def test_a_batch_needs_no_padding_token(case):
    model = classifier(case, pad_token_id=None)
    assert model.config.pad_token_id is None
    found = DecompX(model, tokenizer()).explain(["a b c", "d e f"], batch_size=2)
    for explanation in found:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokenizer()(explanation.texts[0])["input_ids"]])).logits[0]
        assert torch.allclose(explanation.scores.sum(0), logits, rtol=1e-9)
    assert model.config.pad_token_id is None


# Modules of other kinds.


@pytest.mark.parametrize("target", ["c_attn", "c_fc"])
def test_an_adapter_on_a_map_stored_the_other_way_round(target):
    model = classifier("gpt2")
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=[target], r=2, fan_in_fan_out=True)
    adapted = peft.get_peft_model(model, config).eval().double()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64))
    linearization = linearize(adapted, inputs())
    result = reference.attribute(linearization, DecompXConfig())
    assert torch.allclose(result.scores.sum(1), adapted(**inputs()).logits, rtol=0, atol=1e-9)
    assert linearization.max_gap < ROUNDING


REFUSED = {
    "mpt": ({"attn_config": {"clip_qkv": 0.5}}, "clamps its values"),
    "bloom": ({"slow_but_exact": True, "pretraining_tp": 2}, "slow_but_exact"),
    "gptj": ({"activation_function": "mish"}, "Mish"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_exact_is_refused_by_name(case):
    options, reason = REFUSED[case]
    with pytest.raises(UnsupportedModelError, match=reason):
        linearize(classifier(case, **options), inputs())


def test_a_norm_of_its_own_counts_in_the_account_of_biases():
    """Of each site ``sum_i g[i] . b``: all together are what the tokens themselves leave of the logits."""
    model = classifier("neox")
    linearization = linearize(model, inputs())
    result = adjoint.attribute(linearization, DecompXConfig(bias="none"))
    assert {site.place for site in result.sites} >= {"pre_ln1", "pre_ln2"}
    total = result.scores.sum(1) + sum(site.value for site in result.sites)
    assert torch.allclose(total, linearization.logits, rtol=0, atol=1e-9)
    # What a layer carries in its branches and past them is all that there is at its input.
    carried = sum(value.sum(1) for name, value in result.components.items() if name.endswith(".0"))
    assert torch.allclose(carried, result.scores.sum(1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("rule", ["absdot", "equal"])
@pytest.mark.parametrize("case", ["gpt2", "starcoder2", "opt_narrow_words"])
def test_texts_that_end_with_the_padding_token_are_read_before_it(case, rule):
    """The token of the end of a text may be that of padding as well. Then each item reads another position."""
    model = classifier(case, pad_token_id=2)
    ids = inputs(3, 6)["input_ids"]
    ids[0, 4:], ids[1, 1], ids[2, 5] = 2, 2, 2
    config = DecompXConfig(bias=rule)
    with torch.no_grad():
        truth = model(input_ids=ids).logits
    engines = [reference, forward] + ([adjoint] if rule == "equal" else [])
    results = [engine.attribute(linearize(model, {"input_ids": ids}), config).scores for engine in engines]
    for scores in results:
        assert torch.allclose(scores.sum(1), truth, rtol=0, atol=1e-9)
        assert scores[0, 4:].abs().max() == 0 and scores[2, 5:].abs().max() == 0
        assert torch.allclose(scores, results[0], rtol=0, atol=1e-9)
    alone = [reference.attribute(linearize(model, {"input_ids": row[None]}), config).scores[0] for row in ids]
    assert torch.allclose(results[0], torch.stack(alone), rtol=0, atol=1e-9)
