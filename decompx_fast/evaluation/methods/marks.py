"""The marks that other methods are read against: random scores below, and leave-one-out, which asks the model."""

from __future__ import annotations

import torch
from torch import Tensor

from ...explainer import DecompX
from ..classifier import Classifier, Inputs
from ..method import Problem, method


@method("random", "Random", signed=False, about="uniform random numbers, different for each text: the lower mark")
def random(problem: Problem) -> list[Tensor]:
    """Scores that know nothing of the model."""
    return [
        torch.rand(len(encoded), generator=problem.generator(index, "random"), dtype=torch.float64)
        for index, encoded in enumerate(problem.inputs)
    ]


@method(
    "occlusion",
    "Leave-one-out",
    signed=True,
    about="how much the log probability of the class falls when the token alone is masked (Zeiler & Fergus 2014; Li, "
    "Monroe & Jurafsky 2016): the upper mark, which sees no two tokens together and so is no bound",
)
def occlusion(problem: Problem) -> list[Tensor]:
    """``score[k] = log p(class | text) - log p(class | text with token k masked)``; special tokens get 0."""
    classifier = Classifier(DecompX(problem.model, problem.tokenizer))
    inputs: list[Inputs] = []
    for encoded in problem.inputs:
        inputs.append(encoded.inputs)
        for place in range(len(encoded)):
            if not encoded.special[place]:
                ids = encoded.inputs["input_ids"].clone()
                ids[place] = classifier.mask_token_id
                inputs.append({**encoded.inputs, "input_ids": ids})
    found = iter(classifier.predict(inputs).log_probabilities)
    scores = []
    for encoded, target in zip(problem.inputs, problem.classes, strict=True):
        full = next(found)[target]
        row = [0.0 if special else float(full - next(found)[target]) for special in encoded.special]
        scores.append(torch.tensor(row, dtype=torch.float64))
    return scores
