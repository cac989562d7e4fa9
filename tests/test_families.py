"""Every architecture: random odd configurations in float64, all engines, and a decomposition in NumPy beside them."""

from __future__ import annotations

import encoder_decoders
import llama_like
import naive
import pytest
import sound_models
import test_decoders
import torch
import transformers
from exactness import (
    ROUNDING,
    RULES,
    all_layers_are_recorded,
    changed_parts_are_refused,
    engines_agree,
    is_decomposition,
    item_for,
    weights_are_views,
    with_rules,
)
from models import randomized
from torch import nn

from decompx_fast import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.linearize.architectures import supported_architectures
from decompx_fast.linearize.linearization import linearize

COMMON = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "vocab_size": 50,
    "max_position_embeddings": 40,
    "num_labels": 3,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
DISTILBERT = {"dim": 24, "n_heads": 4, "hidden_dim": 40, "n_layers": 3}
MODERNBERT = {"local_attention": 6, "global_attn_every_n_layers": 3, "cls_token_id": 0, "sep_token_id": 2}
WITH_BIASES = {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True}
DEBERTA = {"relative_attention": True, "position_biased_input": False}

MOBILEBERT = {"intra_bottleneck_size": 16, "embedding_size": 10, "num_feedforward_networks": 3}
XLM = {"pad_index": 1, "bos_index": 0, "eos_index": 2}

#: Of each class in transformers, less its prefix: options beside :data:`COMMON`.
ALL_CASES: dict[str, tuple[str, dict]] = {
    "bert": ("Bert", {}),
    "roberta": ("Roberta", {}),
    "xlm_roberta": ("XLMRoberta", {}),
    "camembert": ("Camembert", {}),
    "electra": ("Electra", {"embedding_size": 10, "hidden_act": "relu"}),
    "data2vec": ("Data2VecText", {}),
    "ernie": ("Ernie", {}),
    "mpnet": ("MPNet", {}),
    "albert": ("Albert", {"embedding_size": 10}),
    "albert_groups": ("Albert", {"embedding_size": 10, "num_hidden_groups": 2, "inner_group_num": 2}),
    "distilbert": ("DistilBert", DISTILBERT),
    "distilbert_relu": ("DistilBert", DISTILBERT | {"activation": "relu", "sinusoidal_pos_embds": True}),
    "modernbert": ("ModernBert", MODERNBERT | WITH_BIASES),
    "modernbert_mean": ("ModernBert", MODERNBERT | {"classifier_pooling": "mean"}),
    "deberta": ("DebertaV2", DEBERTA | {"pos_att_type": ["c2p", "p2c"], "position_buckets": 8}),
    "deberta_shared": (
        "DebertaV2",
        DEBERTA | {"pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    ),
    "deberta_one_way": ("DebertaV2", DEBERTA | {"pos_att_type": ["c2p"], "embedding_size": 10}),
    "deberta_convolution": (
        "DebertaV2",
        DEBERTA | {"pos_att_type": ["c2p", "p2c"], "position_buckets": 8, "conv_kernel_size": 3, "conv_act": "gelu"},
    ),
    "deberta_convolution_groups": (
        "DebertaV2",
        {"relative_attention": False, "conv_kernel_size": 5, "conv_groups": 4, "conv_act": "tanh"},
    ),
    "deberta_absolute": ("DebertaV2", {"relative_attention": False, "type_vocab_size": 2}),
    "deberta_v1": ("Deberta", DEBERTA | {"pos_att_type": ["c2p", "p2c"], "embedding_size": 10}),
    "deberta_v1_one_way": (
        "Deberta",
        DEBERTA | {"pos_att_type": ["p2c"], "max_relative_positions": 6, "position_biased_input": True},
    ),
    "deberta_v1_absolute": ("Deberta", {"relative_attention": False, "type_vocab_size": 2}),
    "xlm": ("XLM", XLM | {"gelu_activation": True, "use_lang_emb": True, "n_langs": 2}),
    "xlm_causal": ("XLM", XLM | {"gelu_activation": False, "causal": True, "summary_type": "last"}),
    "flaubert": ("Flaubert", XLM | {"summary_type": "mean", "summary_activation": "tanh"}),
    "rembert": ("RemBert", {"input_embedding_size": 10}),
    "roberta_prelayernorm": ("RobertaPreLayerNorm", {}),
    "megatron": ("MegatronBert", {}),
    "esm": ("Esm", {"position_embedding_type": "rotary", "mask_token_id": 4, "token_dropout": True}),
    "esm_absolute": ("Esm", {"position_embedding_type": "absolute", "mask_token_id": 4, "emb_layer_norm_before": True}),
    "roformer": ("RoFormer", {"rotary_value": False}),
    "bigbird": ("BigBird", {"attention_type": "original_full", "hidden_act": "gelu_new"}),
    "bigbird_short": ("BigBird", {"block_size": 4, "num_random_blocks": 1, "use_bias": False}),
    "bigbird_blocks": ("BigBird", {"block_size": 1, "num_random_blocks": 1}),
    "bigbird_drawn": ("BigBird", {"block_size": 1, "num_random_blocks": 2}),
    "longformer": ("Longformer", {"attention_window": [4, 8, 4], "sep_token_id": 2}),
    "longformer_wide": ("Longformer", {"attention_window": 30, "sep_token_id": 2}),
    "layoutlm": ("LayoutLM", {"max_2d_position_embeddings": 30}),
    "mobilebert": ("MobileBert", MOBILEBERT),
    "mobilebert_layer_norm": (
        "MobileBert",
        MOBILEBERT | {"normalization_type": "layer_norm", "use_bottleneck_attention": True, "trigram_input": False},
    ),
    "mobilebert_plain": (
        "MobileBert",
        {"use_bottleneck": False, "num_feedforward_networks": 2, "embedding_size": 10, "classifier_activation": False},
    ),
    "nomic": ("NomicBert", {}),
    "gte": ("Gte", {}),
    "jina": ("JinaEmbeddingsV3", {}),
    "eurobert": ("EuroBert", {"num_key_value_heads": 2, "classifier_pooling": "bos"}),
    "eurobert_mean": (
        "EuroBert",
        {"classifier_pooling": "mean", "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
    ),
    "eurobert_late": ("EuroBert", {"num_key_value_heads": 4, "mlp_bias": True}),  # its default
}

#: Those that there are in this version of transformers.
CASES = {case: (name, options) for case, (name, options) in ALL_CASES.items() if hasattr(transformers, f"{name}Config")}

#: Cases whose model takes some steps in float32 whatever its dtype: it can be compared with no more closely.
IN_FLOAT32 = dict.fromkeys(
    ["eurobert", "eurobert_mean", "eurobert_late", "deberta_v1", "deberta_v1_one_way", "deberta_v1_absolute"]
    + ["xlm", "xlm_causal", "flaubert", "longformer", "longformer_wide"]
    + ([] if transformers.LayoutLMModel._supports_sdpa else ["layoutlm"]),
    1e-5,
)


def classifier(case: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    """In eval mode; every weight random, no bias zero and no norm weight one."""
    name, options = CASES[case]
    config = getattr(transformers, f"{name}Config")(**(COMMON | options))
    model = getattr(transformers, f"{name}ForSequenceClassification")(config).to(dtype).eval()
    # Without norms states grow, and then attention would be of one token alone.
    return randomized(model, seed, 0.1 if name == "MobileBert" else 0.3)


def inputs(case: str, batch: int = 2, tokens: int = 11) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    found = {"input_ids": torch.randint(5, 50, (batch, tokens), generator=generator)}
    if case == "layoutlm":
        corners = torch.randint(0, 30, (batch, tokens, 2, 2), generator=generator)
        found["bbox"] = torch.cat([corners.amin(2), corners.amax(2)], dim=-1)
    return found


def test_every_architecture_has_a_case():
    text = (ALL_CASES, test_decoders.CASES, llama_like.CASES, encoder_decoders.CASES)
    covered = {f"{name}ForSequenceClassification" for cases in text for name, _ in cases.values()}
    covered |= {name for name, _ in sound_models.CASES.values()}
    classifiers = {name for name in supported_architectures() if name.endswith("ForSequenceClassification")}
    assert classifiers <= covered


@pytest.mark.parametrize(("case", "rule"), with_rules(CASES))
def test_engines_and_a_second_decomposition_agree(case, rule):
    model, given = classifier(case), inputs(case)
    expected = engines_agree(model, given, rule)
    size = expected.abs().max().item()
    item = item_for(rule)
    one = {name: value[item : item + 1] for name, value in given.items()}
    scores, _ = naive.decompose(linearize(model, one), DecompXConfig(bias=rule))
    is_decomposition(scores, expected[item], rule, size)


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith(("_mean", "_late"))])
@pytest.mark.parametrize("split", [*RULES[:1], "abssim", "norm", "equal", "cls"])
def test_collected_biases_are_shared_where_a_head_reads_a_mean(case, split):
    model, config = classifier(case), DecompXConfig(bias="bias_token", bias_token_split=split)
    linearization = linearize(model, inputs(case))
    results = [engine.attribute(linearization, config) for engine in (reference, forward, adjoint)]
    for result in results:
        total = result.scores.sum(1)
        assert torch.allclose(total, linearization.logits, rtol=0, atol=IN_FLOAT32.get(case, ROUNDING))
        assert (result.scores - results[0].scores).abs().max() <= ROUNDING * results[0].scores.abs().max()


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith(("_mean", "_late"))])
@pytest.mark.parametrize("engine", [reference, forward])
def test_without_the_head_the_norms_are_those_of_the_mean(case, engine):
    """Not the mean of the norms: what is told is how long the part of each source is in what the head would read."""
    model = classifier(case)
    config = DecompXConfig(bias="none", head=False, stages=("encoder",), stage_output="vector")
    result = engine.attribute(linearize(model, inputs(case)), config)
    last = result.stages["encoder.2"]  # [b, i, k, d]
    assert torch.allclose(result.scores[..., 0], last.mean(1).norm(dim=-1), rtol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_scores_sum_to_the_logits_at_every_length(case):
    model = classifier(case, seed=1)
    for tokens in (1, 2, 5, 23):
        linearization = linearize(model, inputs(case, 1, tokens))
        result = forward.attribute(linearization, DecompXConfig())
        rounding = IN_FLOAT32.get(case, ROUNDING)
        assert result.gap.max().item() <= rounding * linearization.logits.abs().max().item()
        assert linearization.max_gap <= rounding


@pytest.mark.parametrize("case", CASES)
def test_all_layers_are_recorded(case):
    dtype = torch.float32 if case in IN_FLOAT32 else torch.float64
    all_layers_are_recorded(classifier(case, dtype=dtype), inputs(case))


@pytest.mark.parametrize("case", CASES)
def test_weights_are_not_copied(case):
    weights_are_views(classifier(case), inputs(case))


@pytest.mark.parametrize("case", CASES)
def test_a_replaced_linear_map_is_refused(case):
    model = classifier(case)
    maps = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    inner = [
        name
        for name in maps
        if ("layer" in name or name.startswith("transformer")) and not name.endswith(("pooler", "mapping_in"))
    ]
    assert inner
    some = inner[:: max(len(inner) // 4, 1)]
    changed_parts_are_refused(model, inputs(case), some, lambda _m, _a, output: output * 1.01)
