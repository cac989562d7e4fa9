"""The tables in ``bench/results``: each is what its script makes of the numbers beside it, and the site shows it."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"


def made_by(module: str, function: str, of: Callable[[Any], tuple] = lambda found: (found,)) -> Callable[[Any], str]:
    """What a function of a script in ``bench/`` or ``tools/`` makes of the numbers."""

    def make(numbers: Any) -> str:
        written = getattr(importlib.import_module(module), function)(*of(numbers))
        return written if isinstance(written, str) else "\n".join(written)

    return make


def not_measured(name: str) -> list[str]:
    """What a page says has no numbers yet, which are in the page alone."""
    found = re.search(r"^Not measured yet: (.*)\.$", (RESULTS / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE)
    return [] if found is None else found[1].split("; ")


PAGES = {
    "amd-epyc-2-threads": made_by("report", "markdown"),
    "architectures": made_by("architectures", "markdown", lambda found: (found["rows"], "COMMAND")),
    "ceiling": made_by("ceiling", "table"),
    "compile": made_by("compile_report", "render"),
    "compile_cuda": made_by("compile_report", "render_cuda"),
    "faithfulness/rationale-classifiers": made_by("rationale_classifiers", "table"),
    "focus": made_by("focus", "markdown"),
    "long-decoder": made_by("long_decoder", "table"),
    "long-inputs-cpu": made_by("long_inputs", "markdown"),
    "real-models": made_by("real_models", "markdown", lambda found: (found, not_measured("real-models"))),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_table_is_what_its_script_makes_of_the_numbers(name, monkeypatch):
    for folder in ("bench", "tools"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    kept = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    numbers = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    made = PAGES[name](numbers)
    if "COMMAND" in made:  # what was typed is in the page alone
        command = re.search(r"`(python tools/architectures\.py[^`]*)`", kept)
        assert command is not None
        made = made.replace("COMMAND", command[1])
    assert made.strip() == kept.strip()


def test_the_site_shows_benchmarks_faithfulness_and_architectures():
    shown = re.findall(r"\{include\} \.\./bench/results/(\S+)\.md", (ROOT / "docs" / "results.md").read_text())
    assert {"faithfulness/report", "architectures", "amd-epyc-2-threads", "long-inputs-cpu", "real-models"} <= set(
        shown
    )
    assert all((RESULTS / f"{name}.md").exists() for name in shown) and len(shown) == len(set(shown))
