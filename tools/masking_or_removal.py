"""Why integrated gradients are ahead of DecompX when tokens are masked, and behind when they are taken out.

    python tools/masking_or_removal.py [--every 4] [--again]

On every so manieth of 528 held-out snippets, the demo model, and the same levels (10, 20 ... 90 % of the tokens) for
both ways of taking tokens away, the mean drop of the predicted class's probability (AOPC, and its like with removal):

- "from the mask": integrated gradients whose baseline is the embedding of the mask token, which is what masking puts in
  place of a word, instead of 0; and the gradient at the text itself times the way to that baseline, without the path.
- "over masked texts": the mean of a token's DecompX scores in ten texts of which 5, 15 ... 95 % are masked at random,
  the token itself not: DecompX, too, along a path from the text to nothing but masks.
- with ``--again``: the tokens of the next level are chosen by scores of the text as it is after the level before,
  instead of by those of the whole text. That takes some minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from decompx_fast import DecompX
from decompx_fast.evaluation.bootstrap import bootstrap_means, estimate
from decompx_fast.evaluation.classifier import Classifier
from decompx_fast.evaluation.data import SNIPPETS, read_dataset
from decompx_fast.evaluation.masking import count_of, importance_order
from decompx_fast.evaluation.method import Problem, get_method
from decompx_fast.evaluation.methods.gradients import STEPS
from decompx_fast.evaluation.methods.logits import class_logit, evaluation_mode, on_device, word_embeddings
from decompx_fast.evaluation.metrics import LEVELS
from decompx_fast.optional import import_optional
from decompx_fast.request.encoded import Encoded
from decompx_fast.request.versions import version

TEXTS = 528
Way = Literal["mask", "remove"]
WAYS: tuple[Way, ...] = ("mask", "remove")

Score = Callable[[Problem], list[Tensor]]


def from_the_mask(problem: Problem, *, steps: int) -> list[Tensor]:
    """Integrated gradients from the text with every token masked; with 0 steps, the gradient at the text only."""
    device, scores = torch.device("cpu"), []
    integrated = import_optional("captum.attr", "integrated gradients").IntegratedGradients
    with evaluation_mode(problem.model, grad=True) as forward:
        for encoded, target in zip(problem.inputs, problem.classes, strict=True):
            inputs = on_device(encoded, device)
            embeddings, from_embeddings = word_embeddings(problem.model, forward, inputs)
            logit = class_logit(from_embeddings, target)
            ids = inputs["input_ids"].masked_fill(~torch.tensor(encoded.special), problem.tokenizer.mask_token_id)
            with torch.no_grad():
                baseline = problem.model.get_input_embeddings()(ids).clone()
            if steps:
                found = integrated(logit).attribute(embeddings, baseline, n_steps=steps, method="riemann_middle")
            else:
                (gradient,) = torch.autograd.grad(logit(embeddings.requires_grad_()).sum(), embeddings)
                found = gradient * (embeddings - baseline)
            scores.append(found.sum(-1)[0].detach().double())
    return scores


def over_masked_texts(problem: Problem, *, draws: int = STEPS) -> list[Tensor]:
    """The mean of the DecompX scores of each token over texts of which ever more is masked, but not that token."""
    generator = torch.Generator().manual_seed(problem.seed)
    masked, owners, kept = [], [], []
    for number, encoded in enumerate(problem.inputs):
        free = torch.tensor([place for place, special in enumerate(encoded.special) if not special])
        for draw in range(draws):
            count = round((draw + 0.5) / draws * len(free))
            gone = free[torch.randperm(len(free), generator=generator)[:count]]
            masked.append(without(encoded, gone.tolist(), "mask", problem.tokenizer.mask_token_id))
            owners.append(number)
            kept.append(torch.ones(len(encoded), dtype=torch.float64).index_fill(0, gone, 0))
    classes = [problem.classes[number] for number in owners]
    found = get_method("decompx").score(Problem(problem.model, problem.tokenizer, masked, classes, problem.seed))
    sums = [torch.zeros(len(encoded), dtype=torch.float64) for encoded in problem.inputs]
    times = [torch.zeros(len(encoded), dtype=torch.float64) for encoded in problem.inputs]
    for number, row, there in zip(owners, found, kept, strict=True):
        sums[number] += row * there
        times[number] += there
    return [total / count.clamp_min(1) for total, count in zip(sums, times, strict=True)]


def without(encoded: Encoded, places: Sequence[int], way: Way, mask: int) -> Encoded:
    """The text with the tokens at these places masked or taken out."""
    gone = torch.zeros(len(encoded), dtype=torch.bool)
    gone[list(places)] = True
    return version(encoded, gone, mask if way == "mask" else None)


class Comparison:
    """The drops of the predicted class's probability, for one set of texts.

    Args:
        classifier: the model.
        texts: encoded.
    """

    def __init__(self, classifier: Classifier, texts: Sequence[Encoded]) -> None:
        self._classifier = classifier
        self._texts = texts
        found = classifier.predict([encoded.inputs for encoded in texts]).log_probabilities
        self._classes = found.argmax(1).tolist()
        self._whole = found.exp().amax(1)
        self._once: dict[Score, list[list[int]]] = {}

    def drops(self, score: Score, way: Way, *, again: bool) -> np.ndarray:
        """``[text, level]``; with ``again``, scores are computed anew after each level."""
        mask = self._classifier.mask_token_id
        gone: list[list[int]] = [[] for _ in self._texts]
        if not again and score not in self._once:
            self._once[score] = self._orders(score, self._texts, gone, way)
        levels = []
        for percent in LEVELS:
            changed = [without(text, places, way, mask) for text, places in zip(self._texts, gone, strict=True)]
            orders = self._orders(score, changed, gone, way) if again else self._once[score]
            for text, places, order in zip(self._texts, gone, orders, strict=True):
                count = count_of(percent, len(text) - sum(text.special)) - len(places)
                places += [place for place in order if place not in places][:count]
            changed = [without(text, places, way, mask) for text, places in zip(self._texts, gone, strict=True)]
            said = self._classifier.predict([text.inputs for text in changed]).log_probabilities.exp()
            levels.append(self._whole - said[range(len(said)), self._classes])
        return torch.stack(levels, 1).numpy()

    def _orders(
        self, score: Score, texts: Sequence[Encoded], gone: Sequence[Sequence[int]], way: Way
    ) -> list[list[int]]:
        """By importance in these texts, as places in the whole ones."""
        problem = Problem(self._classifier.model, self._classifier.explainer.tokenizer, texts, self._classes)
        orders = []
        for number, (row, text, places) in enumerate(zip(score(problem), texts, gone, strict=True)):
            order = importance_order(row, text.special, signed=True, generator=problem.generator(number, "ties"))
            whole = range(len(self._texts[number]))
            kept = list(whole) if way == "mask" else [place for place in whole if place not in places]
            orders.append([kept[place] for place in order])
        return orders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--every", type=int, default=4, help="of the texts")
    parser.add_argument("--again", action="store_true", help="compute scores anew at each level")
    parser.add_argument("--json", help="write the numbers to this file too")
    arguments = parser.parse_args()
    explainer = DecompX.demo()
    classifier = Classifier(explainer)
    texts = classifier.encode(read_dataset(SNIPPETS, explainer.labels, limit=TEXTS).texts)[:: arguments.every]
    methods: dict[str, Score] = {
        "DecompX": get_method("decompx").score,
        "Integrated gradients": get_method("integrated-gradients").score,
    }
    if not arguments.again:
        methods |= {
            "AttnLRP": get_method("attn-lrp").score,
            "Integrated gradients, from the mask": partial(from_the_mask, steps=STEPS),
            "Gradient x way from the mask": partial(from_the_mask, steps=0),
            "DecompX, over masked texts": over_masked_texts,
        }
    compared = Comparison(classifier, texts)
    print(f"{len(texts)} texts; mean over the levels, its difference to DecompX [95 %], and each level", flush=True)
    first: dict[Way, np.ndarray] = {}
    rows = []
    for again in (False, True) if arguments.again else (False,):
        for name, score in methods.items():
            for way in WAYS:
                found = compared.drops(score, way, again=again)
                difference = found.mean(1) - first.setdefault(way, found.mean(1))
                by = estimate(difference, bootstrap_means(difference[:, None], seed=0)[:, 0])
                rows.append(
                    {
                        "method": name,
                        "again": again,
                        "way": way,
                        "mean": float(found.mean()),
                        "to_decompx": list(by),
                        "levels": found.mean(0).tolist(),
                    }
                )
                what = f"{name}{', again' if again else ''}"
                interval = f"{by.mean:+.3f} [{by.low:+.3f}, {by.high:+.3f}]"
                curve = " ".join(f"{value:.3f}" for value in found.mean(0))
                print(f"{way:6} {what:36} {found.mean():.3f} {interval}   {curve}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"texts": len(texts), "percents": list(LEVELS), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
