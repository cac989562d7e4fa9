"""Imports point one way: read from the source, so that imports inside functions count too."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

import decompx_fast

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "decompx_fast"
FAMILIES = "linearize/families"

BASE = {"bias_rules", "config", "errors", "activations", "optional"}
#: What a model is described with: nothing that runs one.
READS = {"linearize.readers", "linearize.spec", "linearize.terms"}
BELOW_EXPLAINER = {*BASE, "result", "request", "kernels", "ops", "linearize", "models", "engines"}

# What each part of the package may import of the package. The parts are modules and folders of decompx_fast.
MAY_IMPORT = {
    "lazily": set(),
    "": {"lazily", "explainer", "request", "result", "config", "errors"},
    "errors": set(),
    "bias_rules": set(),
    "config": {"bias_rules", "errors"},
    "activations": {"errors"},
    "optional": {"errors"},
    "calls.arguments": {"config"},
    "calls.checks": {*BASE, "calls.arguments", "linearize", "models"},
    "calls.compiling": {"errors"},
    "calls.forked": set(),
    "kernels": {"kernels"},
    "ops": {"ops", "kernels", *BASE},
    "linearize": {"linearize", *BASE},
    "linearize.reading": {*READS, "linearize.reading", *BASE},
    "linearize.families": {*READS, "linearize.reading", "linearize.families", *BASE},
    "models": {"models", "linearize", *BASE},
    "engines": {"engines", "ops", "linearize.layer", *BASE},
    "result": {"result", *BASE},
    "request": {"request", "result", *BASE},
    "calls.encoders": BELOW_EXPLAINER,
    "calls.explained_model": {"calls.checks", "calls.encoders", "calls.forked", *BELOW_EXPLAINER},
    "calls.continuing": {"calls.explained_model", *BELOW_EXPLAINER},
    "calls.windowing": {"calls.asking", "calls.explained_model", *BELOW_EXPLAINER},
    "calls.asking": {*BASE, "request", "result", "engines.terms"},
    "calls.precision": {*BASE, "engines"},
    "calls.composing": {"calls.explained_model", *BELOW_EXPLAINER},
    "calls.job": {
        "calls.asking",
        "calls.compiling",
        "calls.composing",
        "calls.explained_model",
        "calls.forked",
        "calls.precision",
        *BELOW_EXPLAINER,
    },
    "calls.similarity": {
        "calls.encoders",
        "calls.explained_model",
        "calls.forked",
        "calls.precision",
        *BELOW_EXPLAINER,
    },
    "calls.focusing": {"calls.job", *BELOW_EXPLAINER},
    "calls.path_search": BELOW_EXPLAINER,
    "calls.path_job": {"calls.compiling", "calls.composing", "calls.job", "calls.path_search", *BELOW_EXPLAINER},
    "calls.call": {
        "calls.asking",
        "calls.checks",
        "calls.compiling",
        "calls.continuing",
        "calls.explained_model",
        "calls.focusing",
        "calls.job",
        "calls.path_job",
        "calls.windowing",
        *BELOW_EXPLAINER,
    },
    "calls.planning": {
        "calls.call",
        "calls.checks",
        "calls.explained_model",
        "calls.focusing",
        "calls.job",
        "calls.path_job",
        *BELOW_EXPLAINER,
    },
    "explainer": {
        "calls.arguments",
        "calls.call",
        "calls.checks",
        "calls.compiling",
        "calls.encoders",
        "calls.explained_model",
        "calls.planning",
        "calls.similarity",
        *BELOW_EXPLAINER,
    },
    "calls": set(),
    "commands": set(),
    "interop": {"explainer", *BASE},
    "summarize": {"summarize", "result", *BASE},
    "folder": {"result.file", *BASE},
    "processes": set(),
    "bulk": {"bulk", "explainer", "folder", "processes", *BELOW_EXPLAINER},
    "evaluation": {"evaluation", "lazily", "folder", "explainer", "processes", *BELOW_EXPLAINER},
    "serve": {"serve", "explainer", "processes", *BELOW_EXPLAINER},
    "commands.serve": {"serve", "commands.process", *BASE},
    "doctor": {"ops", *BASE},
    "commands.outputs": {"result", *BASE},
    "commands.explain": {"explainer", "commands.outputs", *BELOW_EXPLAINER},
    "__main__": {"cli"},
    "commands.process": set(),
    "commands.ranks": set(),
    "commands.values": {"request.tasks.places"},
    "commands.evaluate": {"commands.process", "evaluation"},
    "commands.similarity": {"explainer", "commands.outputs", "commands.explain", "commands.values", *BELOW_EXPLAINER},
    "ray": {"bulk", *BELOW_EXPLAINER},
    "commands.options": set(),
    "commands.summarize": {"summarize", "bulk", "result", *BASE},
    "commands.bulk": {"bulk", "commands.options", "commands.values", *BELOW_EXPLAINER},
    "cli": {
        "explainer",
        "commands.bulk",
        "doctor",
        "commands.explain",
        "commands.evaluate",
        "commands.process",
        "commands.ranks",
        "commands.options",
        "commands.serve",
        "commands.similarity",
        "commands.summarize",
        "commands.values",
        "commands.outputs",
        *BELOW_EXPLAINER,
    },
}

# The other packages that a part may import, where they are limited; the packages that one part alone imports.
ONLY_IMPORTS = {"kernels": {"torch", "triton", *sys.stdlib_module_names}}
ONLY_IMPORTED_BY = {"transformers": "models"}

# Functions whose first argument is the name of a module.
IMPORT_FUNCTIONS = {"__import__", "import_module", "import_optional"}


def imported_names(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that is imported, by a statement or by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                yield node.lineno, base if alias.name == "*" else f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function, name = ast.unparse(node.func).rpartition(".")[2], node.args[0].value
            if function in IMPORT_FUNCTIONS and isinstance(name, str):
                yield node.lineno, resolve_name(name, package)


def complaint(part: str, name: str) -> str | None:
    """Why ``part`` may not import ``name``, or None where it may."""
    top, _, inside = name.partition(".")
    if top == PACKAGE:
        allowed = {"__version__", *MAY_IMPORT[part]}
        if not any(inside == entry or inside.startswith(f"{entry}.") for entry in allowed):
            return f"{part or PACKAGE} may import only {sorted(allowed)} of {PACKAGE}"
    elif top == "kernels":
        return f"the kernels are {PACKAGE}.kernels; a package named kernels is another project's"
    elif part in ONLY_IMPORTS and top not in ONLY_IMPORTS[part]:
        return f"{part} may import only torch, triton and the standard library"
    elif ONLY_IMPORTED_BY.get(top, part) != part:
        return f"only {ONLY_IMPORTED_BY[top]} may import {top}"
    return None


def source_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Every Python file of the package with its dotted name; ``kernels/`` is ``decompx_fast.kernels``."""
    for folder, prefix in ((root / PACKAGE, ""), (root / "kernels", "kernels.")):
        for path in sorted(folder.rglob("*.py")):
            relative = path.relative_to(folder)
            if folder.name == PACKAGE and relative.parts[0] == "kernels":
                continue  # the symlink to kernels/
            yield path, f"{PACKAGE}.{prefix}" + ".".join(relative.with_suffix("").parts)


def part_of(module: str) -> str:
    """Which part a module belongs to: a file or a folder of the package, or one file of a folder whose files differ."""
    first, *more = module.removeprefix(f"{PACKAGE}.").removesuffix("__init__").rstrip(".").split(".")
    one = ".".join([first, *more[:1]])
    return one if one in MAY_IMPORT else first


def violations(root: Path) -> list[str]:
    """One line ``file:line: import: reason`` for each import that breaks a rule."""
    found = []
    for path, module in source_files(root):
        where = path.relative_to(root)
        package, _, last = module.rpartition(".")
        part = part_of(module)
        if part not in MAY_IMPORT:
            found.append(f"{where}: there is no rule for {part}: say in MAY_IMPORT what it may import")
            continue
        for line, name in imported_names(ast.parse(path.read_text(), str(where)), package):
            reason = complaint(part, name)
            if reason:
                found.append(f"{where}:{line}: {name}: {reason}")
    return found


def test_imports_point_one_way() -> None:
    found = violations(ROOT)
    assert not found, "\n".join(found)


def test_every_folder_with_code_is_read() -> None:
    read = {path.parent.relative_to(ROOT) for path, _ in source_files(ROOT)}
    assert {Path(PACKAGE), Path(PACKAGE, "ops"), Path(PACKAGE, "engines"), Path("kernels")} <= read


#: Files beside the families: the register of them, and what is refused with the reasons.
TABLES = {"__init__.py", "unsupported.py"}


def test_a_family_is_a_short_file_of_data() -> None:
    """What is more than data stands in linearize/reading/, where others can share it."""
    found = {path.name: len(path.read_text().splitlines()) for path in (ROOT / PACKAGE / FAMILIES).glob("*.py")}
    assert found.keys() > TABLES
    long = {name: lines for name, lines in found.items() if lines >= 80 and name not in TABLES}
    assert not long


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("kernels/a.py", "import numpy"),
        ("kernels/a.py", "from decompx_fast import config"),
        ("kernels/a.py", "from ..ops import b"),
        ("decompx_fast/ops/a.py", "from ..engines.forward import run"),
        ("decompx_fast/ops/a.py", "import decompx_fast.linearize.layer"),
        ("decompx_fast/ops/a.py", "from decompx_fast import DecompX"),
        ("decompx_fast/ops/a.py", "import decompx_fast"),
        ("decompx_fast/ops/a.py", "from kernels import mixing"),
        ("decompx_fast/engines/a.py", "from ..linearize.linearization import linearize"),
        ("decompx_fast/engines/a.py", "from ..linearize import layers"),
        ("decompx_fast/engines/a.py", "from decompx_fast.explainer import DecompX"),
        ("decompx_fast/engines/__init__.py", "from .. import cli"),
        ("decompx_fast/engines/a.py", "from importlib import import_module; import_module('transformers')"),
        ("decompx_fast/result/file.py", "from ..optional import import_optional; import_optional('transformers')"),
        ("decompx_fast/linearize/a.py", "from ..engines.forward import run"),
        ("decompx_fast/result/explanation.py", "from ..engines.forward import plan"),
        ("decompx_fast/result/explanation.py", "from ..request.targets import Targets"),
        ("decompx_fast/request/targets.py", "from ..linearize.spec import Affine"),
        ("decompx_fast/linearize/a.py", "from transformers import BertModel"),
        ("decompx_fast/linearize/families/a.py", "from ..linearization import linearize"),
        ("decompx_fast/linearize/reading/a.py", "from ..families.bert import bert_layer"),
        ("decompx_fast/result/render.py", "from ..engines.forward.plan import *"),
        ("decompx_fast/explainer.py", "from transformers import AutoModel"),
        ("decompx_fast/explainer.py", "from .cli import main"),
        ("decompx_fast/cli.py", "import transformers.models.bert"),
        ("decompx_fast/errors.py", "from .config import DecompXConfig"),
        ("decompx_fast/newcomer.py", "import math"),
    ],
)
@pytest.mark.parametrize("template", ["{}", "def lazily():\n    {}"], ids=["module", "function"])
def test_checker_catches_violation(tmp_path: Path, file: str, statement: str, template: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(template.format(statement))
    found = violations(tmp_path)
    assert len(found) == 1
    assert found[0].startswith(file)


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("kernels/a.py", "import math, torch, triton.language as tl; from .b import kernel; from . import c"),
        ("decompx_fast/ops/a.py", "import numpy; from ..kernels.mixing import kernel; from .b import c"),
        ("decompx_fast/ops/a.py", "from .. import __version__; from ..errors import *"),
        ("decompx_fast/engines/a.py", "from ..linearize.layer import Layer; from ..linearize import layer"),
        ("decompx_fast/models/a.py", "from transformers import BertModel; from ..linearize import layer"),
        (
            "decompx_fast/explainer.py",
            "from .engines.forward import run; from .linearize.linearization import linearize",
        ),
        ("decompx_fast/cli.py", "import click; from decompx_fast.explainer import DecompX"),
        ("decompx_fast/__init__.py", "from .explainer import DecompX"),
    ],
)
def test_checker_allows(tmp_path: Path, file: str, statement: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(statement)
    assert violations(tmp_path) == []


def loaded_after(statements: str) -> set[str]:
    """Names of the modules that a fresh interpreter holds after the statements."""
    code = f"{statements}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = loaded_after("import decompx_fast\ndir(decompx_fast)\ndecompx_fast.__version__")
    assert PACKAGE in loaded
    assert not loaded & {"torch", "triton", "transformers", "numpy"}


def test_a_service_listens_without_what_its_processes_load() -> None:
    loaded = loaded_after("import decompx_fast.serve.run, decompx_fast.commands.serve")
    assert "fastapi" in loaded
    assert not loaded & {"torch", "triton", "transformers"}


@pytest.mark.slow
def test_linearised_layers_and_engines_load_without_transformers() -> None:
    engines = [name for _, name in source_files(ROOT) if name.startswith(f"{PACKAGE}.engines.")]
    modules = [name.removesuffix(".__init__") for name in engines]
    loaded = loaded_after(f"import {', '.join(modules)}, {PACKAGE}.linearize.layer")
    assert not loaded & {"transformers"}


@pytest.mark.parametrize("name", sorted(set(decompx_fast.__all__) - {"__version__"}))
def test_public_name_is_listed_and_loads(name: str) -> None:
    assert name in dir(decompx_fast)
    assert getattr(decompx_fast, name).__name__ == name


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = decompx_fast.no_such_name
