"""The golden files: a tiny BERT and a tiny RoBERTa in float64, and what the authors' code gives for 22 option sets."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

FOLDER = Path(__file__).parent / "data" / "golden"
FAMILIES = ("bert-tiny", "roberta-tiny")

#: The released code's options and ours.
_VALUES = {
    "bias_decomp_type": lambda v: {} if v is None else {"bias": v},
    "include_biases": lambda v: {} if v else {"bias": "none"},
    "FFN_approx_type": lambda v: {"activation": {"GeLU_ZO": "zero_origin", "GeLU_LA": "linear", "ReLU": "relu"}[v]},
    "tanh_approx_type": lambda v: {"tanh": {"ZO": "zero_origin", "LA": "linear"}[v]},
    "include_FFN": lambda v: {"ffn": v},
    "include_LN1": lambda v: {"ln1": v},
    "include_LN2": lambda v: {"ln2": v},
    "include_classifier_w_pooler": lambda v: {"head": v},
    "aggregation": lambda v: {"aggregation": v or "none"},
}


def cases(family: str) -> dict[str, dict]:
    return json.loads((FOLDER / family / "cases.json").read_text())


def options(case: dict) -> dict:
    """The options of one case in this package's names."""
    ours: dict = {"variant": "released"}
    for name, value in case.items():
        if name in _VALUES:
            ours |= _VALUES[name](value)
    if case.get("include_bias_token"):
        split = ours.pop("bias", None)
        ours |= {"bias": "bias_token"} | ({"bias_token_split": split} if split else {})
    return ours


def expected(family: str) -> dict[str, torch.Tensor]:
    return load_file(FOLDER / family / "expected.safetensors")


def model(family: str) -> torch.nn.Module:
    return AutoModelForSequenceClassification.from_pretrained(FOLDER / family, dtype=torch.float64)


def inputs(family: str) -> list[dict[str, torch.Tensor]]:
    """The rows of the batch, each without its padding."""
    batch = load_file(FOLDER / family / "inputs.safetensors")
    lengths = batch["attention_mask"].sum(1).tolist()
    return [
        {name: batch[name][row : row + 1, :n] for name in ("input_ids", "token_type_ids")}
        for row, n in enumerate(lengths)
    ]
