"""The explanations of several inputs: a list that a notebook shows as text and colours."""

from __future__ import annotations

from typing import Any, SupportsIndex, TypeVar, overload

Item = TypeVar("Item")


class Explanations(list[Item]):
    """A list of explanations, in the order of the inputs.

    It is a list in every way. Besides, a notebook shows the first of them, each as it shows a single one.
    """

    @overload
    def __getitem__(self, index: SupportsIndex) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> Explanations[Item]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Item | Explanations[Item]:
        found = super().__getitem__(index)
        return Explanations(found) if isinstance(index, slice) else found  # type: ignore[arg-type,return-value]

    # Only lists: what another class does with this one is its own affair, as for any list.

    def __add__(self, other: list[Any]) -> Explanations[Any]:
        return Explanations([*self, *other]) if isinstance(other, list) else NotImplemented

    def __radd__(self, other: list[Any]) -> Explanations[Any]:
        return Explanations([*other, *self]) if isinstance(other, list) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> Explanations[Item]:
        return Explanations(super().__mul__(times))

    __rmul__ = __mul__

    def copy(self) -> Explanations[Item]:
        return Explanations(self)

    def _repr_html_(self) -> str:
        from .render import render_list

        return render_list(self)
