"""Run the notebooks of the documentation in a kernel, and compare what they print with what is kept in them.

``python tools/notebooks.py`` runs all; ``--write`` keeps what is shown now; names of notebooks limit it.

Text must be the same, where ``...`` in what is kept stands for anything. Pictures and HTML must be of the same kind: in
them are times and fonts of the machine. Warnings are left out.
"""

from __future__ import annotations

import argparse
import doctest
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "docs" / "notebooks"

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class NotebookError(AssertionError):
    """A cell that shows something else than what is kept; says which."""


def notebooks(names: list[str] | None = None) -> list[Path]:
    """All notebooks, or those of these names."""
    return [path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if not names or any(name in path.name for name in names)]


def executed(notebook: Any) -> Any:
    """The notebook with what its cells show now, run in an empty folder.

    Raises:
        nbclient.exceptions.CellExecutionError: for the first cell that fails.
    """
    found = nbformat.from_dict(notebook)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            found, kernel_name="python3", record_timing=False, resources={"metadata": {"path": folder}}
        )
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        own = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # a notebook shows its plots
        client.execute(env=own | {"PYTHONPATH": path})
    for cell in found.cells:
        if cell.cell_type == "code":  # what libraries warn of is the environment's
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    found.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return found


def check(path: Path) -> int:
    """Run a notebook; how many cells were run.

    Raises:
        NotebookError: for the first cell that shows something else than what is kept.
    """
    kept = nbformat.read(path, as_version=4)
    cells = [pair for pair in zip(kept.cells, executed(kept).cells, strict=True) if pair[0].cell_type == "code"]
    for number, (old, new) in enumerate(cells, 1):
        said, shown = shows(old), shows(new)
        same = [kind for kind, _ in said] == [kind for kind, _ in shown] and all(
            doctest.OutputChecker().check_output(want, got, _FLAGS)
            for (_, want), (_, got) in zip(said, shown, strict=True)
        )
        if not same:
            raise NotebookError(f"{path.name}, code cell {number}: kept is\n{said}\nand shown is\n{shown}")
    return len(cells)


def shows(cell: Any) -> list[tuple[str, str]]:
    """What a cell shows, in order: kinds, and the text of what is text alone."""
    found = []
    for output in cell.outputs:
        if output.output_type == "stream":
            found.append((output.name, output.text))
            continue
        kinds = sorted(output.data)
        found.append((" ".join(kinds), output.data["text/plain"] if kinds == ["text/plain"] else ""))
    return found


def write(path: Path) -> None:
    """Keep what its cells show now."""
    nbformat.write(executed(nbformat.read(path, as_version=4)), path)


def main() -> None:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="parts of the notebooks' names; all if none")
    parser.add_argument("--write", action="store_true", help="keep what is shown now")
    given = parser.parse_args()
    for path in notebooks(given.names):
        if given.write:
            write(path)
        else:
            print(f"{path.relative_to(ROOT)}: {check(path)} cells", file=sys.stderr)


if __name__ == "__main__":
    main()
