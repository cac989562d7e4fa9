"""What an editor shows of a call: every keyword that is taken, and no other."""

from __future__ import annotations

import dataclasses
import inspect

from decompx_fast import DecompX, DecompXConfig
from decompx_fast.calls.arguments import TELLING, Arguments, Options
from decompx_fast.calls.call import Call


def test_a_call_shows_every_keyword_that_it_takes() -> None:
    taken = inspect.signature(Call).parameters
    keywords = {name for name, one in taken.items() if one.kind is inspect.Parameter.KEYWORD_ONLY}
    options = {field.name for field in dataclasses.fields(DecompXConfig)}
    for method in (DecompX.explain, DecompX.explain_iter, DecompX.__call__):
        shown = inspect.signature(method).parameters
        assert [*shown][:2] == ["self", "texts"]
        assert {*shown} == {"self", "texts"} | keywords | options
        assert all(shown[name].default == taken[name].default for name in keywords)


def test_what_is_typed_is_what_is_taken() -> None:
    taken = {*inspect.signature(DecompX.explain).parameters} - {"self", "texts", *TELLING}
    assert {*Arguments.__annotations__} == taken
    assert {*Options.__annotations__} == {field.name for field in dataclasses.fields(DecompXConfig)}
