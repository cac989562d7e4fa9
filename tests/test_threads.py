"""One model in several threads: that explain it, train it, or switch its mode, in orders that are forced.

What holds: an explanation never sees another thread's mode or hooks, and no other thread sees those of an explanation.
"""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import generation_models
import models
import pytest
import task_models
import torch
from models import classifier, token_ids, unchanged
from torch import nn

from decompx_fast import DecompX
from decompx_fast.errors import UnsupportedModelError

ENGINES = {"reference": {}, "forward": {}, "adjoint": {"bias": "none"}}

IDS = [7, 8, 9, 10]


def with_dropout() -> nn.Module:
    """In train mode, where dropout changes every number."""
    rates = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5, "classifier_dropout": 0.5}
    return classifier(**rates).train()


class Gate:
    """A hook of the user's on a module, in which a thread waits in the middle of the model's run."""

    def __init__(self, module: nn.Module, *names: str) -> None:
        self.reached = {name: threading.Event() for name in names}
        self.opened = {name: threading.Event() for name in names}
        module.register_forward_hook(self._wait)

    def _wait(self, module, args, output) -> None:
        name = threading.current_thread().name
        if name in self.reached and not self.opened[name].is_set():
            self.reached[name].set()
            assert self.opened[name].wait(30)

    def arrive(self, name: str) -> None:
        assert self.reached[name].wait(30)

    def open(self, name: str) -> None:
        self.opened[name].set()


class Explaining(threading.Thread):
    def __init__(self, explainer: DecompX, name: str) -> None:
        super().__init__(name=name)
        self.explainer, self.found, self.error = explainer, None, None

    def run(self) -> None:
        try:
            self.found = self.explainer.explain(IDS)
        except BaseException as error:
            self.error = error

    def scores(self) -> torch.Tensor:
        self.join(30)
        if self.error is not None:
            raise self.error
        return self.found.scores


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_thread_that_leaves_first_does_not_disturb_the_one_that_stays(engine, first):
    options = {"engine": engine, **ENGINES[engine]}
    expected = DecompX(classifier(), **options).explain(IDS).scores
    model = with_dropout()
    gate = Gate(model.bert.embeddings.word_embeddings, "a", "b")
    with unchanged(model):
        threads = {}
        for name in ("a", "b"):  # b comes when a is inside
            threads[name] = Explaining(DecompX(model, **options), name)
            threads[name].start()
            gate.arrive(name)
        for name in (first, "b" if first == "a" else "a"):
            gate.open(name)
            assert torch.equal(threads[name].scores(), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_training_thread_keeps_its_dropout_and_meets_no_hook(engine):
    options = {"engine": engine, **ENGINES[engine]}
    expected = DecompX(classifier(), **options).explain(IDS).scores
    model, ids = with_dropout(), token_ids()
    torch.manual_seed(1)
    trained = model(ids).logits
    gate = Gate(model.bert.embeddings.word_embeddings, "a")
    thread = Explaining(DecompX(model, **options), "a")
    with unchanged(model):
        before = models.snapshot(model)
        thread.start()
        gate.arrive("a")
        inside = models.snapshot(model)
        changed = {name for name in before if before[name] != inside[name]} - {"stance"}
        assert changed == set(), "while another thread explains"
        state = torch.get_rng_state()
        torch.manual_seed(1)
        assert torch.equal(model(ids).logits, trained)
        torch.set_rng_state(state)
        gate.open("a")
        assert torch.equal(thread.scores(), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_thread_may_switch_the_mode_while_another_explains(engine):
    options = {"engine": engine, **ENGINES[engine]}
    expected = DecompX(classifier(), **options).explain(IDS).scores
    model = with_dropout().eval()
    gate = Gate(model.bert.embeddings.word_embeddings, "a")
    thread = Explaining(DecompX(model, **options), "a")
    thread.start()
    gate.arrive("a")
    model.train()
    gate.open("a")
    assert torch.equal(thread.scores(), expected)
    assert all(module.training for module in model.modules()), "the switch stays"


def test_weights_that_another_thread_changes_meanwhile_are_refused():
    model = classifier()
    gate = Gate(model.bert.encoder.layer[1].attention, "a")
    thread = Explaining(DecompX(model, engine="forward"), "a")
    thread.start()
    gate.arrive("a")
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight *= 1.01
    gate.open("a")
    with pytest.raises(UnsupportedModelError, match=r"layer 0 does not compute(.|\n)*or trained meanwhile"):
        thread.scores()


@pytest.mark.slow
def test_threads_that_explain_beside_one_that_trains():
    model = with_dropout()
    explainer = DecompX(model, engine="adjoint", bias="none")
    expected = DecompX(classifier(), engine="adjoint", bias="none").explain(IDS).scores
    stop, wrong = threading.Event(), []

    def train() -> None:
        ids = token_ids(b=4)
        while not stop.is_set():
            with torch.no_grad():
                if torch.equal(model(ids).logits, model(ids).logits) or not model.training:
                    wrong.append("no dropout")

    def explain() -> None:
        for _ in range(40):
            try:
                if not torch.equal(explainer.explain(IDS).scores, expected):
                    wrong.append("scores")
            except Exception as error:
                wrong.append(repr(error))

    trainer, threads = threading.Thread(target=train), [threading.Thread(target=explain) for _ in range(3)]
    for thread in (trainer, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    trainer.join()
    assert wrong == []


def alive_bytes() -> int:
    """Of all tensors that Python knows of."""
    gc.collect()
    return sum(one.nbytes for one in gc.get_objects() if type(one) in (torch.Tensor, nn.Parameter))


@pytest.mark.slow
def test_16_threads_with_all_engines_and_several_tasks_at_once():
    text = "a sharp film, warm and not dull"
    explainer = DecompX(classifier(vocab=models.WORD_PIECES, positions=64), models.word_piece())
    tagger = DecompX(task_models.model("token-classification"), models.word_piece())
    reader = DecompX(task_models.model("question-answering"), models.word_piece())
    writer = DecompX(generation_models.llama(), generation_models.byte_level())
    calls = [
        partial(explainer.explain, text, bias="none"),
        partial(explainer.explain, text, engine="forward"),
        partial(explainer.explain, text, engine="reference", bias="bias_token"),
        partial(explainer.explain, text, sources="word", bias="cls", dtype="float64"),
        partial(explainer.explain, [text, "dull"], stages=("encoder",), stage_output="vector"),
        partial(tagger.explain, task_models.INPUTS["token-classification"]),
        partial(reader.explain, task_models.INPUTS["question-answering"]),
        partial(writer.explain, generation_models.PROMPT, generate=2),
    ]
    alone = [scores_of(call()) for call in calls]

    def rounds(count: int) -> None:
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda call: scores_of(call()), calls * 2 * count))
        for number, scores in enumerate(found):
            assert all(map(torch.equal, scores, alone[number % len(calls)]))

    rounds(1)
    before = alive_bytes()
    rounds(3)
    assert alive_bytes() <= before


def scores_of(found) -> list[torch.Tensor]:
    return [one.scores for one in (found if isinstance(found, list) else [found])]
