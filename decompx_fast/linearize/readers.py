"""From modules to data: linear maps, norms, embeddings and convolutions as their parameters say.

Each function reads one kind of module, and refuses by name whatever computes anything else.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModelError
from .affine import Affine
from .probing import NotAffine, probe, stand_in, stored_map
from .spec import ConvolutionSpec, NormSpec

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


def norm_or_diagonal(module: nn.Module, name: str) -> NormSpec:
    """The parameters of a LayerNorm, or of what MobileBERT has in its place, ``x * weight + bias``.

    Raises:
        UnsupportedModelError: if it is something else.
    """
    own: Any = module
    if type(own).__name__ != "NoNorm":
        return layer_norm(own, name)
    return NormSpec(_vector(own.weight), _vector(own.bias), 0.0, centre=False, fixed=True)


def own_layer_norm(module: nn.Module, name: str) -> NormSpec:
    """The parameters of a LayerNorm of a project's own class, ``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias``;
    perhaps without the bias.

    Raises:
        UnsupportedModelError: if it computes anything else.
    """
    return _norm_by_formula(module, name, "a LayerNorm", centre=True)


def plain_norm(module: nn.Module, name: str, width: int, eps: float) -> NormSpec:
    """A LayerNorm without parameters, ``(x - mean(x)) / sqrt(var(x) + eps)``.

    Raises:
        UnsupportedModelError: if it computes anything else.
    """
    x = torch.randn(2, 1, width, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
    expected = torch.nn.functional.layer_norm(x, (width,), eps=eps)
    if next(module.parameters(), None) is not None:
        raise _unsupported(name, module, "a LayerNorm without parameters")
    _compare_norms(module(x), expected, name, module, "a LayerNorm without parameters")
    return NormSpec(None, None, eps)


def embedding_module(module: nn.Module, name: str) -> nn.Embedding:
    """An embedding, or the first in a wrapper round it: adapters keep its size.

    Raises:
        UnsupportedModelError: if there is none.
    """
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            return part
    raise _unsupported(name, module, "an embedding")


#: How far a norm of a project's own may be from its formula, relative to its largest value: most compute in float32.
OWN_NORM_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5}


def rms_norm(module: nn.Module, name: str, *, one_plus: bool = False) -> NormSpec:
    """The parameters of an RMSNorm, ``x / sqrt(mean_d(x^2) + eps) * weight``; each project has a class of its own.

    Args:
        module, name: as for :func:`affine`.
        one_plus: whether the module keeps ``weight - 1``.

    Raises:
        UnsupportedModelError: if it computes anything else.
    """
    return _norm_by_formula(module, name, "an RMSNorm", centre=False, one_plus=one_plus)


def _norm_by_formula(module: nn.Module, name: str, kind: str, *, centre: bool, one_plus: bool = False) -> NormSpec:
    """The parameters of a norm of whatever class, if it computes what they say."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    biased = isinstance(bias, Tensor)
    if not isinstance(weight, Tensor) or not isinstance(eps, float) or (biased and not centre):
        raise _unsupported(name, module, kind)
    dtype = weight.dtype
    x = torch.randn(2, 1, *weight.shape, generator=torch.Generator("cpu").manual_seed(0), device="cpu").to(weight)
    if one_plus:  # d numbers; in float32 at least, as the models add them, since half precisions would round the sum
        weight = 1 + weight.to(torch.promote_types(dtype, torch.float32))
    centred = x - x.mean(-1, keepdim=True) if centre else x
    expected = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight
    expected = expected + bias if isinstance(bias, Tensor) else expected
    _compare_norms(module(x), expected, name, module, kind)
    return NormSpec(_vector(weight), _vector(bias) if biased else None, eps, centre)


def _compare_norms(found: Tensor, expected: Tensor, name: str, module: nn.Module, kind: str) -> None:
    gap = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
    if not gap <= OWN_NORM_TOLERANCE.get(found.dtype, 2e-2):
        raise _unsupported(name, module, f"{kind} (it differs from one by {gap:.1e} of its size)")


def affine(module: nn.Module, name: str, features: int) -> Affine:
    """The map ``x W + b`` that a module computes on ``features`` inputs.

    A plain ``nn.Linear`` gives views on its parameters, and so do one in a wrapper that computes what it does and a
    class of a project's own that multiplies by its ``weight`` (GPT-2's ``Conv1D``). Any other module (a linear layer
    with a low-rank adapter, say) is evaluated on the unit vectors, once for as long as its answers stay the same, and
    accepted if it then proves to be affine.

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
        stored = stored_map(module, features)
        return _probe(module, name, features) if stored is None else Affine(*stored, module)
    weight = linear.weight
    if type(weight) not in (Tensor, nn.Parameter):
        raise UnsupportedModelError(
            f"the linear layer {name!r} stores its weight as a {type(weight).__name__}, not as a plain "
            "tensor: load the model in float32, float16 or bfloat16, whole on one device"
        )
    return Affine(weight.detach().t(), _vector(linear.bias), module)


def stored(module: nn.Module, parameter: str, name: str) -> Tensor:
    """A parameter of a module that is no linear layer of torch, such as the weights of all experts.

    Raises:
        UnsupportedModelError: if it is quantised, or no plain tensor.
    """
    _refuse_quantized(module, name)
    return _plain(getattr(module, parameter), f"{name}.{parameter}")


def packed_attention(module: nn.Module, name: str) -> tuple[Affine, Affine, Affine, Affine]:
    """The maps of queries, keys, values and output of torch's own attention, views on its parameters.

    Raises:
        UnsupportedModelError: if it is another module, or has more than these, or they are no plain tensors.
    """
    own = type(module) is nn.MultiheadAttention and module._qkv_same_embed_dim
    if not own or module.bias_k is not None or module.add_zero_attn:
        raise _unsupported(name, module, "torch's MultiheadAttention, with biases of its maps alone,")
    maps = []
    for weight, bias in (("in_proj_weight", "in_proj_bias"), ("out_proj.weight", "out_proj.bias")):
        found = attrgetter(bias)(module)
        added = None if found is None else _plain(found, f"{name}.{bias}")
        maps.append(Affine(_plain(attrgetter(weight)(module), f"{name}.{weight}").t(), added))
    packed, out = maps
    return packed.part(0, 3), packed.part(1, 3), packed.part(2, 3), out


def _plain(found: Any, name: str) -> Tensor:
    if type(found) not in (Tensor, nn.Parameter) or not found.is_floating_point():
        raise UnsupportedModelError(
            f"{name} is a {type(found).__name__}, not a plain tensor of floating-point numbers: load the model in "
            "float32, float16 or bfloat16, whole on one device"
        )
    return found.detach()


def convolution(module: nn.Module, name: str, activation: str, *, even: bool = False) -> ConvolutionSpec:
    """The parameters of a convolution that keeps the number of positions.

    Args:
        module, name: as for :func:`affine`.
        activation: what follows it, by name.
        even: whether its width may be even, where the model leaves out the position that it gives beyond the others.

    Raises:
        UnsupportedModelError: if it is something else.
    """
    _refuse_quantized(module, name)
    if not isinstance(module, nn.Conv1d) or type(module).forward is not nn.Conv1d.forward:
        raise _unsupported(name, module, "a one-dimensional convolution")
    taps = module.kernel_size[0]
    plain = (module.stride, module.dilation, module.padding_mode) == ((1,), (1,), "zeros")
    if not plain or (taps % 2 == 0 and not even) or module.padding != (taps // 2,):
        width = "some" if even else "an odd"
        raise _unsupported(name, module, f"a convolution of {width} width that pads its ends with zeros")
    return ConvolutionSpec(module.weight.detach(), _vector(module.bias), module.groups, activation)


def _vector(tensor: Tensor | None) -> Tensor | None:
    """Without autograd, and without the gaps that a row of a larger tensor may have."""
    return None if tensor is None else tensor.detach().contiguous()


def _refuse_quantized(module: nn.Module, name: str) -> None:
    if type(module) is nn.Linear and type(module.weight) is nn.Parameter and module.weight.dtype in _EXACT:
        return  # nearly every map there is, and this is looked at in every call
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


_EXACT = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

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
