"""What a process that computes does: it loads a model once, and turns texts into explanations as they are written."""

from __future__ import annotations

import json
import os
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ..errors import DecompXError, InputError, OptionError
from ..processes import begin_as_child, is_short_of_memory
from .messages import Load, Outcome, Wanted, Work

if TYPE_CHECKING:
    from ..explainer import DecompX
    from ..result.explanation import Explanation
    from ..result.failure import Failure

#: Of an explanation's dictionary, what the model says by itself.
PREDICTION = ("predicted", "predicted_label", "labels", "logits", "probabilities", "entities", "answer", "predictions")

#: Models of these tasks read files, whose paths no request may name.
_OF_FILES = ("image-classification", "audio-classification")

#: A tokenizer adds so many tokens at most to a text or pair.
_SPECIAL = 8


def work(connection: Connection, load: Load, number: int) -> None:
    """The life of a process: ``("ready", about)``, then for each :class:`Work` ``("begun",)``, the outcomes of its
    texts, each as ``("outcome", n, outcome)`` as soon as it is there, and ``("done",)``; until the connection is
    closed.

    Args:
        connection: to the process that listens.
        load: what to load.
        number: of this process, from 0.
    """
    begin_as_child()
    warnings.simplefilter("ignore")  # they may quote texts; what they say is in each explanation's metadata
    try:
        worker = Worker(load, number)
        connection.send(("ready", worker.about()))
        while True:
            batch = connection.recv()
            connection.send(("begun",))
            for n, outcome in worker.compute(batch):
                connection.send(("outcome", n, outcome))
            connection.send(("done",))
    except (EOFError, OSError):
        return
    except DecompXError as error:
        connection.send(("failed", type(error).__name__, str(error)))
    except Exception as error:
        if is_short_of_memory(error):
            os._exit(1)  # as if the system had ended it: another takes over
        connection.send(("failed", "DecompXError", f"unexpected {place_of(error)}"))


def place_of(error: BaseException) -> str:
    """What went wrong and where, without its message, which may quote a text."""
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    places = " > ".join(f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__} at {places}" if places else type(error).__name__


class Worker:
    """Explains texts with one model.

    Args:
        load: which, and how.
        number: of the process, from 0.

    Raises:
        DecompXError: if the model cannot be loaded, or does not read texts.
    """

    def __init__(self, load: Load, number: int = 0) -> None:
        import torch

        from ..explainer import DecompX

        device = load.devices[number % len(load.devices)] if load.devices else None
        if device is None or device.startswith("cpu"):
            torch.set_num_threads(load.threads)
        if load.path is None:
            self.explainer = DecompX.demo(device=device, dtype=load.dtype)
        else:
            self.explainer = DecompX.from_pretrained(load.path, device=device, task=load.task, dtype=load.dtype)
        self.load = load
        check_model(self.explainer, load.name)
        self.explainer.explain_iter(iter(()), **load.arguments)  # checks them

    def about(self) -> dict[str, Any]:
        """What there is to say of the model."""
        explainer = self.explainer
        return {
            "task": explainer.task,
            "labels": list(explainer.labels),
            "architecture": type(explainer.model).__name__,
            "device": str(explainer.device),
        }

    def compute(self, batch: Work) -> Iterator[tuple[int, Outcome]]:
        """The outcome of each text, by its place in the batch, those first that are there first.

        Args:
            batch: in the order of lengths, so that texts of equal length, which are computed together, follow each
                other.
        """
        from ..result.failure import Failure

        asked = {**self.load.arguments, **batch.arguments}
        left = []
        for n, one in enumerate(batch.texts):
            problem = self._too_long(one, bool(asked.get("truncate")))
            if problem is None:
                left.append((n, one))
            else:
                yield n, Outcome(error=problem, error_type="InputError")
        if "continuation" in asked:  # the same for all texts of a call
            asked["continuation"] = [asked["continuation"]] * len(left)
        todo = iter(left)
        try:
            texts = [one.text for _, one in left]
            found = self.explainer.explain_iter(
                texts, on_error="skip", progress=False, read_ahead=max(1, len(left)), **asked
            )
            for outcome in found:
                n, one = next(todo)
                if isinstance(outcome, Failure):
                    yield n, Outcome(error=_named(outcome.error, one), error_type=outcome.error_type)
                else:
                    yield n, _written(outcome, one)
        except DecompXError as error:  # of the call itself: no text of it can be explained
            for n, one in todo:
                yield n, Outcome(error=_named(str(error), one), error_type=type(error).__name__)
        except Exception as error:
            if is_short_of_memory(error):
                raise
            for n, _ in todo:
                yield n, Outcome(error=f"unexpected {place_of(error)}", error_type="InternalError")

    def _too_long(self, one: Wanted, truncate: bool) -> str | None:
        """What is wrong with a text that is longer than the service takes. What a tokenizer reads byte by byte has as
        many tokens as bytes, and no more."""
        texts = one.text if isinstance(one.text, tuple) else (one.text,)
        limit, tokenizer = self.load.tokens, self.explainer.tokenizer
        if sum(len(text.encode(errors="replace")) for text in texts) + _SPECIAL <= limit:
            return None
        if truncate and getattr(tokenizer, "model_max_length", limit + 1) <= limit:
            return None
        count = len(tokenizer(*texts, truncation=False)["input_ids"])
        if count <= limit:
            return None
        name = "the text" if one.alone else f"text {one.number}"
        return f"{name} has {count:,} tokens, and this service takes {limit:,}: shorten it"


def check_model(explainer: DecompX, name: str) -> None:
    """Refuse a model that has no answers to a text that could be explained.

    Raises:
        OptionError: with the reason.
    """
    if explainer.compares:
        raise OptionError(f"models.{name} gives one vector for a text, and no classes or answers: name another model")
    if explainer.task in _OF_FILES:
        raise OptionError(f"models.{name} is for {explainer.task}, and the service takes texts: name another model")
    if explainer.tokenizer is None:
        raise OptionError(f"models.{name} has no tokenizer: save it into the model's folder")


def _written(explanation: Explanation, one: Wanted) -> Outcome:
    """An explanation in the form that is wanted."""
    from ..result.failure import OF_AN_INPUT, Failure

    try:
        explanation = explanation.words() if one.words else explanation
        explanation = replace(explanation, metadata={**explanation.metadata, "input": one.number})
        data = explanation.to_dict(details=one.details)
        said = {name: data[name] for name in PREDICTION if data.get(name) is not None}
        scores = explanation.scores if one.form == "tensors" else explanation.scores[:0]
        return Outcome(
            body=_json(data),
            prediction=_json(said),
            html=explanation.to_html() if one.form == "page" else "",
            scores=tuple(scores.flatten().tolist()),
            shape=(explanation.scores.shape[0], explanation.scores.shape[1]),
            tokens=len(explanation),
            completeness_error=explanation.completeness_error,
        )
    except OF_AN_INPUT as error:
        failure: Failure = Failure.of(one.number, error)
        return Outcome(error=_named(failure.error, one), error_type=failure.error_type)


def _json(data: Any) -> bytes:
    """JSON that any reader takes.

    Raises:
        InputError: for a number that JSON has no word for.
    """
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise InputError(f"the explanation cannot be written as JSON: {error}") from error


def _named(message: str, one: Wanted) -> str:
    """A message of the explainer, which counts the texts of a batch, for the one whose request this is of."""
    from ..request.naming import name_inputs

    return name_inputs(message, ["the text" if one.alone else f"text {one.number}"])
