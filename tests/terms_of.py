"""Terms at positions of small models: for the tests of what is explained at several positions."""

from __future__ import annotations

import torch
from models import randomize
from random_models import RandomModel, random_model
from torch import nn
from transformers import BertConfig, BertForTokenClassification

from decompx_fast.engines.terms import Terms

RULES = ["absdot", "abssim", "norm", "equal", "cls", "dot", "bias_token", "none"]

LINEAR = ("equal", "cls", "bias_token", "none")


def each(kind: str, *, classes: int = 3, **options) -> RandomModel:
    """A random model whose head is applied to each position by itself."""
    model = random_model(kind, classes=classes, **options)
    return RandomModel(model.specs, model.steps, "each", model.embedding)


def bert(cls: type = BertForTokenClassification, seed: int = 0, dtype=torch.float64, **options) -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    given = sizes | {"vocab_size": 60, "max_position_embeddings": 40, "num_labels": 3} | options
    model = cls(BertConfig(**given)).eval().to(dtype)
    randomize(model, seed)
    return model


def terms_at(positions: list[list[int]], outputs: list[list[int]], columns=None) -> Terms:
    columns = None if columns is None else torch.tensor(columns, dtype=torch.float64)
    return Terms(torch.tensor(positions), torch.tensor(outputs), columns)


POSITIONS = [[0, 6, 2, 6], [5, 1, 1, 3]]

OUTPUTS = [[1, 0, 2, 2], [0, 0, 2, 1]]
