"""Sanity of attribution methods: what should change their scores, and what should not.

Each check scores the same texts again, on a changed copy of the model or with a changed text, for the same classes.
Likeness of scores is Spearman's rank correlation over the tokens that are not special, of scores as they are ordered:
signed, or magnitudes. A check that cannot be made of a model or a text gives NaN.
"""

from __future__ import annotations

import copy
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from ..linearize.architectures import unwrap
from ..linearize.linearization import only_device
from ..linearize.model_run import plain_mode, undisturbed
from ..request.encoded import Encoded
from ..request.versions import generator_of
from .method import Method, Problem

#: Typing errors, or words replaced, of each text, one at a time.
TYPOS = 3

#: Words that mean the same in nearly every sentence, by which the other is replaced; both ways.
SYNONYMS = (
    "film movie,films movies,maybe perhaps,really truly,big large,kids children,kid child,start begin,starts begins,"
    "almost nearly,though although,whole entire,quick fast,often frequently,quite rather,buy purchase,bought purchased,"
    "story tale,tv television,phone telephone,photo picture,photos pictures,ok okay,and &,cannot can't,while whilst,"
    "nobody no-one,everybody everyone,anybody anyone,toward towards,ending end,scared afraid,sick ill,smart clever"
)

#: Draws of noise on the embeddings, and its radius: captum's.
DRAWS, RADIUS = 5, 0.02

#: The output of a shifted model is that of the model, up to this part of it.
SAME = 1e-3

#: Around words.
PUNCTUATION = ".,;:!?()'\""

Encode = Callable[[str | tuple[str, str]], Encoded]

#: From a text to one of which a word is changed, and which word: its segment and number; ``None`` where there is none.
Change = Callable[[Encoded, torch.Generator], tuple[str | tuple[str, str], tuple[int, int]] | None]


@dataclass(frozen=True)
class Trial:
    """A method and what it says of some texts.

    Attributes:
        method: it.
        problem: the texts.
        scores: ``[i]`` of each.
        encode: reads a changed text.
        other: a model of the same shape that learnt shuffled labels, if there is one.
    """

    method: Method
    problem: Problem
    scores: Sequence[Tensor]
    encode: Encode
    other: nn.Module | None = None

    def again(self, model: nn.Module) -> list[Tensor]:
        """The scores of the same texts for another model."""
        return self.method.score(replace(self.problem, model=model))

    def likeness(self, others: Sequence[Tensor]) -> list[float]:
        """The rank correlation of each text's scores with others of the same tokens."""
        rows = zip(self.problem.inputs, self.scores, others, strict=True)
        return [self.correlation(a[free], b[free]) for one, a, b in rows for free in [~torch.tensor(one.special)]]

    def correlation(self, a: Tensor, b: Tensor) -> float:
        return rank_correlation(a, b) if self.method.signed else rank_correlation(a.abs(), b.abs())


def cascading(trial: Trial) -> list[list[float]]:
    """Likeness to the scores of models whose weights are shuffled from the head down, one layer more at each level.

    Source: Adebayo et al., NeurIPS 2018, section 3 (cascading randomization).
    """
    model = copy.deepcopy(unwrap(trial.problem.model))
    levels = []
    for number, group in enumerate(reversed(weight_groups(model))):
        shuffle(group, trial.problem.seed, number)
        levels.append(trial.likeness(trial.again(model)))
    return [list(row) for row in zip(*levels, strict=True)]


def independent(trial: Trial) -> list[list[float]]:
    """As :func:`cascading`, with the weights of one layer alone shuffled at each level."""
    levels = []
    count = len(weight_groups(unwrap(trial.problem.model)))
    for number in range(count):
        model = copy.deepcopy(unwrap(trial.problem.model))
        shuffle(weight_groups(model)[count - 1 - number], trial.problem.seed, number)
        levels.append(trial.likeness(trial.again(model)))
    return [list(row) for row in zip(*levels, strict=True)]


def label_randomization(trial: Trial) -> list[list[float]]:
    """Likeness to the scores of a model of the same shape that learnt shuffled labels.

    Source: Adebayo et al., NeurIPS 2018, section 4 (the data randomization test).
    """
    if trial.other is None:
        return [[float("nan")] for _ in trial.problem.inputs]
    return [[value] for value in trial.likeness(trial.again(trial.other))]


def input_invariance(trial: Trial) -> list[list[float]]:
    """Likeness to the scores of a model whose word embeddings are all shifted by a vector, its position embeddings by
    the negative of it: the same function of the text.

    Source: Kindermans et al., 2019 (the (un)reliability of saliency methods), section 2.
    """
    model = copy.deepcopy(unwrap(trial.problem.model))
    words = model.get_input_embeddings().weight  # type: ignore[operator]
    positions = [m.weight for name, m in model.named_modules() if name.endswith("position_embeddings") and _is_table(m)]
    missing = [[float("nan")] for _ in trial.problem.inputs]
    if len(positions) != 1 or positions[0].shape[1] != words.shape[1]:
        return missing
    generator = torch.Generator().manual_seed(trial.problem.seed)
    with torch.no_grad():
        shift = torch.randn(words.shape[1], generator=generator).to(words) * words.norm(dim=-1).mean()
        shift /= words.shape[1] ** 0.5
        words += shift
        positions[0] -= shift
    if not all(_same_output(trial.problem.model, model, one) for one in trial.problem.inputs):
        return missing
    return [[value] for value in trial.likeness(trial.again(model))]


def typo_stability(trial: Trial) -> list[list[float]]:
    """Likeness of the scores of words to those in a text in which two inner letters of one other word are swapped."""
    return _word_stability(trial, misspelt, "typo")


def paraphrase_stability(trial: Trial) -> list[list[float]]:
    """Likeness of the scores of words to those in a text in which one other word is replaced by its like."""
    return _word_stability(trial, paraphrased, "paraphrase")


def _word_stability(trial: Trial, change: Change, purpose: str) -> list[list[float]]:
    """The mean likeness over a few changed words of each text, one at a time; NaN for a text without such a word."""
    found = []
    for n, encoded in enumerate(trial.problem.inputs):
        values = []
        before = word_scores(encoded, trial.scores[n])
        for number in range(TYPOS):
            changed = change(encoded, generator_of(encoded.ids, trial.problem.seed, f"{purpose} {number}"))
            if changed is None:
                continue
            text, word = changed
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                other = trial.encode(text)
            asked = replace(trial.problem, inputs=[other], classes=[trial.problem.classes[n]])
            after = word_scores(other, trial.method.score(asked)[0])
            kept = sorted((set(before) & set(after)) - {word})
            rows = [torch.tensor([scores[key] for key in kept], dtype=torch.float64) for scores in (before, after)]
            values.append(trial.correlation(*rows))
        found.append([float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")])
    return found


def sensitivity(trial: Trial) -> list[list[float]]:
    """The greatest change of the scores, relative to their norm, by noise on the word embeddings.

    Source: Yeh et al., NeurIPS 2019, definition 3.1; noise is of the whole table, so that equal tokens have the same.
    """
    worst = [0.0] * len(trial.scores)
    for draw in range(DRAWS):
        model = copy.deepcopy(unwrap(trial.problem.model))
        words = model.get_input_embeddings().weight  # type: ignore[operator]
        generator = torch.Generator().manual_seed(trial.problem.seed + draw)
        with torch.no_grad():
            words += (RADIUS * (2 * torch.rand(words.shape, generator=generator) - 1)).to(words)
        for n, (row, other) in enumerate(zip(trial.scores, trial.again(model), strict=True)):
            worst[n] = max(worst[n], float((other - row).norm() / row.norm()))
    return [[value] for value in worst]


CHECKS: dict[str, Callable[[Trial], list[list[float]]]] = {
    "cascading-randomization": cascading,
    "independent-randomization": independent,
    "label-randomization": label_randomization,
    "input-invariance": input_invariance,
    "typo-stability": typo_stability,
    "paraphrase-stability": paraphrase_stability,
    "sensitivity": sensitivity,
}


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's; equal values have the mean of their ranks. NaN where all of one side are equal."""
    ranks = torch.stack([_ranks(a), _ranks(b)])
    ranks = ranks - ranks.mean(1, keepdim=True)
    norms = ranks.norm(dim=1)
    return float(ranks[0] @ ranks[1] / norms.prod()) if len(a) > 1 and norms.min() > 0 else float("nan")


def _ranks(values: Tensor) -> Tensor:
    _, group, counts = values.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts + 1) / 2)[group].double()


def weight_groups(model: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters in groups, from the embeddings to the head: what comes before the layers, each layer, the rest."""
    named = list(model.named_parameters())
    numbers = [found.group(1) if (found := re.search(r"\.(\d+)\.", name)) else "" for name, _ in named]
    runs = itertools.groupby(zip(numbers, named, strict=True), key=lambda one: one[0])
    return [[parameter for _, (_, parameter) in run] for _, run in runs]


def shuffle(group: Sequence[nn.Parameter], seed: int, number: int) -> None:
    """Permute the entries of each parameter: weights of the same distribution that know nothing."""
    generator = torch.Generator().manual_seed(1000 * seed + number)
    with torch.no_grad():
        for parameter in group:
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))


def misspelt(encoded: Encoded, generator: torch.Generator) -> tuple[str | tuple[str, str], tuple[int, int]] | None:
    """The text with two neighbouring inner letters of a word swapped, and which word: its segment and number.

    ``None`` if no word has two inner letters that differ.
    """
    places = [
        (segment, number, at)
        for segment, text in enumerate(encoded.texts)
        for number, (start, word) in enumerate(_words(text))
        if word.isalpha()
        for at in range(start + 1, start + len(word) - 2)
        if text[at] != text[at + 1]
    ]
    if not places:
        return None
    segment, number, at = places[int(torch.randint(len(places), (1,), generator=generator))]
    texts = list(encoded.texts)
    text = texts[segment]
    texts[segment] = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return (texts[0] if len(texts) == 1 else (texts[0], texts[1])), (segment, number)


def paraphrased(encoded: Encoded, generator: torch.Generator) -> tuple[str | tuple[str, str], tuple[int, int]] | None:
    """The text with a word of :data:`SYNONYMS` replaced by the other, and which word; ``None`` if it has none."""
    pairs = [pair.split() for pair in SYNONYMS.split(",")]
    other = {a: b for one, two in pairs for a, b in ((one, two), (two, one))}
    places = [
        (segment, number, start, word)
        for segment, text in enumerate(encoded.texts)
        for number, (start, word) in enumerate(_words(text))
        if word.strip(PUNCTUATION).lower() in other
    ]
    if not places:
        return None
    segment, number, start, word = places[int(torch.randint(len(places), (1,), generator=generator))]
    bare = word.strip(PUNCTUATION)
    new = other[bare.lower()]
    new = new.capitalize() if bare[:1].isupper() else new
    texts = list(encoded.texts)
    at = start + word.index(bare)
    texts[segment] = texts[segment][:at] + new + texts[segment][at + len(bare) :]
    return (texts[0] if len(texts) == 1 else (texts[0], texts[1])), (segment, number)


def word_scores(encoded: Encoded, scores: Tensor) -> dict[tuple[int, int], float]:
    """The sum of the scores of the tokens of each word, by its segment and its number; words have no white space."""
    found: dict[tuple[int, int], float] = {}
    starts = [[start for start, _ in _words(text)] for text in encoded.texts]
    for span, score in zip(encoded.spans, scores.tolist(), strict=True):
        if span is not None and span[1] < span[2]:
            number = int(np.searchsorted(starts[span[0]], span[2] - 1, side="right")) - 1
            found[span[0], number] = found.get((span[0], number), 0.0) + score
    return found


def _words(text: str) -> Iterator[tuple[int, str]]:
    return ((match.start(), match.group()) for match in re.finditer(r"\S+", text))


def _is_table(module: nn.Module) -> bool:
    return isinstance(getattr(module, "weight", None), nn.Parameter)


def _same_output(first: nn.Module, second: nn.Module, encoded: Encoded) -> bool:
    """Whether two models say the same of a text."""
    device = only_device(unwrap(first))
    inputs = {name: values[None].to(device) for name, values in encoded.inputs.items()}
    logits = []
    with plain_mode(device):
        for model in (first, second):
            with undisturbed(unwrap(model)) as ready:
                logits.append(ready(**inputs).logits)
    return bool((logits[0] - logits[1]).abs().max() <= SAME * logits[0].abs().max())
