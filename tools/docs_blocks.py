"""Run the examples of the documentation, page by page, and compare what they print with what the page says.

``python tools/docs_blocks.py`` runs all; ``--write`` puts into the pages what is printed now; names of pages limit it.

A page is run from top to bottom in an empty folder. A block ``python`` is run with what the blocks before it have left;
a block ``sh`` is a list of commands, of which those of ``decompx-fast`` are run, and those that install or serve
something are not. A block ``text`` right behind one of them is what it prints, where ``...`` stands for anything. A
comment ``<!-- not run: why -->`` before a block leaves it out.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import io
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs"

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^\n]*?) -->\n)?^```(?P<kind>python|sh)\n(?P<code>.*?)^```\n"
    r"(?:\n?^```text\n(?P<printed>.*?)^```\n)?",
    re.S | re.M,
)

#: What the lines of a block ``sh`` may begin with besides, and is not run.
NOT_RUN = ("pip ", "make ", "git ", "cd ", "docker ", "curl ", "torchrun ", "python ", "#")

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class BlockError(AssertionError):
    """A block that does not run, or prints something else; says where it is."""


@dataclass
class Block:
    """One example.

    Attributes:
        kind: ``python`` or ``sh``.
        line: of the page, from 1.
        printed: what the page says that it prints; None: nothing is said.
        why: it is not run; None: it is.
    """

    kind: str
    code: str
    line: int
    printed: str | None
    why: str | None


@dataclass
class Page:
    """A page and what its blocks share."""

    path: Path
    names: dict = field(default_factory=lambda: {"__name__": "__main__"})

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def blocks(self) -> Iterator[tuple[Block, re.Match[str]]]:
        """Its examples, from top to bottom."""
        text = self.text
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code"))
            yield Block(match["kind"], match["code"], line, match["printed"], match["why"]), match

    def run(self, block: Block) -> str:
        """What a block prints.

        Raises:
            BlockError: if it fails.
        """
        where = f"{self.path.name}, line {block.line}"
        out = io.StringIO()
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            try:
                if block.kind == "python":
                    exec(compile("\n" * block.line + block.code, str(self.path), "exec"), self.names)
                else:
                    for command in _commands(block.code, where):
                        out.write(_run(command, where))
            except BlockError:
                raise
            except BaseException as error:
                raise BlockError(f"{where}: {type(error).__name__}: {error}") from error
        return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def pages(names: list[str] | None = None) -> list[Page]:
    """All pages that have examples, or those of these names."""
    found = [Page(path) for path in sorted(PAGES.rglob("*.md")) if _BLOCK.search(path.read_text(encoding="utf-8"))]
    return [page for page in found if not names or any(name in str(page.path) for name in names)]


def check(page: Page) -> int:
    """Run a page in a folder of its own; how many blocks were run.

    Raises:
        BlockError: for the first that fails, or prints something else than the page says.
    """
    count = 0
    with _empty_folder():
        for block, _ in page.blocks():
            if block.why:
                continue
            printed = page.run(block)
            count += 1
            if block.printed is not None and not doctest.OutputChecker().check_output(block.printed, printed, _FLAGS):
                raise BlockError(
                    f"{page.path.name}, line {block.line}: the page says\n{block.printed}\nand printed is\n{printed}"
                )
    return count


def write(page: Page) -> None:
    """Put what is printed now in the place of what is said; a text with ``...`` that still fits stays."""
    text, parts, end = page.text, [], 0
    with _empty_folder():
        for block, match in page.blocks():
            if block.why:
                continue
            printed = page.run(block)
            if block.printed is None or doctest.OutputChecker().check_output(block.printed, printed, _FLAGS):
                continue
            parts += [text[end : match.start("printed")], printed]
            end = match.end("printed")
    page.path.write_text("".join([*parts, text[end:]]), encoding="utf-8")


def _commands(code: str, where: str) -> Iterator[list[str]]:
    for line in code.replace("\\\n", " ").splitlines():
        line = line.strip()
        if not line or line.startswith(NOT_RUN):
            continue
        words = shlex.split(line, comments=True)
        if words[0] != "decompx-fast":
            raise BlockError(f"{where}: the command {words[0]!r} is none that is known: {line}")
        yield words[1:]


def _run(words: list[str], where: str) -> str:
    from click.testing import CliRunner

    from decompx_fast.cli import cli

    done = CliRunner().invoke(cli, words, catch_exceptions=False, env={"COLUMNS": "80"})
    if done.exit_code != 0:
        raise BlockError(f"{where}: {' '.join(words)} ended with {done.exit_code}: {done.output}")
    return done.stdout


@contextlib.contextmanager
def _empty_folder() -> Iterator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def main() -> None:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pages", nargs="*", help="parts of the pages' names; all if none")
    parser.add_argument("--write", action="store_true", help="put what is printed into the pages")
    given = parser.parse_args()
    for page in pages(given.pages):
        if given.write:
            write(page)
        print(f"{page.path.relative_to(ROOT)}: {check(page)} blocks", file=sys.stderr)


if __name__ == "__main__":
    main()
