"""A model's layers as data: which weights play which part. What a family's file has to say, and nothing about inputs.

Weights are views on the user's parameters, in row-vector form ``y = x W + b``. :func:`affine` reads any module that
computes such a map; everything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModelError
from .parts import NotAffine, probe, stand_in

QUANTIZED_WORDS = (
    "quant",
    "8bit",
    "4bit",
    "int8",
    "int4",
    "gptq",
    "awq",
    "fp8",
    "marlin",
    "eetq",
    "hqq",
    "bitlinear",
)


@dataclass(frozen=True)
class Affine:
    """``y = x W + b``: ``weight`` is ``[d_in, d_out]``, ``bias`` ``[d_out]`` or ``None``.

    ``module`` is what the map was read from, if anything: whoever runs the model can listen there for its output.
    """

    weight: Tensor
    bias: Tensor | None
    module: nn.Module | None = field(default=None, repr=False, compare=False)

    def to(self, dtype: torch.dtype) -> Affine:
        """The same map in another dtype; the very same tensors where the dtype is already right."""
        return Affine(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype), self.module)

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight if self.bias is None else x @ self.weight + self.bias


@dataclass(frozen=True)
class NormSpec:
    """A LayerNorm (``centre``) or RMSNorm: ``weight`` and ``bias`` are ``[d]`` or ``None``."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centre: bool = True


@dataclass(frozen=True)
class AttentionSpec:
    """Self-attention: projections, the numbers of heads, and what restricts it."""

    query: Affine
    key: Affine
    value: Affine
    out: Affine
    heads: int
    kv_heads: int
    scale: float
    causal: bool = False
    window: int | None = None


@dataclass(frozen=True)
class FeedForwardSpec:
    """A feed-forward network; gated where ``gate`` is given."""

    into: Affine
    out: Affine
    activation: str
    gate: Affine | None = None


@dataclass(frozen=True)
class SublayerSpec:
    """``x <- post_norm(x + out_norm(sum_op op(pre_norm(x))))``."""

    ops: tuple[AttentionSpec | FeedForwardSpec, ...]
    pre_norm: NormSpec | None = None
    out_norm: NormSpec | None = None
    post_norm: NormSpec | None = None


LayerSpec = tuple[SublayerSpec, ...]


@dataclass(frozen=True)
class HeadStepSpec:
    """One linear map of a classification head and the activation after it, if any."""

    map: Affine
    activation: str | None = None


@dataclass(frozen=True)
class InputLimits:
    """What inputs a model has embeddings for.

    Attributes:
        positions: how many tokens it takes.
        sizes: of each input, the first number that is too large: ``{"input_ids": 30522, "token_type_ids": 2}``.
    """

    positions: int | None
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class ModelSpec:
    """A whole classifier as data.

    Attributes:
        layer_modules: the modules whose inputs and outputs are the hidden states, in order.
        layers: what each of them computes.
        head: the steps from the hidden state at ``head_position`` to the logits.
        head_position: the position the head reads.
        limits: what inputs the model has embeddings for.
    """

    layer_modules: tuple[nn.Module, ...]
    layers: tuple[LayerSpec, ...]
    head: tuple[HeadStepSpec, ...]
    head_position: int
    limits: InputLimits


def norm_module(module: nn.Module, name: str) -> nn.LayerNorm:
    """A LayerNorm, or that one in a wrapper round it which computes what the wrapper does.

    Raises:
        UnsupportedModelError: if there is none.
    """
    if isinstance(module, nn.LayerNorm) and type(module).forward is nn.LayerNorm.forward:
        return module
    found = stand_in(module, nn.LayerNorm)
    if found is None:
        raise _unsupported(name, module, "a LayerNorm")
    return found


def layer_norm(module: nn.Module, name: str) -> NormSpec:
    """The parameters of a LayerNorm module, perhaps wrapped.

    Raises:
        UnsupportedModelError: if it is something else.
    """
    norm = norm_module(module, name)
    return NormSpec(_vector(norm.weight), _vector(norm.bias), norm.eps)


def embedding_module(module: nn.Module, name: str) -> nn.Embedding:
    """An embedding, or the first in a wrapper round it: adapters keep its size.

    Raises:
        UnsupportedModelError: if there is none.
    """
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            return part
    raise _unsupported(name, module, "an embedding")


def affine(module: nn.Module, name: str, features: int) -> Affine:
    """The map ``x W + b`` that a module computes on ``features`` inputs.

    A plain ``nn.Linear`` gives views on its parameters, and so does one in a wrapper that computes what it does. Any
    other module (a linear layer with a low-rank adapter, say) is evaluated on the unit vectors, once for as long as
    its answers stay the same, and accepted if it then proves to be affine.

    Args:
        module: in eval mode.
        name: its path in the model, for messages.
        features: how many inputs it takes.

    Raises:
        UnsupportedModelError: if its weights are quantised, or if it is not affine.
    """
    _refuse_quantized(module, name)
    plain = isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward
    linear = module if plain else stand_in(module, nn.Linear, features)
    if not isinstance(linear, nn.Linear):
        return _probe(module, name, features)
    weight = linear.weight
    if type(weight) not in (Tensor, nn.Parameter):
        raise UnsupportedModelError(
            f"the linear layer {name!r} stores its weight as a {type(weight).__name__}, not as a plain "
            "tensor: load the model in float32, float16 or bfloat16, whole on one device"
        )
    return Affine(weight.detach().t(), _vector(linear.bias), module)


def _vector(tensor: Tensor | None) -> Tensor | None:
    """Without autograd, and without the gaps that a row of a larger tensor may have."""
    return None if tensor is None else tensor.detach().contiguous()


def _refuse_quantized(module: nn.Module, name: str) -> None:
    tensors = [*module.parameters(), *module.buffers()]
    by_type = any(
        word in f"{type(m).__module__}.{type(m).__name__}".lower() for m in module.modules() for word in QUANTIZED_WORDS
    )
    by_dtype = any(t.dtype in _PACKED or (t.is_floating_point() and t.element_size() < 2) for t in tensors)
    if by_type or by_dtype:
        dtypes = ", ".join(sorted({str(t.dtype) for t in tensors})) or "no plain tensors"
        raise UnsupportedModelError(
            f"the linear layer {name!r} is quantised ({type(module).__name__}, {dtypes}): its exact weights cannot be "
            "read, so load the model in float32, float16 or bfloat16"
        )


_PACKED = (torch.int8, torch.uint8, torch.int16, torch.int32)


def _probe(module: nn.Module, name: str, features: int) -> Affine:
    try:
        weight, bias = probe(module, features)
    except NotAffine as error:
        raise _unsupported(name, module, str(error)) from error
    except Exception as error:
        raise _unsupported(name, module, "a linear layer") from error
    return Affine(weight, bias, module)


def _unsupported(name: str, module: nn.Module, wanted: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the module {name!r} is a {type(module).__name__}, where {wanted} was expected: this model cannot be "
        "explained exactly, so it is refused"
    )
