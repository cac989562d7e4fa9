"""Which part of a wrapped module does its work, and which map a module computes that is none that is known.

Adapters wrap linear layers, norms and embeddings, and choose among their parts when they run. No names of theirs are
known here: what a wrapper computes decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .private_copy import original, private_copy

_ModuleT = TypeVar("_ModuleT", bound=nn.Module)

#: Sizes of the rows that modules are compared on: a norm's ``eps`` shows in small ones.
SIZES = (1e-4, 1e-2, 1.0, 1e2)


class NotAffine(Exception):
    """What a module computes is no affine map; says by how much it differs from one."""


@dataclass(frozen=True)
class _Probed:
    """A map ``x W + b``, and what the module answered on :func:`_questions` when it was read."""

    weight: Tensor
    bias: Tensor
    answers: Tensor


#: By module of the user's. It takes as many runs as the module has inputs to read a map, and one of four rows to see
#: that it is still the same: whatever changed it (a step of training, another adapter, a hook) changes the answers.
_probed: WeakKeyDictionary[nn.Module, _Probed] = WeakKeyDictionary()


def stand_in(module: nn.Module, kind: type[_ModuleT], features: int | None = None) -> _ModuleT | None:
    """The part of a module, of one kind, that gives the very same numbers as the whole; ``None`` if there is none.

    Args:
        module: a private copy, in eval mode.
        kind: ``nn.Linear`` or ``nn.LayerNorm``; only with the ``forward`` of that class.
        features: how many inputs the module takes; ``None`` for as many as the part has.
    """
    for part in module.modules():
        if not isinstance(part, kind) or type(part).forward is not kind.forward:
            continue
        x = _questions(module, _inputs(part) if features is None else features)
        try:
            if x is not None and _inputs(part) == x.shape[-1] and _equal(module(x), part(x)):
                return part
        except Exception:  # whatever it expects, it is no module of this kind
            return None
    return None


def _inputs(part: nn.Module) -> int:
    return part.in_features if isinstance(part, nn.Linear) else int(getattr(part, "normalized_shape", (0,))[-1])


def stored_map(module: nn.Module, features: int) -> tuple[Tensor, Tensor | None] | None:
    """``W`` ``[d_in, d_out]`` and ``b`` of a linear layer of a project's own class: views on its parameters.

    Whatever its class: a part of the module that holds a ``weight`` and perhaps a ``bias``, where multiplying by them
    gives the very same numbers as the whole; ``None`` if there is none.

    Args:
        module: a private copy, in eval mode.
        features: how many inputs it takes.
    """
    x = _questions(module, features)
    for part in () if x is None else module.modules():
        weight, bias = part._parameters.get("weight"), part._parameters.get("bias")
        if x is None or type(weight) is not nn.Parameter or weight.ndim != 2:
            continue
        for matrix in (weight, weight.T):
            if matrix.shape[0] == features and (bias is None or bias.shape == matrix.shape[1:]):
                ways = [x @ matrix] if bias is None else [torch.addmm(bias, x, matrix), x @ matrix + bias]
                try:
                    if any(_equal(module(x), way) for way in ways):
                        return matrix.detach(), None if bias is None else bias.detach()
                except Exception:  # whatever it expects, it is no linear layer
                    return None
    return None


def probe(module: nn.Module, features: int) -> tuple[Tensor, Tensor]:
    """``W`` ``[d_in, d_out]`` and ``b`` ``[d_out]`` of a module that computes ``x W + b``, by running it.

    Read once, and again when the module's answers change.

    Args:
        module: a private copy, in eval mode.
        features: how many inputs it takes.

    Raises:
        NotAffine: if it computes anything else.
        Exception: what the module raises.
    """
    x = _questions(module, features)
    if x is None:
        raise NotAffine("a linear layer")
    answers = module(x)
    if not isinstance(answers, Tensor):
        raise NotAffine("a linear layer")
    owner = original(module)
    known = _probed.get(owner)
    if known is None or not _equal(known.answers, answers) or known.weight.shape[0] != features:
        known = _Probed(*_read(module, features), answers)
        _probed[owner] = known
    return known.weight, known.bias


def _read(module: nn.Module, features: int) -> tuple[Tensor, Tensor]:
    module = _widened(module)
    x = _questions(module, features)
    assert x is not None
    x = x / x.norm(dim=-1, keepdim=True) * features**0.5
    unit = torch.eye(features, dtype=x.dtype, device=x.device)
    bias = module(torch.zeros_like(unit[:1]))
    weight = module(unit) - bias
    expected = module(x)
    gap = ((x @ weight + bias - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()
    if not gap < 64 * features**0.5 * torch.finfo(unit.dtype).eps:
        raise NotAffine(f"a linear layer (it differs from one by {gap:.1e} of its size)")
    return weight, bias[0]


def _widened(module: nn.Module) -> nn.Module:
    """In float32 if it is in half precision, in which the difference of two outputs tells little of a weight."""
    reference = next(module.parameters(), None)
    if reference is None or reference.dtype.itemsize >= 4:
        return module
    wide = private_copy(module)
    for part in wide.modules():
        for name, parameter in part._parameters.items():
            part._parameters[name] = None if parameter is None else nn.Parameter(parameter.float(), requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                part._buffers[name] = buffer.float()
    return wide


def _questions(module: nn.Module, features: int) -> Tensor | None:
    """Four rows ``[4, d_in]``, always the same, on the module's device; ``None`` if it has no parameters."""
    reference = next(module.parameters(), None)
    if reference is None:
        return None
    generator = torch.Generator("cpu").manual_seed(0)
    x = (
        torch.randn(len(SIZES), features, generator=generator, device="cpu")
        * torch.tensor(SIZES, device="cpu")[:, None]
    )
    return x.to(reference.device, reference.dtype)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
