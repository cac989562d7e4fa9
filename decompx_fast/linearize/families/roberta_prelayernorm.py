"""RoBERTa-PreLayerNorm: BERT's cousin with its norms before the branches, and one at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reading.classifiers import dense_and_out_proj
from ..reading.heads import LM_HEAD, headed, pooled_heads
from ..reading.parts import Module
from ..spec import ModelSpec
from .megatron import pre_norm_body

roberta_prelayernorm_body = partial(
    pre_norm_body, norms=("attention.LayerNorm", "intermediate.LayerNorm"), last="LayerNorm"
)

_NAME = "roberta_prelayernorm"

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = headed(
    "RobertaPreLayerNorm", roberta_prelayernorm_body, _NAME, pooled_heads(_NAME, LM_HEAD), dense_and_out_proj
)
