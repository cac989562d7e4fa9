"""RoBERTa-PreLayerNorm: BERT's cousin with its norms before the branches, and one at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reading.classifiers import classifier, dense_and_out_proj
from ..reading.heads import BARE, LM_HEAD, SPANS, TOKENS, headed, pooled
from ..reading.parts import Module
from ..spec import ModelSpec
from .megatron import pre_norm_body

roberta_prelayernorm_body = partial(
    pre_norm_body, norms=("attention.LayerNorm", "intermediate.LayerNorm"), last="LayerNorm"
)


_ROBERTA = {
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": SPANS,
    "ForMaskedLM": LM_HEAD,
    "ForMultipleChoice": pooled("roberta_prelayernorm", "classifier"),
    "Model": BARE,
}

_NAME = "roberta_prelayernorm"

FAMILIES: dict[str, Callable[[Module], ModelSpec]] = {
    "RobertaPreLayerNormForSequenceClassification": partial(
        classifier, encoder=_NAME, head=dense_and_out_proj, body=roberta_prelayernorm_body
    ),
    **headed("RobertaPreLayerNorm", roberta_prelayernorm_body, _NAME, _ROBERTA),
}
