"""Methods that differentiate the logit with respect to the word embeddings: saliency, times input, integrated.

All are captum's. What they differentiate by is the output of the word embeddings, ``e[k]``; positions, segments and the
LayerNorm of the embedding block come after it and are part of the function (see :func:`.logits.word_embeddings`). Along
the path of integrated gradients, positions and segments thus stay as they are: its baseline is a text of as many tokens
without words.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...linearize.architectures import unwrap
from ...linearize.linearization import only_device
from ...optional import import_optional
from ..method import Problem, method
from .logits import TOKENS_PER_FORWARD, Forward, class_logit, evaluation_mode, on_device, word_embeddings

#: Steps of integrated gradients: each is 0.1 of the way, as in DecompX's experiments.
STEPS = 10

#: Converged: the scores sum to the difference of the logits up to this part of it.
COMPLETENESS_GAP = 0.01

#: Steps that a converged integral starts with, and those with which it gives up.
FIRST_STEPS, MOST_STEPS = 16, 1024


def _each(problem: Problem, score: Callable[[Forward, Tensor], Tensor]) -> list[Tensor]:
    """``score(logit, embeddings)`` ``[1, i]`` of every text; ``logit`` is a function of embeddings ``[b, i, d]``."""
    device, model = only_device(problem.model), unwrap(problem.model)
    scores = []
    with evaluation_mode(model, grad=True) as forward:
        for encoded, target in zip(problem.inputs, problem.classes, strict=True):
            embeddings, from_embeddings = word_embeddings(model, forward, on_device(encoded, device))
            found = score(class_logit(from_embeddings, target), embeddings)
            scores.append(found[0].detach().double().cpu())
    return scores


def _captum(name: str) -> Any:
    return getattr(import_optional("captum.attr", "this attribution method"), name)


def _saliency(logit: Forward, embeddings: Tensor) -> Tensor:
    """``|d logit / d e|``, ``[1, i, d]``."""
    return _captum("Saliency")(logit).attribute(embeddings.requires_grad_())


@method(
    "saliency-l1",
    "Saliency (L1)",
    signed=False,
    about="L1 norm of the logit's gradient by the token's word embedding (Simonyan et al., 2014, section 3).",
    needs=("captum",),
)
def saliency_l1(problem: Problem) -> list[Tensor]:
    """``score[k] = sum_d |g[k,d]|``, ``g`` the gradient of the logit by the word embedding."""
    return _each(problem, lambda logit, embeddings: _saliency(logit, embeddings).sum(-1))


@method(
    "saliency-l2",
    "Saliency (L2)",
    signed=False,
    about="L2 norm of the logit's gradient by the token's word embedding (Li et al., 2016; Atanasova et al., 2020).",
    needs=("captum",),
)
def saliency_l2(problem: Problem) -> list[Tensor]:
    """``score[k] = (sum_d g[k,d]^2)^(1/2)``, ``g`` the gradient of the logit by the word embedding."""
    return _each(problem, lambda logit, embeddings: _saliency(logit, embeddings).norm(dim=-1))


@method(
    "gradient-x-input",
    "Gradient x input",
    signed=True,
    about="Dot product of the token's word embedding and the logit's gradient by it (Shrikumar et al., 2016; summed "
    "over d).",
    needs=("captum",),
)
def gradient_x_input(problem: Problem) -> list[Tensor]:
    """``score[k] = sum_d e[k,d] g[k,d]``, ``g`` the gradient of the logit by the word embedding ``e``."""
    attribute = _captum("InputXGradient")
    return _each(problem, lambda logit, e: attribute(logit).attribute(e.requires_grad_()).sum(-1))


@method(
    "integrated-gradients",
    "Integrated gradients",
    signed=True,
    about="Gradient of the logit by the token's word embedding, averaged over the way from all embeddings 0 to those "
    "of the text in ten steps of 0.1, times the embedding (Sundararajan et al., 2017, equation 1; summed over d).",
    needs=("captum",),
)
def integrated_gradients(problem: Problem) -> list[Tensor]:
    """``score[k] = sum_d e[k,d] 1/10 sum_m g[k,d](a_m e)``, the midpoints ``a_m = (m - 1/2) / 10`` of ten steps.

    The baseline is 0 for every token, special ones included, and the step 0.1, both as in the released code of
    DecompX's experiments (ACL 2023). That sums the gradients at ``a = 0, 0.1, ..., 1`` with equal weights; here it is
    the midpoint rule, so that the weights sum to 1 and the error falls with the square of the step.
    """
    return _each(problem, partial(_path_integral, steps=STEPS))


@method(
    "integrated-gradients-converged",
    "Integrated gradients (converged)",
    signed=True,
    about="Integrated gradients from the baseline 0 (Sundararajan et al., 2017, equation 1) with as many steps as it "
    "takes until the scores sum to the difference of the logits up to 1 % of it.",
    needs=("captum",),
)
def integrated_gradients_converged(problem: Problem) -> list[Tensor]:
    """As :func:`integrated_gradients`, with 16, 32, ... steps; see :func:`converge`.

    Again by the midpoint rule. Near the baseline, where the LayerNorm of the embedding block divides by little, the
    gradient changes fast, and captum's default, Gauss-Legendre quadrature, mostly needs no fewer steps.
    """
    return _each(problem, lambda logit, embeddings: converge(logit, embeddings).scores)


@dataclass(frozen=True)
class Integral:
    """Integrated gradients and how exact they are.

    Attributes:
        scores: ``[1, i]``.
        steps: gradients that were evaluated along the path.
        gap: ``|sum(scores) - (logit - logit at the baseline)|``, relative to that difference.
    """

    scores: Tensor
    steps: int
    gap: float


def converge(logit: Forward, embeddings: Tensor) -> Integral:
    """Integrated gradients with twice as many steps until the gap of completeness is :data:`COMPLETENESS_GAP`.

    With :data:`MOST_STEPS` it gives up, warns, and returns what it has.

    Args:
        logit: from embeddings ``[b, i, d]`` to a number for each, ``[b]``.
        embeddings: of a text, ``[1, i, d]``.
    """
    with torch.no_grad():
        difference = (logit(embeddings) - logit(torch.zeros_like(embeddings))).item()
    steps = FIRST_STEPS
    while True:
        scores = _path_integral(logit, embeddings, steps=steps)
        gap = abs(scores.double().sum().item() - difference) / max(abs(difference), torch.finfo(torch.float64).tiny)
        if gap <= COMPLETENESS_GAP:
            break
        if steps >= MOST_STEPS:
            warnings.warn(
                f"integrated gradients with {steps} steps still miss the difference of the logits, {difference:.3g}, "
                f"by {gap:.1%} of it",
                stacklevel=2,
            )
            break
        steps *= 2
    return Integral(scores, steps, gap)


def _path_integral(logit: Forward, embeddings: Tensor, *, steps: int) -> Tensor:
    """Captum's integrated gradients from the baseline 0 by the midpoint rule, summed over ``d``: ``[1, i]``."""
    at_once = max(1, TOKENS_PER_FORWARD // embeddings.shape[1])
    attributions = _captum("IntegratedGradients")(logit).attribute(
        embeddings.detach(),
        baselines=torch.zeros_like(embeddings),
        n_steps=steps,
        method="riemann_middle",
        internal_batch_size=None if steps <= at_once else at_once,
    )
    return attributions.sum(-1)
