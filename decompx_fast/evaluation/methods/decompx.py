"""DecompX and its ablations, by this package's own engines."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch
from torch import Tensor

from ...config import DecompXConfig
from ...engines.choose import Execution, attribute, choose_engine
from ...engines.path import TRIED
from ...explainer import DecompX
from ...linearize.layer import Linearization
from ..linearized import score_batches
from ..method import Problem, method

#: Steps of a path, and random sets of tokens besides.
STEPS, FEW_STEPS = 10, 3


@method(
    "decompx",
    "DecompX",
    signed=True,
    about="The share of each token in the class's logit, carried as vectors through every component, biases shared by "
    "the absolute dot product (Modarressi et al., ACL 2023, equations 4 to 11).",
)
def decompx(problem: Problem) -> list[Tensor]:
    """The full method as published; the scores of a text add up to the logit of its class.

    Source: Modarressi et al., ACL 2023, section 3.
    """
    return _decompose(problem, DecompXConfig())


@method(
    "decompx-no-bias",
    "DecompX without biases",
    signed=True,
    about="DecompX with every bias left out, so that the score is linear in the token's embedding "
    "(an ablation of Modarressi et al., ACL 2023).",
)
def decompx_no_bias(problem: Problem) -> list[Tensor]:
    """The ablation without biases, from one backward pass through the linearised layers."""
    return _decompose(problem, DecompXConfig(bias="none"))


@method(
    "decompx-no-ffn",
    "DecompX without FFN",
    signed=True,
    about="DecompX with the feed-forward networks left out of the decomposition, their residual connections kept "
    "(an ablation of Modarressi et al., ACL 2023).",
)
def decompx_no_ffn(problem: Problem) -> list[Tensor]:
    """The ablation without feed-forward networks; the scores do not add up to the logit."""
    return _decompose(problem, DecompXConfig(ffn=False))


@method(
    "decompx-no-head",
    "DecompX without head",
    signed=False,
    about="The norm of the vector that each token contributed to the state which the head reads, with the head left "
    "out, so that no class enters (an ablation of Modarressi et al., ACL 2023).",
)
def decompx_no_head(problem: Problem) -> list[Tensor]:
    """The ablation without classification head: ``|X[p,k]|`` at the position ``p`` that the head reads."""
    return _decompose(problem, DecompXConfig(head=False))


@method(
    "decompx-released",
    "DecompX as released",
    signed=True,
    about="DecompX as the authors' code computes it: the weights of the attention bias are taken after the residual "
    "connection, and the value bias of the first layer follows the attention weights.",
)
def decompx_released(problem: Problem) -> list[Tensor]:
    """The full method in the variant of the released code; complete as well."""
    return _decompose(problem, DecompXConfig(variant="released"))


@method(
    "decompx-paths",
    "DecompX along paths",
    signed=True,
    about=f"DecompX averaged over texts of which ever more is masked, its own most important tokens first, and random "
    f"tokens: {STEPS} of each, complete to the difference of the logits of the text and of nothing but masks "
    "(decompx_fast.engines.path).",
)
def decompx_paths(problem: Problem) -> list[Tensor]:
    """Of the text itself by the full method, of the others without biases, which takes two passes each.

    Raises:
        InputError: if the tokenizer has no mask token.
    """
    return _along_paths(problem, STEPS)


@method(
    "decompx-paths-3",
    f"DecompX along paths, {FEW_STEPS} steps",
    signed=True,
    about=f"DecompX along paths with {FEW_STEPS} steps, for about half of the time.",
)
def decompx_paths_3(problem: Problem) -> list[Tensor]:
    """As :func:`decompx_paths`, with fewer versions of each text."""
    return _along_paths(problem, FEW_STEPS)


@method(
    "decompx-paths-auto",
    "DecompX along paths, as many steps as it takes",
    signed=True,
    about="DecompX along paths with 3, 6 ... 48 steps, until the scores change by 10 % of their norm or less.",
)
def decompx_paths_auto(problem: Problem) -> list[Tensor]:
    """As :func:`decompx_paths`, with the number of steps by the measured change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the texts that 48 steps are too few for
        return _along_paths(problem, "auto")


@method(
    "decompx-search",
    "DecompX, searched",
    signed=True,
    about=f"Tokens are taken out of the text and into the empty one, one at a time: of the {TRIED} with the largest "
    "scores of DecompX that which lowers the logit of the one and raises that of the other the most, where absent "
    "tokens are masked, and where they are removed; the mean of these changes, complete to the difference of the "
    "logits of the text and of the empty one (decompx_fast.engines.path).",
)
def decompx_search(problem: Problem) -> list[Tensor]:
    """One pass of the model for each version: twelve for each token, half of them of shorter texts.

    Raises:
        InputError: if the tokenizer has no mask token.
    """
    return _along_paths(problem, "search")


def _along_paths(problem: Problem, steps: int | Literal["auto", "search"]) -> list[Tensor]:
    explainer = DecompX(problem.model, problem.tokenizer)
    scores: list[Tensor] = [torch.empty(0)] * len(problem.inputs)
    alike: dict[tuple[int, int, tuple[str, ...]], list[int]] = {}  # of one class and length, with the same parts
    for n, (one, target) in enumerate(zip(problem.inputs, problem.classes, strict=True)):
        alike.setdefault((target, len(one), tuple(one.inputs)), []).append(n)
    for (target, _, names), members in alike.items():
        rows = [problem.inputs[n] for n in members]
        encoding = {name: [one.inputs[name].tolist() for one in rows] for name in names}
        encoding["special_tokens_mask"] = [[int(special) for special in one.special] for one in rows]
        asked: dict[str, Any] = {"targets": target, "steps": steps, "seed": problem.seed, "progress": False}
        for n, found in zip(members, explainer.explain(encoding, **asked), strict=True):
            scores[n] = found.scores[:, 0].double()
    return scores


def _decompose(problem: Problem, config: DecompXConfig) -> list[Tensor]:
    engine = choose_engine("auto", config, grouped=False)

    def score(linearization: Linearization, classes: Tensor) -> Tensor:
        found = attribute(engine, linearization, config, dtype=None, sources=None, terms=None, execution=Execution())
        if not config.head:
            return found.scores[..., 0]
        index = classes[:, None, None].expand(-1, found.scores.shape[1], 1)
        return found.scores.gather(2, index)[..., 0]  # [b, k]

    return score_batches(problem, score)
