"""Scores from linearised models: batches of equally long inputs, what attention mixes, rollout. Shared by methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ..errors import InputError, UnsupportedModelError
from ..linearize.architectures import unwrap
from ..linearize.layer import Attention, Linearization, LinearizedLayer, StateMap
from ..linearize.linearization import linearize, only_device
from ..linearize.model_run import plain_mode
from ..linearize.spec import AttentionSpec, ConvolutionSpec, LayerSpec, RoutedSpec
from ..request.encoded import Encoded
from .method import Problem

#: Pairs of positions that one batch holds at most (if it holds several inputs): a decomposed state of this size still
#: fits the caches of a CPU, and larger batches gain nothing there.
PAIRS = 2**13


def score_batches(problem: Problem, score: Callable[[Linearization, Tensor], Tensor]) -> list[Tensor]:
    """The scores of every input, computed for batches of equally long ones.

    Args:
        problem: what is to be explained.
        score: from a linearised batch and its classes ``[b]`` int64 to scores ``[b, i]``.

    Returns:
        In the order of the inputs, ``[i]`` float64 on the CPU each.

    Raises:
        InputError: for a class that the model does not have.
        UnsupportedModelError: if the model cannot be linearised.
    """
    device = only_device(unwrap(problem.model))
    scores: list[Tensor] = [torch.empty(0)] * len(problem.inputs)
    with plain_mode(device):
        for members in _batches(problem.inputs):
            names = problem.inputs[members[0]].inputs
            inputs = {name: torch.stack([problem.inputs[n].inputs[name] for n in members]).to(device) for name in names}
            linearization = linearize(problem.model, inputs)
            classes = [problem.classes[n] for n in members]
            _check_classes(classes, linearization.logits.shape[1])
            found = score(linearization, torch.tensor(classes, device=device))
            for n, row in zip(members, found.double().cpu(), strict=True):
                scores[n] = row.clone()  # not a view that keeps the whole batch alive
    return scores


def by_layer(linearization: Linearization, measure: Callable[[LinearizedLayer], Tensor]) -> tuple[list[Tensor], int]:
    """What ``measure`` gives for each layer, first to last, and the position that the head reads."""
    found = []
    for layer in linearization.layers():
        found.append(measure(layer))
        output = layer.output
    return found, linearization.head(output).position


def attention_of(layer: LinearizedLayer) -> tuple[Attention, Tensor]:
    """The attention of a layer and the state that it reads, ``[b, j, d]``.

    Raises:
        UnsupportedModelError: if there is none, or several, or one with hubs.
    """
    found: list[tuple[Attention, Tensor]] = []
    for sublayer in layer.sublayers:
        for op in sublayer.ops:
            if isinstance(op, Attention) and sublayer.input is not None:
                norm, x = sublayer.pre_norm, sublayer.input
                if norm is not None:
                    x = norm.linear(x) if norm.bias is None else norm.linear(x) + norm.bias
                found.append((op, x))
    if len(found) != 1:
        raise UnsupportedModelError(f"layer {layer.index} has {len(found)} attentions, where one was expected")
    if found[0][0].hubs is not None:
        raise hubs_refusal("this method")
    if any(isinstance(sublayer.ops[0], StateMap) for sublayer in layer.sublayers):
        raise bottleneck_refusal("this method")
    return found[0]


def refuse_convolutions(layer: LayerSpec, method: str) -> None:
    """Refuse a convolution, which reads the embedding and not the state, and the parts of some decoders.

    Raises:
        UnsupportedModelError: if the layer has one; names the method that does not know it.
    """
    if any(op.kind in ("narrow", "widen") for sublayer in layer for op in sublayer.ops):
        raise bottleneck_refusal(method)
    for op in (op for sublayer in layer for op in sublayer.ops):
        if isinstance(op, ConvolutionSpec):
            found = "a convolution of its embedding"
        elif isinstance(op, RoutedSpec):
            found = "networks that positions choose among"
        elif isinstance(op, AttentionSpec) and (op.softcap is not None or op.sink is not None):
            found = "an attention with capped logits or a sink"
        else:
            continue
        raise UnsupportedModelError(f"this model has {found}, which {method} does not know: use decompx for this model")


def hubs_refusal(method: str) -> UnsupportedModelError:
    """An error that says that a method does not know attention with hubs (:mod:`..linearize.hubs`)."""
    return UnsupportedModelError(
        f"this model has an attention with global tokens or in blocks, which {method} does not know: use decompx for "
        "this model"
    )


def bottleneck_refusal(method: str) -> UnsupportedModelError:
    """An error that says that a method does not know a narrower state (:mod:`..linearize.narrow`)."""
    return UnsupportedModelError(
        f"this model's layers work on a narrower state between two maps, which {method} does not know: use decompx for "
        "this model"
    )


def head_values(attention: Attention, x: Tensor) -> Tensor:
    """The vectors that each head mixes, ``x W_V^h + b_V^h``, ``[b, h, j, v]``; ``x`` is what the attention reads."""
    values = x @ attention.w_value
    values = values if attention.b_value is None else values + attention.b_value
    return attention.expand_heads(values.unflatten(-1, (attention.kv_heads, -1))).transpose(1, 2)


def rollout(matrices: Sequence[Tensor], position: int) -> Tensor:
    """The row of one position in ``matrices[-1] @ ... @ matrices[0]``.

    Args:
        matrices: of each layer, first to last, ``[b, i, k]``: how much position ``i`` after the layer owes to
            position ``k`` before it.
        position: the row.

    Returns:
        ``[b, k]`` float64: how much the position owes to each token of the input. Where the rows of every matrix sum
        to 1, so does it.

    Source: Abnar and Zuidema, ACL 2020, section 3 (attention rollout).
    """
    row = matrices[-1][:, position, None].double()  # [b, 1, k]
    for matrix in reversed(matrices[:-1]):
        row = row @ matrix.double()
    return row[:, 0]


def with_residual(matrix: Tensor) -> Tensor:
    """``0.5 M + 0.5 I``: half of a state is taken to come through the residual connection.

    Source: Abnar and Zuidema, ACL 2020, section 3.
    """
    return 0.5 * matrix + 0.5 * torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def normalize_rows(matrix: Tensor) -> Tensor:
    """Each row ``[..., i, k]`` divided by its sum; a row of zeros stays one."""
    total = matrix.sum(-1, keepdim=True)
    return matrix / torch.where(total == 0, torch.ones_like(total), total)


def _batches(inputs: Sequence[Encoded]) -> Iterator[list[int]]:
    """Indices of inputs that can be stacked: as long, with the same parts; at most :data:`PAIRS` pairs."""
    alike: dict[tuple, list[int]] = {}
    for n, one in enumerate(inputs):
        alike.setdefault((len(one), tuple(one.inputs)), []).append(n)
    for (length, _), members in alike.items():
        size = max(1, PAIRS // length**2)
        for start in range(0, len(members), size):
            yield members[start : start + size]


def _check_classes(classes: Sequence[int], count: int) -> None:
    for number in classes:
        if not 0 <= number < count:
            raise InputError(f"classes holds {number}, but the model has {count} classes: use 0 to {count - 1}")
