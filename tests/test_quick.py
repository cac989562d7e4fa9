"""What a contributor runs while working: a few cases of each test that is not slow, always the same."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from conftest import QUICK_CASES, quick, slow_files_first


def item(name: str, *, slow: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        nodeid=name,
        path=name.partition("::")[0],
        get_closest_marker=lambda mark: True if slow and mark == "slow" else None,
    )


def test_of_each_test_a_few_cases_are_run_and_no_slow_one():
    many = [item(f"tests/test_a.py::test_many[{n}]") for n in range(50)]
    other = [item(f"tests/test_b.py::test_other[{n}]") for n in range(50)]
    few = [
        item("tests/test_a.py::test_one"),
        item("tests/test_a.py::test_two[x]"),
        item("tests/test_a.py::test_two[y]"),
    ]
    slow = [item("tests/test_a.py::test_slow", slow=True)]
    items = [*many, *few, *other, *slow]
    kept = quick(items)
    names = [one.nodeid for one in kept]
    assert names == [one.nodeid for one in items if one.nodeid in names]  # in their order
    counts = Counter(name.partition("[")[0].partition("::")[2] for name in names)
    assert counts == {"test_many": QUICK_CASES, "test_one": 1, "test_two": 2, "test_other": QUICK_CASES}
    assert names == [one.nodeid for one in quick(items)]
    drawn = [{name.partition("[")[2] for name in names if test in name} for test in ("test_many", "test_other")]
    assert drawn[0] != drawn[1]  # each test leaves out others


def test_files_come_first_that_have_the_most_slow_tests():
    """Whole files, each in its order."""
    names = ["a.py::test_1", "a.py::test_2", "b.py::test_1", "b.py::test_2", "c.py::test_1", "c.py::test_2"]
    items = [item(name, slow=name in ("b.py::test_2", "c.py::test_1", "c.py::test_2")) for name in names]
    slow_files_first(items)
    assert [one.nodeid for one in items] == [*names[4:], *names[2:4], *names[:2]]
