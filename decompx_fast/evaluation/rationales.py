"""Prediction performance: how well a small classifier learns the task from rationales alone.

A logistic regression on pooled states of a frozen encoder: cheap enough to be trained anew for each method and fold,
and convex, so that its result depends on nothing but the data.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError

FOLDS = 5

#: Weight of half the squared norm of the weights beside the mean loss, on standardised features.
PENALTY = 0.01

STEPS = 100

LEAST_TEXTS = 2 * FOLDS


def out_of_fold_correct(
    states: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    seed: int,
    groups: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Whether each text's label is predicted from its state, by a classifier trained on the other folds.

    Args:
        states: ``[n, d]``.
        labels: ``[n]``.
        seed: of the split into :data:`FOLDS` parts of like size.
        groups: ``[n]``, the same number for equal texts, which are in one fold: else the classifier would have seen
            the texts that it is asked about. ``None``: all are different.

    Returns:
        ``[n]``: 1 or 0.

    Raises:
        InputError: for too few different texts to be split.
    """
    n = len(labels)
    fold = torch.from_numpy(folds_of(np.arange(n) if groups is None else groups, seed=seed))
    features, targets = torch.tensor(states).double(), torch.tensor(labels)
    correct = torch.zeros(n, dtype=torch.float64)
    for held_out in range(FOLDS):
        train, test = fold != held_out, fold == held_out
        mean, deviation = features[train].mean(0), features[train].std(0).clamp_min(1e-6)
        weight, bias = fit((features[train] - mean) / deviation, targets[train], int(targets.max()) + 1)
        predicted = ((features[test] - mean) / deviation @ weight + bias).argmax(1)
        correct[test] = (predicted == targets[test]).double()
    return correct.numpy()


def folds_of(groups: NDArray[np.int64], *, seed: int) -> NDArray[np.int64]:
    """The fold of each text: groups in random order, each into the fold that has the fewest texts until then.

    Args:
        groups: ``[n]``, the same number for texts that shall be in one fold.
        seed: of the order.

    Returns:
        ``[n]``, from 0 to ``FOLDS - 1``.

    Raises:
        InputError: for fewer than :data:`LEAST_TEXTS` groups.
    """
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(sizes) < LEAST_TEXTS:
        raise InputError(
            f"prediction-performance needs at least {LEAST_TEXTS} texts that differ to train on, and there are "
            f"{len(sizes)}"
        )
    rank = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed)).numpy()
    fold_of, filled = np.zeros(len(sizes), dtype=np.int64), np.zeros(FOLDS, dtype=np.int64)
    for one in np.argsort(rank):
        fold_of[one] = filled.argmin()
        filled[fold_of[one]] += sizes[one]
    return fold_of[group]


def fit(features: Tensor, targets: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Logistic regression: the minimum of the mean cross entropy plus ``PENALTY / 2 * |weight|^2``.

    Args:
        features: ``[n, d]`` float64.
        targets: ``[n]`` int64.
        n_classes: how many classes there are.

    Returns:
        ``(weight [d, c], bias [c])``.
    """
    with torch.enable_grad():
        weight = torch.zeros(features.shape[1], n_classes, dtype=torch.float64, requires_grad=True)
        bias = torch.zeros(n_classes, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=STEPS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = F.cross_entropy(features @ weight + bias, targets) + PENALTY / 2 * weight.square().sum()
            value.backward()
            return value

        optimizer.step(loss)
    return weight.detach(), bias.detach()
