"""Methods that fit a linear model to the predictions for masked texts: LIME and kernel SHAP.

A coalition is the set of tokens that are kept; every other is replaced by the mask token. Special tokens are always
kept, and score 0. What is fitted is the logit ``f`` of the class. Both are captum's, and so is the sampler of kernel
SHAP; the least squares are solved here, in float64, so that no other package is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import comb
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ...linearize.linearization import only_device
from ...optional import import_optional
from ...request.encoded import Encoded
from ..method import Problem, method
from .logits import TOKENS_PER_FORWARD, Forward, class_logit, evaluation_mode, on_device, repeated

#: Masked texts that are predicted for each text, by either method.
CALLS = 100

#: LIME's kernel for texts: the width 25 of its reference implementation, which measures distances in hundredths.
KERNEL_WIDTH = 0.25

#: The ridge penalty of LIME's reference implementation.
RIDGE_PENALTY = 1.0

#: The weight of the whole and the empty coalition in kernel SHAP, where theory has infinity; captum's.
END_WEIGHT = 1e6

#: Scores ``[m]`` of the ``m`` tokens that can be masked, from their logit as a function of ids ``[b, m]``, their ids
#: ``[1, m]``, those of the mask token ``[1, m]``, how many texts fit in a batch, and a source of random numbers.
Fit = Callable[[Forward, Tensor, Tensor, int, torch.Generator], Tensor]


@method(
    "lime",
    "LIME",
    signed=True,
    about=f"Coefficients of a ridge regression of the logit on which tokens are kept, over {CALLS} texts with random "
    "tokens masked, weighted by their likeness to the text (Ribeiro et al., KDD 2016, with the sampling, kernel and "
    "penalty of its reference implementation for texts).",
    needs=("captum",),
)
def lime(problem: Problem) -> list[Tensor]:
    """The ``b`` that minimises ``sum_s w_s (f(s) - a - b . z_s)^2 + |b|^2``, over coalitions ``z_s`` in ``{0, 1}^m``.

    The first coalition is the text; of the others, each masks a number of tokens that is uniform in ``1..m``, chosen
    uniformly. ``w_s = exp(-D^2 / (2 width^2))`` with ``D`` the cosine distance of ``z_s`` to the whole coalition. As
    every token is to be scored, no features are selected beforehand.

    Raises:
        InputError: if the tokenizer has no mask token.
    """
    return _each(problem, "lime", _fit_lime)


@method(
    "kernel-shap",
    "Kernel SHAP",
    signed=True,
    about=f"Shapley values of the tokens for the logit, where an absent token is masked, estimated by a regression "
    f"over {CALLS} coalitions drawn by the Shapley kernel; exact where there are no more coalitions than that "
    "(Lundberg and Lee, NeurIPS 2017, theorem 2).",
    needs=("captum",),
)
def kernel_shap(problem: Problem) -> list[Tensor]:
    """The ``b`` that minimises ``sum_s w_s (f(s) - a - b . z_s)^2``, ``w_s`` the Shapley kernel.

    The scores sum to the logit less that of the text with every token masked. Up to 6 tokens, every coalition is
    evaluated once with its weight; beyond, coalitions are drawn from the kernel, and weigh the same.

    Raises:
        InputError: if the tokenizer has no mask token.
    """
    return _each(problem, "kernel-shap", _fit_shapley)


def _each(problem: Problem, purpose: str, fit: Fit) -> list[Tensor]:
    mask = getattr(problem.tokenizer, "mask_token_id", None)
    if mask is None:
        raise InputError(
            f"{purpose} replaces tokens by the mask token, and this tokenizer has none: use a tokenizer with a "
            "mask_token, or another method"
        )
    device = only_device(problem.model)
    scores = []
    # Captum draws from torch's global state, which is given back as it was.
    with torch.random.fork_rng(devices=[]), evaluation_mode(problem.model, grad=False) as forward:
        for index, (encoded, target) in enumerate(zip(problem.inputs, problem.classes, strict=True)):
            inputs = on_device(encoded, device)
            free = torch.tensor(encoded.special, device=device).logical_not()
            ids = inputs["input_ids"][:, free]
            logit = class_logit(_replacing(forward, inputs, free), target)
            at_once = max(1, TOKENS_PER_FORWARD // len(encoded))
            generator = problem.generator(index, purpose)
            coefficients = fit(logit, ids, torch.full_like(ids, mask), at_once, generator)
            scores.append(_spread(encoded, coefficients))
    return scores


def _replacing(forward: Forward, inputs: dict[str, Tensor], free: Tensor) -> Forward:
    """The logits ``[b, c]`` of the text with other ids ``[b, m]`` where ``free`` ``[i]`` allows."""

    def replaced(ids: Tensor) -> Tensor:
        batch = repeated(inputs, len(ids))
        batch["input_ids"] = batch["input_ids"].masked_scatter(free, ids)
        return forward(**batch)

    return replaced


def _spread(encoded: Encoded, coefficients: Tensor) -> Tensor:
    """The scores of all tokens ``[i]`` from those of the tokens that can be masked ``[m]``; 0 for special ones."""
    scores = torch.zeros(len(encoded), dtype=torch.float64)
    scores[~torch.tensor(encoded.special)] = coefficients.double().cpu()
    return scores


def _fit_lime(logit: Forward, ids: Tensor, masked: Tensor, at_once: int, generator: torch.Generator) -> Tensor:
    coalitions = lime_coalitions(ids.shape[1], CALLS, generator)
    weights = lime_weights(coalitions)
    return _fit(logit, ids, masked, at_once, coalitions, weights, RIDGE_PENALTY)


def _fit_shapley(logit: Forward, ids: Tensor, masked: Tensor, at_once: int, generator: torch.Generator) -> Tensor:
    m = ids.shape[1]
    if 2**m <= CALLS:
        coalitions = torch.tensor(list(product((0, 1), repeat=m)))
        return _fit(logit, ids, masked, at_once, coalitions, shapley_weights(coalitions), 0.0)
    torch.random.set_rng_state(generator.get_state())
    estimator = import_optional("captum.attr", "kernel-shap").KernelShap(logit)
    estimator.interpretable_model, estimator.inf_weight = LeastSquares(), END_WEIGHT
    found: Tensor = estimator.attribute(ids, baselines=masked, n_samples=CALLS, perturbations_per_eval=at_once)
    return found[0]


def _fit(
    logit: Forward, ids: Tensor, masked: Tensor, at_once: int, coalitions: Tensor, weights: Tensor, penalty: float
) -> Tensor:
    """The coefficients ``[m]`` of the linear model of ``logit`` over given coalitions ``[s, m]``, weights ``[s]``."""
    drawn, weighed = iter(coalitions[:, None].to(ids.device)), iter(weights[:, None])
    estimator = import_optional("captum.attr", "lime").LimeBase(
        logit,
        LeastSquares(penalty),
        similarity_func=lambda *args, **options: next(weighed),
        perturb_func=lambda *args, **options: next(drawn),
        perturb_interpretable_space=True,
        from_interp_rep_transform=lambda kept, original, **options: torch.where(kept.bool(), original, masked),
        to_interp_rep_transform=None,
    )
    return estimator.attribute(ids, n_samples=len(coalitions), perturbations_per_eval=at_once)


def lime_coalitions(m: int, count: int, generator: torch.Generator) -> Tensor:
    """The text itself, then coalitions that lack ``1..m`` of its ``m`` tokens: ``[count, m]`` of 0 and 1."""
    lacking = torch.randint(1, m + 1, (count - 1, 1), generator=generator)
    rank = torch.rand(count - 1, m, generator=generator, dtype=torch.float64).argsort(-1).argsort(-1)
    return torch.cat([torch.ones(1, m, dtype=torch.long), (rank >= lacking).long()])


def lime_weights(coalitions: Tensor) -> Tensor:
    """``exp(-D^2 / (2 width^2))``, ``[s]``; ``D = 1 - (kept / m)^(1/2)`` is the cosine distance to all ones."""
    distance = 1 - coalitions.double().mean(-1).sqrt()
    return torch.exp(-(distance**2) / (2 * KERNEL_WIDTH**2))


def shapley_weights(coalitions: Tensor) -> Tensor:
    """The Shapley kernel ``(m - 1) / (C(m, k) k (m - k))`` of coalitions of ``k`` tokens, ``[s]``."""
    m = coalitions.shape[1]
    kernel = [END_WEIGHT if k in (0, m) else (m - 1) / (comb(m, k) * k * (m - k)) for k in range(m + 1)]
    return torch.tensor(kernel, dtype=torch.float64)[coalitions.sum(-1)]


class LeastSquares:
    """``argmin sum_s w_s (y_s - a - b . z_s)^2 + penalty |b|^2`` in float64, as captum wants its linear models.

    Where that has many solutions (more tokens than coalitions, and no penalty), it is the shortest.
    """

    def __init__(self, penalty: float = 0.0) -> None:
        self.penalty = penalty
        self.coefficients = torch.empty(0)

    def fit(self, data: Any) -> None:
        """Fit to the single batch of ``data``: coalitions ``[s, m]``, logits ``[s]``, weights ``[s]``."""
        (batch,) = data
        z, y, weights = (tensor.double().cpu() for tensor in batch)
        root = weights.reshape(-1, 1).sqrt()
        rows = torch.cat([root, root * z], dim=1)
        penalty = self.penalty**0.5 * torch.eye(z.shape[1] + 1, dtype=torch.float64)[1:]  # the intercept is free
        values = torch.cat([root * y.reshape(-1, 1), torch.zeros(len(penalty), 1, dtype=torch.float64)])
        solution = torch.linalg.lstsq(torch.cat([rows, penalty]), values, driver="gelsd").solution
        self.coefficients = solution[1:, 0]

    def representation(self) -> Tensor:
        """The coefficients ``b``, ``[m]``."""
        return self.coefficients
