"""The work of an evaluation: one method on one chunk of texts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DecompXError
from ..explainer import DecompX
from ..request.encoded import Encoded
from .classifier import Classifier, Inputs, Predictions
from .masking import Perturbation, importance_order, input_key, perturbed
from .method import Method, Problem, get_method
from .metrics import RATIONALE
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
        seed: of ties, and of methods that draw.
        truncate: cut texts that are too long for the model.
    """

    model: str | None
    device: str | None
    texts: tuple[str | tuple[str, str], ...]
    labels: tuple[int, ...] | None
    methods: dict[str, Method | None]
    perturbations: tuple[Perturbation, ...]
    seed: int
    truncate: bool

    def load(self) -> DecompX:
        """The model, loaded anew."""
        if self.model is None:
            return DecompX.demo(device=self.device)
        return DecompX.from_pretrained(self.model, device=self.device)


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
        self.encoded = encoded or self.classifier.encode(task.texts, truncate=task.truncate)
        self.chunks = chunks_of(self.encoded)
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
            }
            for n, place in enumerate(places)
        ]
        self._perturb(texts, classes, orders, records)
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

    def _perturb(
        self, texts: Sequence[Encoded], classes: list[int], orders: list[list[int]], records: list[Record]
    ) -> None:
        """Add what the model says about the changed texts."""
        inputs: list[Inputs] = []
        wanted: list[list[list[int]]] = []
        for encoded, order in zip(texts, orders, strict=True):
            rows = []
            for perturbation in self.task.perturbations:
                changed = perturbed(encoded, order, perturbation, self.classifier.mask_token_id)
                rows.append(list(range(len(inputs), len(inputs) + len(changed))))
                inputs += changed
            wanted.append(rows)
        found = self._predict(inputs)
        predicted = found.log_probabilities.argmax(1)
        for record, target, rows in zip(records, classes, wanted, strict=True):
            for perturbation, row in zip(self.task.perturbations, rows, strict=True):
                record[f"{perturbation.name}_probability"] = found.log_probabilities[row, target].exp().tolist()
                record[f"{perturbation.name}_predicted"] = predicted[row].tolist()
                if perturbation.name == RATIONALE:
                    record[f"{RATIONALE}_state"] = found.states[row[0]].numpy()

    def _predict(self, inputs: Sequence[Inputs]) -> Predictions:
        """As :meth:`Classifier.predict`, which computes only what this chunk has not asked about before."""
        keys = [input_key(one) for one in inputs]
        new = {key: one for key, one in zip(keys, inputs, strict=True) if key not in self._known}
        if new:
            found = self.classifier.predict(list(new.values()))
            self._known.update(zip(new, zip(found.log_probabilities, found.states, strict=True), strict=True))
        log_probabilities, states = zip(*(self._known[key] for key in keys), strict=True)
        return Predictions(torch.stack(log_probabilities), torch.stack(states))
