"""Check the links of all pages in Markdown, without network: files that they name, and headings in these.

``python tools/links.py`` prints what is broken and ends with 1 if anything is; ``--external`` lists the addresses of
the web, which are not asked.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent

_FENCE = re.compile(r"^(?P<ticks>`{3,}|~{3,})(?P<info>[^\n]*)\n.*?^(?P=ticks)`*[ \t]*$", re.S | re.M)
_INLINE = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?(?P<to>[^\s)>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_NAMED = re.compile(r"^\[[^\]]+\]:\s*<?(?P<to>[^\s>]+)>?", re.M)
_HTML = re.compile(r"(?:href|src)=\"(?P<to>[^\"]+)\"")
_BARE = re.compile(r"<(?P<to>https?://[^\s>]+)>")
_INCLUDE = re.compile(r"^```\{(?:include|literalinclude)\} (?P<to>\S+)", re.M)
_ROLE = re.compile(r"\{(?:download|doc)\}`[^`<]*<(?P<to>[^`>]+)>`")
_CODE = re.compile(r"(?<![`}])(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$", re.M)


@dataclass(frozen=True)
class Link:
    """A link of a page.

    Attributes:
        page: that it is on.
        line: of it, from 1.
        to: what is linked to, as it is written.
    """

    page: Path
    line: int
    to: str

    @property
    def is_external(self) -> bool:
        """Whether it leads to the web, or to a program."""
        return bool(re.match(r"[a-z][a-z+.-]*:", self.to))

    def problem(self) -> str | None:
        """What is wrong with it, or ``None``; of an external one nothing is known."""
        if self.is_external:
            return None
        path, _, anchor = unquote(self.to).partition("#")
        target = self.page if not path else (self.page.parent / path).resolve()
        if not target.exists():
            return f"there is no {path}"
        if anchor and target.suffix == ".md" and anchor not in anchors(target):
            return f"{target.name} has no heading #{anchor}"
        return None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.to}"


def pages() -> list[Path]:
    """All pages that git knows, or would."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in sorted(filter(None, listing.split("\0"))) if (ROOT / name).exists()]


def links(page: Path) -> Iterator[Link]:
    """The links of a page, in no order; those in code are none."""
    text = page.read_text(encoding="utf-8")
    unfenced = _FENCE.sub(_blank, text)
    prose = _CODE.sub(_blank, unfenced)
    in_prose = [(pattern, prose) for pattern in (_INLINE, _NAMED, _HTML, _BARE)]
    for pattern, where in (*in_prose, (_ROLE, unfenced), (_INCLUDE, text)):
        for match in pattern.finditer(where):
            yield Link(page, where.count("\n", 0, match.start("to")) + 1, match["to"])


def broken() -> list[tuple[Link, str]]:
    """All links that lead nowhere, and why."""
    found = ((link, link.problem()) for page in pages() for link in links(page))
    return [(link, problem) for link, problem in found if problem is not None]


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names of a page's headings, as GitHub and MyST make them."""
    prose = _FENCE.sub(_blank, page.read_text(encoding="utf-8"))
    seen: Counter[str] = Counter()
    found = set()
    for _, heading in _HEADING.findall(prose):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(found)


def _blank(match: re.Match[str]) -> str:
    """As many lines with nothing on them."""
    return "\n" * match[0].count("\n")


def main() -> int:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--external", action="store_true", help="list the addresses of the web")
    if parser.parse_args().external:
        print(*sorted({link.to for page in pages() for link in links(page) if link.is_external}), sep="\n")
        return 0
    wrong = broken()
    for link, problem in wrong:
        print(f"{link}: {problem}")
    count = sum(not link.is_external for page in pages() for link in links(page))
    print(f"{count} links on {len(pages())} pages, {len(wrong)} of them broken", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
