"""What models of sounds share: how long a sound is in frames, and weights of layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..spec import SoundLimits
from .parts import Module


def weights_of_layers(model: Module, before: int = 0) -> Callable[[], Tensor] | None:
    """Gives what the states before the first layer and after each are weighted by, ``[layers + 1]``, where a classifier
    reads all of them; zeros for as many states ``before`` those."""
    if not model.config.use_weighted_layer_sum:
        return None
    return partial(softmax_weights, model.layer_weights, before=before)


def softmax_weights(weights: Tensor, *, before: int) -> Tensor:
    """Their softmax, after so many zeros."""
    shares = weights.detach().softmax(-1)
    return torch.cat((shares.new_zeros(before), shares))


def fixed_grid(_length: int, *, grid: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns where a sound always has the same length."""
    return grid


def frames_grid(length: int, *, kernels: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """One row, and a column for each frame that convolutions in a row make of so many samples."""
    for kernel, stride in zip(kernels, strides, strict=True):
        length = (length - kernel) // stride + 1 if length >= kernel else 0
    return 1, length


def waveform(config: Module) -> SoundLimits:
    """What a model takes whose frames are made of samples."""
    kernels, strides = tuple(config.conv_kernel), tuple(config.conv_stride)
    grid = partial(frames_grid, kernels=kernels, strides=strides)
    return SoundLimits("input_values", ("time",), (None,), (), (1, math.prod(strides)), grid)
