"""The work of an evaluation: one method on one chunk of texts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..errors import DecompXError, InputError
from ..explainer import DecompX
from ..linearize.architectures import unwrap
from ..request.encoded import Encoded
from ..request.versions import fill_of, without_tokens
from .classifier import Classifier, Inputs, Predictions
from .masking import Perturbation, absent_tokens, importance_order, input_key
from .measures import infidelity
from .method import Method, Problem, get_method
from .plausibility import Mark, marked_tokens
from .sanity import CHECKS, Trial
from .store import Record

#: Texts of one part. A kill loses at most one part for each process.
CHUNK = 32

Item = tuple[str, int]  # the name of a method, and the number of a chunk


class EvaluationError(DecompXError, RuntimeError):
    """A method that failed, or whose scores cannot be used; names it and the texts."""


@dataclass(frozen=True)
class Task:
    """All that a process needs to compute any part.

    Attributes:
        model: a folder or the id of a hub; ``None`` for the demo model.
        device: where to compute; ``None`` for the CPU.
        texts: all of them.
        labels: the right class of each, if known.
        methods: by name; ``None`` stands for the built-in method of that name.
        perturbations: what is done with the order of the tokens.
        rationales: what people marked of each, if known; ``None`` for a text without marks.
        sanity: of how many texts, from the first, the sanity checks are made.
        random_label_model: the folder of a model that learnt shuffled labels, for one of them.
        seed: of ties, and of methods that draw.
        truncate: cut texts that are too long for the model.
    """

    model: str | None
    device: str | None
    texts: tuple[str | tuple[str, str], ...]
    labels: tuple[int, ...] | None
    rationales: tuple[tuple[Mark, ...] | None, ...] | None
    methods: dict[str, Method | None]
    perturbations: tuple[Perturbation, ...]
    seed: int
    truncate: bool
    sanity: int = 0
    random_label_model: str | None = None

    def load(self) -> DecompX:
        """The model, loaded anew."""
        if self.model is None:
            return DecompX.demo(device=self.device)
        return DecompX.from_pretrained(self.model, device=self.device)

    def load_other(self, explainer: DecompX) -> nn.Module | None:
        """The model that learnt shuffled labels.

        Raises:
            InputError: if it is of another shape than the one that is evaluated.
        """
        if self.random_label_model is None:
            return None
        other = DecompX.from_pretrained(self.random_label_model, device=self.device)
        shapes = [
            (len(one.labels), [tuple(weight.shape) for weight in unwrap(one.model).parameters()])
            for one in (explainer, other)
        ]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"random_label_model={self.random_label_model!r} has weights of other shapes than the model: train the "
                "same architecture on shuffled labels"
            )
        return other.model


def chunks_of(encoded: Sequence[Encoded]) -> list[list[int]]:
    """The places of the texts in chunks of like length, which does not depend on what has been computed before."""
    order = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))
    return [order[start : start + CHUNK] for start in range(0, len(order), CHUNK)]


class Worker:
    """Computes parts. Methods agree on much of what is masked, so each changed text of a chunk is asked about once.

    Args:
        task: what is to be done.
        explainer: the model, where it is loaded already.
        encoded: the texts, where they are encoded already.
    """

    def __init__(self, task: Task, explainer: DecompX | None = None, encoded: Sequence[Encoded] | None = None) -> None:
        self.task = task
        self.classifier = Classifier(explainer or task.load())
        self.other = task.load_other(self.classifier.explainer)
        self.encoded = encoded or self.classifier.encode(task.texts, truncate=task.truncate)
        self.chunks = chunks_of(self.encoded)
        tokenizer = self.classifier.explainer.tokenizer
        self.fills = {one.deletion: fill_of(one.deletion, tokenizer, "deletion") for one in task.perturbations}
        self._chunk = -1
        self._known: dict[object, tuple[Tensor, Tensor]] = {}  # of this chunk: what was asked, and what was said

    def compute(self, item: Item) -> list[Record]:
        """The records of one part.

        Raises:
            EvaluationError: if the method fails.
        """
        name, chunk = item
        method = self.task.methods[name] or get_method(name)
        places = self.chunks[chunk]
        texts = [self.encoded[place] for place in places]
        if chunk != self._chunk:
            self._chunk, self._known = chunk, {}
        full = self._predict([encoded.inputs for encoded in texts]).log_probabilities
        classes = full.argmax(1).tolist()
        problem = Problem(self.classifier.model, self.classifier.explainer.tokenizer, texts, classes, self.task.seed)
        start = time.perf_counter()
        try:
            scores = method.score(problem)
            seconds = time.perf_counter() - start
            orders = self._orders(method, problem, scores)
        except Exception as error:
            raise EvaluationError(
                f"the method {name!r} failed on the texts {', '.join(map(str, places))} (counted from 0): "
                f"{type(error).__name__}: {error}. What is finished is kept"
            ) from error
        records: list[Record] = [
            {
                "index": place,
                "label": None if self.task.labels is None else self.task.labels[place],
                "predicted": classes[n],
                "probability": float(full[n, classes[n]].exp()),
                "seconds": seconds / len(places),
                "tokens": list(texts[n].tokens),
                "special": list(texts[n].special),
                "scores": scores[n].tolist(),
                "order": orders[n],
            }
            for n, place in enumerate(places)
        ]
        if self.task.rationales is not None:
            for record, encoded in zip(records, texts, strict=True):
                marks = self.task.rationales[record["index"]]
                record["rationale"] = None if marks is None else marked_tokens(encoded.spans, marks)
        self._perturb(problem, scores, orders, records)
        self._check_sanity(method, problem, scores, records)
        return records

    def _orders(self, method: Method, problem: Problem, scores: list[Tensor]) -> list[list[int]]:
        """The places of each text's tokens by importance; ties are broken in the same way for all methods."""
        if len(scores) != len(problem.inputs):
            raise ValueError(f"it gave {len(scores)} rows of scores for {len(problem.inputs)} texts")
        orders = []
        for index, (row, encoded) in enumerate(zip(scores, problem.inputs, strict=True)):
            if row.shape != (len(encoded),):
                raise ValueError(f"it gave scores of the shape {list(row.shape)} for {len(encoded)} tokens")
            ties = problem.generator(index, "ties")
            orders.append(importance_order(row, encoded.special, signed=method.signed, generator=ties))
        return orders

    def _perturb(self, problem: Problem, scores: list[Tensor], orders: list[list[int]], records: list[Record]) -> None:
        """Add what the model says about the changed texts."""
        inputs: list[Inputs] = [encoded.inputs for encoded in problem.inputs]  # whole, then changed
        wanted: list[list[tuple[Tensor, list[int]]]] = []  # which tokens are absent, and the places among the inputs
        for n, (encoded, order) in enumerate(zip(problem.inputs, orders, strict=True)):
            rows = []
            for one in self.task.perturbations:
                absent = absent_tokens(encoded, order, one, problem.generator(n, one.name))
                rows.append((absent, list(range(len(inputs), len(inputs) + len(absent)))))
                inputs += [without_tokens(encoded.inputs, row, self.fills[one.deletion]) for row in absent]
            wanted.append(rows)
        found = self._predict(inputs)
        predicted, probabilities = found.logits.argmax(1), found.log_probabilities.exp()
        for n, (record, target) in enumerate(zip(records, problem.classes, strict=True)):
            for one, (absent, row) in zip(self.task.perturbations, wanted[n], strict=True):
                record[f"{one.name}_probability"] = probabilities[row, target].tolist()
                record[f"{one.name}_predicted"] = predicted[row].tolist()
                if one.design.action == "keep" and len(row) == 1:
                    record[f"{one.name}_state"] = found.states[row[0]].numpy()
                if one.design.of == "random":
                    drops = found.logits[n, target] - found.logits[row, target]
                    record[f"{one.name}_infidelity"] = infidelity(scores[n], absent, drops)

    def _check_sanity(self, method: Method, problem: Problem, scores: list[Tensor], records: list[Record]) -> None:
        """Add the sanity checks of the texts that have them."""
        if not self.task.sanity:
            return
        few = [n for n, record in enumerate(records) if record["index"] < self.task.sanity]
        asked = replace(problem, inputs=[problem.inputs[n] for n in few], classes=[problem.classes[n] for n in few])

        def encode(text: str | tuple[str, str]) -> Encoded:
            return self.classifier.encode([text], truncate=self.task.truncate)[0]

        trial = Trial(method, asked, [scores[n] for n in few], encode, self.other)
        for name, check in CHECKS.items():
            found = dict(zip(few, check(trial), strict=True)) if few else {}
            for n, record in enumerate(records):
                record[f"{name}_check"] = found.get(n)

    def _predict(self, inputs: Sequence[Inputs]) -> Predictions:
        """As :meth:`Classifier.predict`, which computes only what this chunk has not asked about before."""
        keys = [input_key(one) for one in inputs]
        new = {key: one for key, one in zip(keys, inputs, strict=True) if key not in self._known}
        if new:
            found = self.classifier.predict(list(new.values()))
            self._known.update(zip(new, zip(found.logits, found.states, strict=True), strict=True))
        logits, states = zip(*(self._known[key] for key in keys), strict=True)
        return Predictions(torch.stack(logits), torch.stack(states))
