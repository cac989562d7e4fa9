"""A private copy of a model that is kept from call to call, as long as all that it was made of is still there.

To make a copy of a hundred modules takes milliseconds, most of them the garbage collector's; to see that nothing has
changed since takes a tenth of that.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn

from .private_copy import modules_of, private_copy
from .remembered import ReadT, Remembered

_CONTAINERS = (dict, OrderedDict, list, tuple)


class Copies:
    """Lends private copies (:func:`.private_copy.private_copy`) of a model, each to one thread at a time.

    One that comes back is lent again if neither the user's modules nor its own have changed: no attribute, parameter,
    hook or part was set, added or removed. What a tensor holds is not looked at, since copies share the tensors.
    Pickled and copied without what it keeps.
    """

    def __init__(self) -> None:
        self._kept: list[_Kept] = []  # one at the most; what is taken by ``pop`` is nobody else's
        self._lent: dict[int, _Kept] = {}  # by the ``id`` of the copy

    @contextmanager
    def lend(self, model: nn.Module) -> Iterator[nn.Module]:
        """A private copy of the model, in eval mode."""
        kept = self._take(model) or _Kept(model)
        self._lent[id(kept.copy)] = kept
        try:
            yield kept.copy
        finally:
            del self._lent[id(kept.copy)]
            if kept.reusable:
                self._kept[:] = [kept]

    def read(self, copy: nn.Module, read: Callable[[nn.Module], ReadT]) -> ReadT:
        """What a function reads from a copy that is lent and has not run since; what it gave the last time, where
        nothing that it can have looked at has changed (:class:`.remembered.Remembered`).

        Args:
            copy: that :meth:`lend` yielded.
            read: is given it; always the same function.
        """
        kept = self._lent[id(copy)]
        known = kept.known
        if known is None or not known.holds():
            kept.known = known = Remembered(modules_of(copy), read(copy))
        return known.read

    def _take(self, model: nn.Module) -> _Kept | None:
        try:
            kept = self._kept.pop()
        except IndexError:
            return None
        return kept if kept.model is model and kept.holds() else None

    def __reduce__(self) -> tuple[type[Copies], tuple[()]]:
        return Copies, ()


class _Kept:
    """A model, its copy, and what hung on the modules of either when the copy was made."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._theirs = _Attributes(modules_of(model))  # before the copy: what changes while it is made shows later
        self.copy = private_copy(model)
        self._ours = _Attributes(modules_of(self.copy))
        self.known: Remembered[Any] | None = None

    @property
    def reusable(self) -> bool:
        """Whether what is looked at is all that the copy depends on."""
        return self._theirs.plain

    def holds(self) -> bool:
        """Whether a new copy would be the same as this one is."""
        return self._theirs.hold() and self._ours.hold()


class _Attributes:
    """What hangs on modules: the values of their attributes, and what is in those that are dictionaries or lists.

    All of it is compared by identity, in a few loops that run in C.

    Attributes:
        plain: whether nothing that would have to be looked at is further down, or in what cannot be looked at.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._types = [*map(type, modules)]
        attributes = [*map(vars, modules)]
        values = [*chain.from_iterable(map(dict.values, attributes))]
        dicts = [value for value in values if isinstance(value, dict)]
        self._empty = [value for value in dicts if not value]  # most of them
        self._dicts = [value for value in dicts if value]
        self._lists = [value for value in values if type(value) is list]
        self._values = _contents(attributes, [])
        self._inner = _contents(self._dicts, self._lists)
        tuples = (value for value in values if type(value) is tuple)
        inner = chain(self._inner, chain.from_iterable(tuples))
        self.plain = not (
            any("forward" in found for found in attributes)
            or any(isinstance(value, functools.partial) for value in chain(values, self._inner))
            or any(type(value) in _CONTAINERS and value for value in inner)
            or any(isinstance(value, nn.Module) for value in chain.from_iterable(self._lists))
            or any(isinstance(module, torch.jit.ScriptModule) for module in modules)
        )

    def hold(self) -> bool:
        """Whether all are the very same objects as before."""
        return (
            not any(self._empty)
            and _same(self._types, [*map(type, self._modules)])
            and _same(self._values, _contents([*map(vars, self._modules)], []))
            and _same(self._inner, _contents(self._dicts, self._lists))
        )


def _contents(dicts: Iterable[dict[Any, Any]], lists: Iterable[list[Any]]) -> list[Any]:
    return [*chain.from_iterable(dicts), *chain.from_iterable(map(dict.values, dicts)), *chain.from_iterable(lists)]


def _same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return len(ours) == len(theirs) and all(map(is_, ours, theirs))
