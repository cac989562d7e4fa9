"""A model's modules once more, sharing every tensor: to run it in eval mode and with hooks that nobody else meets.

The mode of a module, its hooks and what its hooks set on it are seen by every thread that holds it. To switch them on
the user's own model would switch off the dropout of a thread that trains it, and another thread could switch them back
under us; no lock of ours binds the user's code. So the model is not touched at all: its module objects are copied, as
``DataParallel`` copies them for each device, and the copies share parameters, buffers and whatever else hangs on them.
A copy takes no memory worth speaking of, and as much time as a few operations.

Hooks run on the copy, and what they set on it (a pruned weight, say) is the copy's. What refers to modules of the tree
is made to refer to their copies: children, bound methods, functions with such modules in their closure, containers of
these. What finds the user's modules in another way, such as a global name, still runs them in their own mode
(:func:`own_forwards` names such modules).
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.utils import parametrize

_ModuleT = TypeVar("_ModuleT", bound=nn.Module)

#: Under this name a copy knows the module that it was made of.
_ORIGINAL = "_decompx_fast_original"

#: What most attributes are, and no module is looked for in.
ATOMS = frozenset({bool, int, float, str, set, type(None), torch.Tensor, nn.Parameter, torch.dtype, torch.device})

_DICTS = frozenset({dict, OrderedDict})

#: What modules are looked for in.
_REBOUND = frozenset({*_DICTS, list, tuple, functools.partial, FunctionType})


def private_copy(model: _ModuleT) -> _ModuleT:
    """The model in eval mode and not compiled, made of new module objects that share all tensors with the user's.

    Args:
        model: is not changed. Modules of TorchScript in it cannot be copied and are shared.
    """
    pairs = [(m, object.__new__(type(m))) for m in modules_of(model) if not isinstance(m, torch.jit.ScriptModule)]
    copies: dict[int, nn.Module] = {id(module): twin for module, twin in pairs}
    rebind = _Rebind(copies)
    for module, twin in pairs:
        state = vars(twin)
        state.update(vars(module))
        # Nearly all are atoms and empty dicts, and these loops are what a copy costs: a call of ours is 120 modules.
        for name, value in state.items():
            kind = type(value)
            if kind in ATOMS:
                continue
            if kind in _DICTS:  # copied even as they are: hooks are added and removed here
                state[name] = rebind.items(value) if value else kind()
            else:
                state[name] = rebind(value, of_forward=name == "forward")
        state["training"], state["_compiled_call_impl"], state[_ORIGINAL] = False, None, module
        compiled = module._modules.get("_orig_mod")
        if compiled is not None:  # what torch.compile wraps: call it as it is
            state["forward"] = copies.get(id(compiled), compiled).__call__
    copied = copies.get(id(model), model)
    assert isinstance(copied, type(model))
    return copied


def modules_of(model: nn.Module) -> list[nn.Module]:
    """All modules of a tree, each once, the root first, level by level: those of ``model.modules()``, but many times as
    fast."""
    found: dict[nn.Module, None] = {model: None}
    level = [model]
    while level:
        below = dict.fromkeys(chain.from_iterable(one._modules.values() for one in level if one._modules))
        level = [one for one in below if one is not None and one not in found]
        found |= dict.fromkeys(level)
    return list(found)


def original(module: nn.Module) -> nn.Module:
    """The user's module that a copy was made of; any other module itself."""
    found = vars(module).get(_ORIGINAL, module)
    assert isinstance(found, nn.Module)
    return found


def forget_parametrized(copied: nn.Module) -> None:
    """Take out of torch's cache what it keeps of a copy's parametrised tensors, by an ``id`` that others will have.

    For ``torch.nn.utils.parametrize.cached()``, in which the user may explain.
    """
    cache = getattr(parametrize, "_cache", None)
    if cache:
        gone = {id(module) for module in copied.modules()}
        for key in [key for key in list(cache) if key[0] in gone]:
            cache.pop(key, None)


def own_forwards(copied: nn.Module) -> Iterator[nn.Module]:
    """The modules of a copy that run a function of the user's in place of their class's, which knows no copies."""
    for module in copied.modules():
        forward = vars(module).get("forward")
        if forward is not None and forward is vars(original(module)).get("forward"):
            yield module


class _Rebind:
    """Replaces modules of the tree by their copies in values that hang on a module; all else is shared."""

    def __init__(self, copies: dict[int, nn.Module]) -> None:
        self._copies = copies
        self._open: set[int] = set()  # what is being rebound, and may refer to itself

    def __call__(self, value: Any, of_forward: bool = False) -> Any:
        kind = type(value)
        if kind in ATOMS or id(value) in self._open:
            return value
        if isinstance(value, nn.Module):
            return self._copies.get(id(value), value)
        if kind is MethodType:
            owner = self(value.__self__) if isinstance(value.__self__, nn.Module) else value.__self__
            return value if owner is value.__self__ else MethodType(value.__func__, owner)
        if kind not in _REBOUND or (kind is FunctionType and not of_forward):
            return value
        self._open.add(id(value))
        try:
            return self._inside(value, of_forward)
        finally:
            self._open.remove(id(value))

    def items(self, value: dict[Any, Any]) -> dict[Any, Any]:
        """A copy of a dictionary, even as it is."""
        copied = value.copy()
        for name, item in copied.items():
            if type(item) not in ATOMS:
                copied[name] = self(item)
        return copied

    def _inside(self, value: Any, of_forward: bool) -> Any:
        if isinstance(value, dict):
            return self.items(value)
        if isinstance(value, (list, tuple)):
            items = [self(item) for item in value]
            return value if _same(items, value) else type(value)(items)
        if isinstance(value, functools.partial):
            function, arguments, named = self(value.func, of_forward), self(value.args), self(value.keywords)
            same = function is value.func and arguments is value.args and _same(named.values(), value.keywords.values())
            return value if same else functools.partial(function, *arguments, **named)
        return self._function(value)

    def _function(self, function: FunctionType) -> Any:
        """A function that was put in place of a ``forward``, with the modules and methods that it encloses rebound."""
        compiled = getattr(function, "_torchdynamo_orig_callable", None)
        if compiled is not None:
            return self(compiled, of_forward=True)
        cells = tuple(map(self._cell, function.__closure__ or ()))
        if _same(cells, function.__closure__ or ()):
            return function
        itself = CellType()  # a function that calls itself does so by its closure
        cells = tuple(itself if _encloses(cell, function) else cell for cell in cells)
        twin = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
        twin.__kwdefaults__ = function.__kwdefaults__
        itself.cell_contents = functools.update_wrapper(twin, function)
        return twin

    def _cell(self, cell: CellType) -> CellType:
        """The very same cell where nothing in it is rebound, so that what the user's function counts stays his."""
        if is_empty(cell) or type(cell.cell_contents) in _DICTS:
            return cell
        value = self(cell.cell_contents, of_forward=True)
        return cell if value is cell.cell_contents else CellType(value)


def _same(ours: Iterable[Any], theirs: Iterable[Any]) -> bool:
    return all(a is b for a, b in zip(ours, theirs, strict=True))


def is_empty(cell: CellType) -> bool:
    """Whether nothing was put into what a function encloses yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _encloses(cell: CellType, function: FunctionType) -> bool:
    return not is_empty(cell) and cell.cell_contents is function
