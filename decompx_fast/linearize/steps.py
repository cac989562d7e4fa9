"""The steps that layers are made of, each computed from its weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..activations import get_activation
from .layer import (
    Norm,
)
from .spec import (
    Affine,
    ConvolutionSpec,
    NormSpec,
    ScaleSpec,
)


class Steps:
    """The steps that layers are made of, each computed from its weights in the dtype of ``x``."""

    def multiply(self, map_: Affine, x: Tensor) -> Tensor:
        """``x W + b``; ``[b, i, d_in]`` to ``[b, i, d_out]``."""
        return map_.to(x.dtype)(x)

    def normalize(self, spec: NormSpec | ScaleSpec, x: Tensor) -> tuple[Norm, Tensor]:
        """A norm with its statistics at ``x`` ``[b, i, d]``, and its output."""
        if isinstance(spec, ScaleSpec):
            norm = Norm(x.new_full(x.shape[:-1], 1 / spec.factor), None, None, centre=False)
            return norm, norm.linear(x)
        weight = None if spec.weight is None else spec.weight.to(x.dtype)
        bias = None if spec.bias is None else spec.bias.to(x.dtype)
        if spec.fixed:
            fixed = Norm(torch.ones_like(x[..., 0]), weight, bias, centre=False, fixed=True)
            return fixed, fixed.linear(x) if bias is None else fixed.linear(x) + bias
        second_moment = x.var(-1, unbiased=False) if spec.centre else x.square().mean(-1)
        norm = Norm(torch.sqrt(second_moment + spec.eps), weight, bias, spec.centre)
        y = norm.linear(x)
        return norm, y if bias is None else y + bias

    def convolve(self, spec: ConvolutionSpec, x: Tensor) -> Tensor:
        """A convolution with its bias, before its activation; ``[b, i, d]`` to the same."""
        bias = None if spec.bias is None else spec.bias.to(x.dtype)
        padding = spec.weight.shape[2] // 2
        weight = spec.weight.to(x.dtype)
        y = F.conv1d(x.transpose(1, 2), weight, bias, padding=padding, groups=spec.groups)
        return y[..., : x.shape[1]].transpose(1, 2).contiguous()

    def activate(self, name: str, z: Tensor) -> Tensor:
        """An activation by its name; elementwise."""
        return get_activation(name)(z)


COMPUTED = Steps()
