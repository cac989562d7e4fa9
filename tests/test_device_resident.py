"""What an explanation starts on a GPU, and how often it waits for one, on a device that only counts.

What is counted says nothing of time. The bounds on launches are those that ``tools/predict_whole.py`` predicts with,
which were counted: to be lowered where a change makes fewer of them, and not to be raised without a reason.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
import torch
from counted_device import Counts, Fake, counting, on_device
from random_models import LAYERS, random_model
from transformers import BertConfig, BertForSequenceClassification

from decompx_fast.config import DecompXConfig
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.linearize.linearization import linearize

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from predict_whole import LAUNCHES, PASSES

#: Waits of a whole explanation, whatever its layers and inputs: the check of the model's own outputs, that of the
#: layers, the head's positions, ranges before and after, doubts, a leak, and sources that are groups.
MOST_WAITS = 11

#: Float32 sums in another order: launches are simulated, the twins compute.
CLOSE = {"rtol": 1e-3, "atol": 1e-5}

ENGINES = {"forward": DecompXConfig(), "adjoint": DecompXConfig(bias="none")}


def bert(layers: int, n: int, d: int = 32) -> BertForSequenceClassification:
    """Of BERT's shape, with biases."""
    torch.manual_seed(0)
    sizes = {"hidden_size": d, "intermediate_size": 4 * d, "num_attention_heads": 2, "num_hidden_layers": layers}
    model = BertForSequenceClassification(BertConfig(vocab_size=60, max_position_embeddings=n + 4, **sizes)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, float(parameter[0].detach() == 1), 0.3)
    return model


def attribute(engine: str, linearization):
    run = forward if engine == "forward" else adjoint
    return run.attribute(linearization, ENGINES[engine])


@functools.cache
def counted(engine: str, layers: int, batch: int, n: int, record: bool = False) -> Counts:
    """An explanation of random tokens, by the model's own run on; its scores are those on a CPU."""
    ids = torch.randint(5, 60, (batch, n), generator=torch.Generator().manual_seed(0))
    expected = attribute(engine, linearize(bert(layers, n), {"input_ids": ids})).scores
    model = on_device(bert(layers, n))
    with counting() as counts:
        found = attribute(engine, linearize(model, {"input_ids": Fake(ids)}, record=record)).scores
    torch.testing.assert_close(found.held, expected, **CLOSE)
    return counts


def launches_of_a_layer(engine: str, layers: tuple[int, int], batch: int, n: int) -> float:
    few, many = (counted(engine, number, batch, n).launched() for number in layers)
    return (many - few) / (layers[1] - layers[0])


@pytest.mark.parametrize("record", [False, True], ids=["computed", "recorded"])
@pytest.mark.parametrize("engine", ENGINES)
def test_waits_for_32_sentences_grow_with_neither_layers_nor_sentences(engine, record):
    waits = [counted(engine, layers, batch, 8, record).waits for layers, batch in ((6, 32), (3, 32), (6, 4))]
    assert waits[0] == waits[1] == waits[2]
    assert waits[0].total() <= MOST_WAITS, waits[0]


@pytest.mark.parametrize(("engine", "path"), [("forward", "direct"), ("adjoint", "adjoint")])
def test_launches_for_32_sentences_are_those_that_are_predicted_with(engine, path):
    """Of a further sentence only the first layer and the last have some, in the forward engine."""
    each_layer, rest, each_input = LAUNCHES[path]
    assert launches_of_a_layer(engine, (3, 6), 32, 8) <= each_layer
    few, many = (counted(engine, 6, batch, 8).launched() for batch in (4, 32))
    assert (many - few) / 28 <= each_input
    assert many <= 5 * each_layer + rest + 31 * each_input


@pytest.mark.parametrize(("engine", "path"), [("forward", "operator"), ("adjoint", "adjoint")])
def test_a_layer_of_512_tokens_waits_for_nothing(engine, path):
    one, two = (counted(engine, layers, 1, 512).waits for layers in (2, 3))
    assert one == two and one.total() <= MOST_WAITS, one
    each_layer, rest, _ = LAUNCHES[path]
    assert launches_of_a_layer(engine, (2, 3), 1, 512) <= each_layer
    assert counted(engine, 2, 1, 512).launched() <= each_layer + rest


@pytest.mark.parametrize("engine", ENGINES)
def test_what_single_positions_move_is_what_is_predicted_with(engine):
    """By all operations of PyTorch but products and what makes attention weights."""
    few, many = (counted(engine, layers, 32, 8).moved for layers in (3, 6))
    moved = sum(nbytes for site, nbytes in (many - few).items() if not is_product(site))
    assert moved / 3 / (32 * 8 * 32 * 4) <= PASSES[engine]


def is_product(site: str) -> bool:
    return any(name in site for name in ("mm.", "addmm", "baddbmm", "softmax", "scaled_dot"))


@pytest.mark.parametrize("layers", [1, 3])
def test_512_tokens_allocate_the_state_and_one_workspace_and_nothing_else_that_is_large(layers):
    """Whatever the layers; the allocator of a GPU keeps both for the next explanation of that size."""
    n, d = 512, 32
    model, ids = on_device(bert(layers, n, d)), torch.full((1, n), 7)
    with counting(large=n * n * d * 4 // 4) as counts:
        attribute("forward", linearize(model, {"input_ids": Fake(ids)}))
    kinds = sorted(site.partition(":")[0] for site in counts.allocated.elements())
    assert kinds == ["engines/blocks.py", "engines/storage.py"], counts.allocated


def of_random_model(shape: str, layers: int, *, batch: int = 2, grouped: bool = False, dtype=None, **options):
    """What the engines that can answer wait for, of a model of any shape."""
    n = 6
    groups = torch.tensor([[0, 0, 1, 2, 2, 1]]).expand(batch, n) if grouped else None
    config = DecompXConfig(**options)
    sizes = {"n": n, "layers": layers, "b": batch, "d": 16, "f": 32, "dtype": torch.float32, "position": -1}
    expected = forward.attribute(random_model(shape, **sizes), config, sources=groups, dtype=dtype).scores
    with torch.no_grad(), counting() as counts:
        model = random_model(shape, **sizes, device="cuda:0")
        counts.waits.clear()
        sources = None if groups is None else groups.to("cuda:0")
        found = forward.attribute(model, config, sources=sources, dtype=dtype).scores
    close = CLOSE if dtype is None else {"rtol": 0.1, "atol": 0.05}
    torch.testing.assert_close(found.held, expected, **close)
    return counts.waits


@pytest.mark.parametrize("options", [{}, {"bias": "equal"}, {"dtype": torch.float16}, {"grouped": True}], ids=str)
@pytest.mark.parametrize("shape", LAYERS)
def test_layers_of_every_shape_wait_for_nothing(shape, options):
    """Causal and windowed ones, of which zeros are left out, too."""
    one, two = (of_random_model(shape, layers, **options) for layers in (2, 3))
    assert one == two and one.total() <= MOST_WAITS, two - one


def test_groups_of_tokens_are_told_once():
    few, many = (of_random_model("gpt", 2, grouped=True, batch=batch) for batch in (2, 4))
    assert few == many


@pytest.mark.parametrize("zeros", ["all tokens", "one token"])
@pytest.mark.parametrize("shape", ["gpt", "llama", "biased_branch_norms"])
def test_what_was_taken_for_granted_wrongly_is_computed_once_more(shape, zeros):
    """Vectors of zeros, among which a bias is shared by what a run on a GPU does not ask at first."""
    sizes = {"n": 5, "layers": 2, "b": 1, "d": 16, "f": 32, "dtype": torch.float32, "position": -1}

    def emptied(model):
        model.embedding[:, : 5 if zeros == "all tokens" else 1] = 0
        return model

    expected = forward.attribute(emptied(random_model(shape, **sizes)), DecompXConfig(), path="direct").scores
    with torch.no_grad(), counting():
        model = emptied(random_model(shape, **sizes, device="cuda:0"))
        found = forward.attribute(model, DecompXConfig(), path="direct").scores
    torch.testing.assert_close(found.held, expected, **CLOSE)
