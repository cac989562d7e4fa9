"""What was read from a model, as long as nothing that it was read from has changed.

To describe a model takes as long as a few operations of it, and each call needs the description twice. It may be kept
only with a copy of the modules (:mod:`.copies`), which sees every attribute, part and hook that is set, added or
removed. What that does not see is looked at here: the memory and the version of each tensor, and what is inside the
objects that hang on modules, such as configurations, which say which attention is run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from .private_copy import ATOMS, is_empty

ReadT = TypeVar("ReadT")

#: A graph of more objects than this is no configuration, and is not looked at.
MOST_OBJECTS = 256

#: What has nothing inside that could change without being another object.
_OPAQUE = (type, nn.Module, Tensor, ModuleType, FunctionType, MethodType, torch.dtype, torch.device)


class Remembered(Generic[ReadT]):
    """What a function read from modules.

    Args:
        modules: all that it may have looked at.
        read: what it gave. All of its tensors are views on what the modules hold, or :attr:`sound` is false: others
            would be out of date as soon as weights are written where no version counts it, as by ``.data``.
    """

    def __init__(self, modules: Iterable[nn.Module], read: ReadT) -> None:
        attributes = [*map(vars, modules)]
        held = chain(*(chain(a["_parameters"].values(), a["_buffers"].values(), a.values()) for a in attributes))
        self.read = read
        self._tensors = [*{id(one): one for one in held if isinstance(one, Tensor)}.values()]
        self._objects = _objects(chain.from_iterable(map(dict.values, attributes)))
        self.sound = self._objects is not None and self._holds_views()
        self._stamps = [*map(_stamp, self._tensors)] if self.sound else []

    def holds(self) -> bool:
        """Whether the function would read the same once more, of modules whose attributes are the same."""
        if not self.sound or self._objects is None or self._stamps != [*map(_stamp, self._tensors)]:
            return False
        try:
            return all(inside == before for inside, before in self._objects)
        except (RuntimeError, TypeError, ValueError):  # of what cannot be compared, as arrays: another one was set
            return False

    def _holds_views(self) -> bool:
        if any(one.is_inference() or type(one) not in (Tensor, nn.Parameter) for one in self._tensors):
            return False  # has no version, or memory of its own kind
        memory = {one.untyped_storage().data_ptr() for one in self._tensors}
        return all(one.untyped_storage().data_ptr() in memory for one in _tensors_in(self.read) if one.numel())


def _stamp(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor._version, tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad


def _objects(values: Iterable[Any]) -> list[tuple[dict[str, Any], dict[str, Any]]] | None:
    """The attributes of each object that hangs on modules, and of those inside them, with what they are now; ``None``
    for too many."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    seen: set[int] = set()
    waiting = [value for value in values if type(value) not in ATOMS]  # nearly all are
    while waiting:
        value = waiting.pop()
        if type(value) in ATOMS or isinstance(value, _OPAQUE) or id(value) in seen:
            continue
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            waiting += value
        elif isinstance(inside := getattr(value, "__dict__", None), dict):
            if len(found) == MOST_OBJECTS:
                return None
            found.append((inside, _copied(inside)))
            waiting += inside.values()
        else:
            continue
        seen.add(id(value))
    return found


def _copied(value: Any) -> Any:
    """Containers once more, of the very same objects."""
    if type(value) is dict:
        return {name: _copied(one) for name, one in value.items()}
    return [*map(_copied, value)] if type(value) is list else set(value) if type(value) is set else value


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of a description, also those that its functions enclose and its objects hold; modules aside."""
    waiting, seen = [value], {}
    while waiting:
        one = waiting.pop()
        if isinstance(one, Tensor):
            yield one
            continue
        if type(one) in ATOMS or isinstance(one, (nn.Module, type, ModuleType)) or id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting += one
        elif isinstance(one, functools.partial):
            waiting += (one.func, one.args, one.keywords)
        elif isinstance(one, MethodType):
            waiting.append(one.__self__)
        elif isinstance(one, FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or () if not is_empty(cell)]
            waiting += (one.__defaults__, one.__kwdefaults__)
        else:
            waiting += getattr(one, "__dict__", {}).values()
