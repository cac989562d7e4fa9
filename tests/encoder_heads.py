"""Every supported class of an encoder with its head: a tiny random model, inputs, and what the model itself gives."""

from __future__ import annotations

import re

import torch
import transformers
from models import randomized
from test_families import CASES, COMMON, inputs
from torch import Tensor, nn

from decompx_fast.linearize.architectures import supported_architectures

#: Of each prefix of class names, the first case of :data:`test_families.CASES`.
CASE_OF = {name: case for case, (name, _) in reversed(CASES.items())}

CLASS = re.compile(rf"({'|'.join(sorted(CASE_OF, key=len, reverse=True))})(For\w+|Model|WithLMHeadModel)")


def classes(*, sequence: bool = False) -> list[str]:
    """The names of the supported classes; without those of sequence classifiers, which have tests of their own."""
    found = [name for name in supported_architectures() if CLASS.fullmatch(name)]
    return [name for name in found if sequence or not name.endswith("ForSequenceClassification")]


def parted(name: str) -> tuple[str, str]:
    """``("Bert", "ForMaskedLM")`` of ``"BertForMaskedLM"``."""
    match = CLASS.fullmatch(name)
    assert match is not None
    return match[1], match[2]


def model_of(name: str, seed: int = 0, dtype: torch.dtype = torch.float64, **options) -> nn.Module:
    """In eval mode with two layers; every weight random, no bias zero and no norm weight one."""
    prefix, suffix = parted(name)
    wanted = COMMON | CASES[CASE_OF[prefix]][1] | {"num_hidden_layers": 2}
    wanted |= {"n_layers": 2} if prefix == "DistilBert" else {}
    wanted |= {"num_labels": 2} if "QuestionAnswering" in suffix else {}
    wanted |= {"attention_window": 4} if prefix == "Longformer" else {}
    config = getattr(transformers, f"{prefix}Config")(**(wanted | options))
    model = getattr(transformers, name)(config).to(dtype).eval()
    return randomized(model, seed, 0.1 if prefix == "MobileBert" else 0.3)  # as in `test_families`


def inputs_of(name: str, tokens: int = 6) -> dict[str, Tensor]:
    """Two inputs; three separators in each of a Longformer's questions."""
    prefix, suffix = parted(name)
    given = inputs("layoutlm" if prefix == "LayoutLM" else "bert", 2, tokens)
    if prefix == "Longformer" and suffix in ("ForQuestionAnswering", "ForMultipleChoice"):
        given["input_ids"][0, [1, 2, -1]] = 2
        given["input_ids"][1, [2, 3, -1]] = 2
    return given


@torch.no_grad()
def outputs_of(model: nn.Module, name: str, given: dict[str, Tensor]) -> tuple[Tensor, bool]:
    """What the model gives when it is called as users do: ``[b, i, C]``, or ``[b, C]``; whether at each position."""
    _, suffix = parted(name)
    if suffix == "ForMultipleChoice":
        given = {key: value.unsqueeze(1) for key, value in given.items()}  # [b, choices, i]
    found = model(**given)
    if "QuestionAnswering" in suffix:
        return torch.stack((found.start_logits, found.end_logits), dim=-1), True
    if suffix == "Model":
        return found.last_hidden_state[:, 0], False
    for two_texts in ("sop_logits", "seq_relationship_logits"):  # of a model that has another head beside it
        if hasattr(found, two_texts):
            return getattr(found, two_texts), False
    logits = found.logits
    if suffix == "ForPreTraining":
        return logits.unsqueeze(-1), True
    return logits, logits.ndim == 3
