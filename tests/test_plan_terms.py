"""Plans count what terms cost: the positions that are read, the columns, and the vocabulary's map."""

from __future__ import annotations

import pytest
import torch
from live_bytes import LiveBytes
from models import randomize, token_ids
from transformers import BertConfig, BertForMaskedLM, BertForTokenClassification

from decompx_fast.config import DecompXConfig
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.adjoint.plan import AdjointPlan
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.forward.plan import plan
from decompx_fast.engines.shape import ModelShape
from decompx_fast.engines.terms import Terms
from decompx_fast.linearize.linearization import linearize, specification

CPU = torch.device("cpu")
D, F, HEADS, VOCAB = 96, 192, 4, 1000


def masked_lm(cls: type = BertForMaskedLM, layers: int = 2, **options):
    sizes = {"hidden_size": D, "intermediate_size": F, "num_attention_heads": HEADS, "num_hidden_layers": layers}
    model = cls(BertConfig(vocab_size=VOCAB, max_position_embeddings=256, **sizes, **options)).eval()
    randomize(model)
    return model


def shape(rows: int, columns: int, **options) -> ModelShape:
    return ModelShape.from_spec(specification(masked_lm(**options)), rows=rows, columns=columns)


def test_shape_of_a_language_model():
    found = shape(3, 5)
    assert (found.rows, found.classes, found.outputs) == (3, 5, VOCAB)
    labels = ModelShape.from_spec(specification(masked_lm(BertForTokenClassification, num_labels=9)), rows=4)
    assert (labels.rows, labels.classes, labels.outputs) == (4, 9, 0), "nine labels are formed whole"


@pytest.mark.parametrize("rule", ["absdot", "norm", "bias_token"])
def test_rows_and_vocabulary_of_the_forward_engine_by_hand(rule):
    n, rows, size = 100, 3, D // HEADS
    config = DecompXConfig(bias=rule)
    flops = plan(shape(rows, 5), n, config=config, path="direct").costs.flops("direct")
    k = n + (rule == "bias_token")
    # Mixed whole for each head, then projected twice, then the network: at each of the rows.
    row = 2 * HEADS * n * k * D + 2 * k * D * 2 * HEADS * size + 4 * k * D * F
    assert flops["last row"] == rows * row
    # The model's own outputs at the rows, and W b, or W W^T.
    sharing = {"absdot": 2 * D * VOCAB, "norm": 2 * D * D * VOCAB, "bias_token": 0}[rule]
    assert flops["vocabulary"] == rows * 2 * D * VOCAB + sharing


def test_many_rows_are_the_whole_layer():
    few, many = (plan(shape(rows, 5), 100, path="direct").costs for rows in (1, 90))
    assert not few.keeps_rows
    assert many.keeps_rows
    assert many.flops("direct")["last row"] == 0
    assert many.flops("direct")["mixing"] == few.flops("direct")["mixing"] + 2 * 100 * 100 * 100 * D


def test_rows_and_vocabulary_of_the_adjoint_engine_by_hand():
    n, rows = 100, 3
    found = AdjointPlan(shape(rows, 2, layers=1), n, 1, 2, torch.float32, DecompXConfig(bias="none"), CPU).flops
    assert found["pull-backs"] == 2 * (rows * (4 * D * F + 2 * D * D + 2 * n * D) + n * 2 * D * D)
    assert found["vocabulary"] == rows * 2 * D * VOCAB


def terms(rows: int, columns: int) -> Terms:
    positions = torch.arange(rows).repeat_interleave(columns)[None]
    return Terms(positions, (positions * 7 + 3) % 9)


@pytest.mark.parametrize("rows", [1, 3, 20, 60])
@pytest.mark.parametrize("cls", [BertForTokenClassification, BertForMaskedLM])
def test_plan_foretells_the_peak_of_terms(cls, rows):
    n, config = 64, DecompXConfig()
    model = masked_lm(cls, **({} if cls is BertForMaskedLM else {"num_labels": 9}))
    linearization = linearize(model, {"input_ids": token_ids(n, vocab=VOCAB)})
    counter = LiveBytes()
    with counter:
        forward.attribute(linearization, config, terms=terms(rows, 2))
    sizes = ModelShape.from_spec(specification(model), rows=rows, columns=2 * rows)
    foretold = plan(sizes, n, config=config)
    # While rows are put together not all of the buffer is in use any more: what is foretold is the sum.
    assert 0.8 * foretold.peak_bytes < counter.peak < 1.1 * foretold.peak_bytes


@pytest.mark.parametrize("rows", [1, 3])
def test_plan_of_the_adjoint_engine_foretells_the_peak_of_terms(rows):
    n, config = 200, DecompXConfig(bias="none")
    model = masked_lm(BertForTokenClassification, num_labels=9)
    counter = LiveBytes()
    with counter:
        linearization = linearize(model, {"input_ids": token_ids(n, vocab=VOCAB)}, record=True)
        adjoint.attribute(linearization, config, terms=terms(rows, 2))
    sizes = ModelShape.from_spec(specification(model), rows=rows, columns=2 * rows)
    foretold = AdjointPlan(sizes, n, 1, 2 * rows, torch.float32, config, CPU)
    # Freed blocks of its phases make room for each other; what is foretold is the sum.
    assert 0.5 * foretold.peak_bytes < counter.peak < 1.1 * foretold.peak_bytes
