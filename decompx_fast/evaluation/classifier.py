"""The classifier under evaluation: texts as it reads them, and what it says about many inputs at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError, NumericalError
from ..explainer import DecompX
from ..linearize.architectures import describe, unwrap
from ..linearize.linearization import input_limits, only_device, specification, taken_inputs
from ..linearize.model_run import plain_mode, run_model, undisturbed
from ..models.digest import model_sha256
from ..request.encoded import Encoded
from ..request.encoding import Reader
from ..request.prepared import MODEL_INPUTS

#: Positions in one batch; inputs of a batch are equally long, so that none is padded.
BATCH_POSITIONS = 2**12

#: Inputs in one batch at the least (or as many as :data:`BATCH_POSITIONS` allows), filled up with copies: with fewer,
#: matrix products take another way, and what is said about an input would depend, in the last digit, on the company (as
#: it does on some processors even so).
FEWEST = 8

Inputs = Mapping[str, Tensor]  # [i] each, as in Encoded.inputs


class Predictions(NamedTuple):
    """What the classifier says about some inputs.

    Attributes:
        logits: ``[n, c]`` float64.
        states: ``[n, d]`` float32, the last layer's output, the mean over all positions.
    """

    logits: Tensor
    states: Tensor

    @property
    def log_probabilities(self) -> Tensor:
        """``[n, c]`` float64, the logarithm of the softmax of the logits."""
        return self.logits.log_softmax(-1)


class Classifier:
    """A sequence classifier with a tokenizer, run in eval mode and left as it was.

    Args:
        explainer: it.

    Raises:
        InputError: if it has no tokenizer, its tokenizer no mask token, or it does not choose one of several classes.
    """

    def __init__(self, explainer: DecompX) -> None:
        if explainer.task != "text-classification":
            raise InputError(
                f"the model's task is {explainer.task}: faithfulness is measured for sequence classification alone"
            )
        if explainer.problem_type != "single_label":
            kind = explainer.problem_type.replace("_", " ")
            raise InputError(f"the model is one of {kind}: faithfulness is measured for models that choose one class")
        if specification(explainer.model, explainer.copies).encoder_layers:
            raise InputError(
                "the model has a decoder beside its encoder, in which each token of a text has two places: "
                "faithfulness is measured for models in which it has one"
            )
        if explainer.tokenizer is None:
            raise InputError("the explainer has no tokenizer, which the texts and their masks need: load one with it")
        mask = explainer.tokenizer.mask_token_id
        if mask is None:
            raise InputError(
                "the tokenizer has no mask token, by which tokens are replaced: set tokenizer.mask_token to one that "
                "the model knows"
            )
        self.explainer = explainer
        self.model = explainer.model
        self.mask_token_id = int(mask)
        self.device = only_device(unwrap(self.model))

    def encode(
        self, texts: Sequence[str | tuple[str, str]], *, truncate: bool = False, places: Sequence[str] | None = None
    ) -> list[Encoded]:
        """Texts or pairs as the model takes them; warns of what was cut, and of a tokenizer that knows few of them.

        Args:
            texts: them.
            truncate: cut those that are too long, with a warning, instead of refusing them.
            places: what messages call each; ``None``: by its number, from 0.

        Raises:
            InputError: for a text that cannot be used, naming it by its place.
        """
        limits = input_limits(self.model)
        reader = Reader(
            self.explainer.tokenizer,
            limits.positions,
            sizes=limits.sizes,
            truncate=truncate,
            takes=taken_inputs(self.model, MODEL_INPUTS),
        )
        named = zip(texts, places or (f"input {n}" for n in range(len(texts))), strict=True)
        found = [reader.read_one(text, place) for text, place in named]
        reader.notices.say()
        return found

    def predict(self, inputs: Sequence[Inputs]) -> Predictions:
        """Run the classifier on inputs of any lengths, equally long ones together, and :data:`FEWEST` at the least.

        Raises:
            NumericalError: if a logit is NaN or infinite.
        """
        logits: list[Tensor] = [torch.empty(0)] * len(inputs)
        states: list[Tensor] = [torch.empty(0)] * len(inputs)
        with plain_mode(self.device), undisturbed(unwrap(self.model)) as model:
            spec = describe(model)
            for batch in batches_of_equal_length([len(one["input_ids"]) for one in inputs]):
                fewest = min(FEWEST, BATCH_POSITIONS // len(inputs[batch[0]]["input_ids"]))
                filled = batch + batch[:1] * (fewest - len(batch))
                stacked = {
                    name: torch.stack([inputs[n][name] for n in filled]).to(self.device) for name in inputs[batch[0]]
                }
                run = run_model(model, spec, stacked)
                if not torch.isfinite(run.logits).all():
                    raise NumericalError(f"the logits hold NaN or infinity in {run.logits.dtype}: check the model")
                found = run.logits.double().cpu()  # [b, c]
                pooled = run.states[-1].float().mean(1).cpu()  # [b, d]
                for n, row, state in zip(batch, found, pooled, strict=False):
                    logits[n], states[n] = row, state
        return Predictions(torch.stack(logits), torch.stack(states))

    def sha256(self) -> str:
        """A digest of the weights and the configuration."""
        return model_sha256(unwrap(self.model))


def batches_of_equal_length(lengths: Sequence[int], positions: int = BATCH_POSITIONS) -> Iterable[list[int]]:
    """Places of equally long inputs, in their order; a batch holds ``positions`` at most, but one input at least."""
    alike: dict[int, list[int]] = {}
    for place, length in enumerate(lengths):
        alike.setdefault(length, []).append(place)
    for length, places in alike.items():
        size = max(1, positions // length)
        for start in range(0, len(places), size):
            yield places[start : start + size]
