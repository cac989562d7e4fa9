"""Every kind of head, at positions that differ from item to item: the engines, and the method by its definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import naive_heads
import pytest
import torch
from exactness import close
from models import randomize, token_ids
from naive_heads import Step
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForQuestionAnswering,
    BertForTokenClassification,
    BertModel,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForQuestionAnswering,
    ElectraForTokenClassification,
    ElectraModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForMultipleChoice,
    RobertaForQuestionAnswering,
    RobertaForTokenClassification,
    RobertaModel,
)

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.terms import Terms
from decompx_fast.linearize.families import bert, electra, layoutlm
from decompx_fast.linearize.linearization import linearize

N, B, VOCAB, LABELS = 5, 2, 40, 3
CONFIGS = {"Bert": BertConfig, "Roberta": RobertaConfig, "Electra": ElectraConfig}


def model_of(cls: type, **options: Any) -> nn.Module:
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 14}
    labels = 2 if "Question" in cls.__name__ else LABELS
    config_class = next(config for name, config in CONFIGS.items() if cls.__name__.startswith(name))
    more = {"embedding_size": 10} if config_class is ElectraConfig else {}
    given = sizes | more | {"vocab_size": VOCAB, "max_position_embeddings": 20, "num_labels": labels} | options
    model = cls(config_class(**given)).eval().double()
    randomize(model, 3)
    return model


def bert_lm(model: nn.Module) -> list[Step]:
    head = model.cls.predictions
    return [Step(head.transform.dense, "gelu", head.transform.LayerNorm), Step(head.decoder)]


def roberta_lm(model: nn.Module) -> list[Step]:
    return [Step(model.lm_head.dense, "gelu", model.lm_head.layer_norm), Step(model.lm_head.decoder)]


def electra_lm(model: nn.Module) -> list[Step]:
    head = model.generator_predictions
    return [Step(head.dense, "gelu", head.LayerNorm), Step(model.generator_lm_head)]


def electra_replaced(model: nn.Module) -> list[Step]:
    head = model.discriminator_predictions
    return [Step(head.dense, "gelu"), Step(head.dense_prediction)]


def pooled(encoder: str, classifier: str):
    def steps(model: nn.Module) -> list[Step]:
        return [
            Step(model.get_submodule(encoder).pooler.dense, "tanh"),
            Step(model.get_submodule(classifier)),
        ]

    return steps


@dataclass
class Case:
    """A model, its head by its definition, and how many outputs that has; ``own``: it reads the first position."""

    model: type
    steps: Any
    outputs: int
    own: bool = False


CASES = [
    Case(BertForTokenClassification, lambda model: [Step(model.classifier)], LABELS),
    Case(RobertaForTokenClassification, lambda model: [Step(model.classifier)], LABELS),
    Case(ElectraForTokenClassification, lambda model: [Step(model.classifier)], LABELS),
    Case(BertForQuestionAnswering, lambda model: [Step(model.qa_outputs)], 2),
    Case(RobertaForQuestionAnswering, lambda model: [Step(model.qa_outputs)], 2),
    Case(ElectraForQuestionAnswering, lambda model: [Step(model.qa_outputs)], 2),
    Case(BertForMaskedLM, bert_lm, VOCAB),
    Case(RobertaForMaskedLM, roberta_lm, VOCAB),
    Case(ElectraForMaskedLM, electra_lm, VOCAB),
    Case(ElectraForPreTraining, electra_replaced, 1),
    Case(BertForNextSentencePrediction, pooled("bert", "cls.seq_relationship"), 2, own=True),
    Case(BertForMultipleChoice, pooled("bert", "classifier"), 1, own=True),
    Case(RobertaForMultipleChoice, pooled("roberta", "classifier"), 1, own=True),
    Case(BertModel, lambda model: [Step()], 12, own=True),
    Case(RobertaModel, lambda model: [Step()], 12, own=True),
    Case(ElectraModel, lambda model: [Step()], 12, own=True),
]

RULES = ["absdot", "abssim", "norm", "equal", "cls", "dot", "bias_token", "none"]
OPTIONS = [{"bias": rule} for rule in RULES] + [
    {"bias": "absdot", "activation": "linear", "tanh": "linear"},
    {"bias": "norm", "variant": "released"},
    *({"bias": "bias_token", "bias_token_split": rule} for rule in ("absdot", "abssim", "norm", "dot", "equal", "cls")),
]

#: Rules for which every score is linear in the inputs.
LINEAR = ("equal", "cls", "bias_token", "none")


def asked(case: Case) -> Terms:
    """Terms at positions that differ between the items, and of them a contrast, a sum with the mean, and one alone."""
    positions = torch.tensor([[1, 4, 4, 0], [3, 3, 2, 0]])
    outputs = torch.tensor([[0, 7, -1, 2], [5, 1, 3, -1]])
    outputs = torch.where(outputs < 0, outputs, outputs % case.outputs)
    columns = torch.tensor(
        [[[1.0, -1, 0, 0], [0.5, 0, 2, 1], [0, 0, 0, 1]], [[1.0, -1, 0, 0], [0, -1, 0.25, 3], [0, 1, 0, 0]]],
        dtype=torch.float64,
    )
    return Terms(None if case.own else positions, outputs, columns)


def by_definition(model: nn.Module, ids: Tensor, case: Case, terms: Terms, config: DecompXConfig) -> Tensor:
    """``[b, k, m]``, each input by itself."""
    found = []
    for item, row in enumerate(ids):
        x, true = naive_heads.states(linearize(model, {"input_ids": row[None]}), config)
        positions = [0] * 4 if terms.positions is None else terms.positions[item].tolist()
        scores = naive_heads.terms(x, true, case.steps(model), config, positions, terms.outputs[item].tolist())
        found.append(torch.from_numpy(scores) @ terms.columns[item].T)
    return torch.stack(found)


def test_every_kind_of_head_has_a_case():
    """All classes are in the tests of encoders' heads; here one of each kind."""
    covered, known = (
        {name.rpartition("For")[2] for name in names}
        for names in (
            {case.model.__name__ for case in CASES},
            (name for name in [*bert.FAMILIES, *electra.FAMILIES, *layoutlm.FAMILIES] if "For" in name),
        )
    )
    assert known - {"SequenceClassification"} <= covered


#: Of each head every third of the options, begun with another one for each: kinds of heads are tried with all.
IN_TURN = [
    pytest.param(case, options, id=f"{case.model.__name__}-{options}")
    for n, case in enumerate(CASES)
    for options in OPTIONS[n % 3 :: 3]
]


@pytest.mark.parametrize(("case", "options"), IN_TURN)
def test_every_head_is_decomposed_as_defined(case, options):
    config = DecompXConfig(**options)
    model, ids, terms = model_of(case.model), token_ids(N, b=B, vocab=VOCAB), asked(case)
    expected = by_definition(model, ids, case, terms, config)
    linearization = linearize(model, {"input_ids": ids})
    weighed = options.get("bias_token_split", "equal") not in ("equal", "cls")
    engines = {"reference": reference.attribute, "forward": forward.attribute}
    if config.bias in LINEAR and not (weighed and case.outputs > 12):
        engines["adjoint"] = adjoint.attribute
    for attribute in engines.values():
        result = attribute(linearization, config, terms=terms)
        scores = result.scores
        if result.bias_token is not None:
            scores = torch.cat([scores, result.bias_token[:, None]], dim=1)
        assert close(scores, expected)
        if config.bias != "none":
            assert result.gap.max() < 1e-10


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model.__name__)
def test_values_are_those_of_the_model(case):
    model, ids, terms = model_of(case.model), token_ids(N, b=B, vocab=VOCAB), asked(case)
    with torch.no_grad():
        if case.model.__name__.endswith("Choice"):
            whole = model(input_ids=ids[:, None]).logits[:, None]
        elif case.model.__name__.endswith("Answering"):
            output = model(input_ids=ids)
            whole = torch.stack([output.start_logits, output.end_logits], dim=-1)
        elif case.model.__name__.endswith("Model"):
            whole = model(input_ids=ids).last_hidden_state
        else:
            whole = model(input_ids=ids).logits
            whole = whole[:, None] if case.own else whole.unflatten(1, (N, -1)).reshape(B, N, case.outputs)
    whole = torch.cat([whole, whole.mean(-1, keepdim=True)], dim=-1)
    positions = torch.zeros_like(terms.outputs) if case.own else terms.positions
    expected = whole[torch.arange(B)[:, None], positions, terms.outputs]
    assert (linearize(model, {"input_ids": ids}).values(terms) - expected).abs().max() < 1e-12
