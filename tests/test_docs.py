"""The documentation: every example runs and prints what the page says; nothing is left out without a reason."""

from __future__ import annotations

import io
import re
import runpy
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import docs_figures  # noqa: E402
import links  # noqa: E402
import notebooks  # noqa: E402
from docs_blocks import BlockError, Page, check, pages  # noqa: E402

PAGES = pages()

#: Why an example may be left out.
REASONS = (
    "needs a cluster of Ray",
    "needs a GPU",
    "needs several processes",
    "needs a folder on a disk",
    "needs a service that runs",
)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path.stem)
def test_examples_run_and_print_what_the_page_says(page, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    assert check(Page(page.path)) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("path", notebooks.notebooks(), ids=lambda path: path.stem)
def test_notebooks_run_and_show_what_is_kept(path):
    assert notebooks.check(path) >= 5
    assert path.stat().st_size < 200_000


def test_a_notebook_that_shows_something_else_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "executed", lambda notebook: shown)
    kept, shown = (
        nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell("print(1)", outputs=[nbformat.v4.new_output("stream", text=text)])]
        )
        for text in ("1\n", "2\n")
    )
    nbformat.write(kept, tmp_path / "one.ipynb")
    with pytest.raises(notebooks.NotebookError, match=r"(?s)one.ipynb, code cell 1: kept is\n.*1.*shown is\n.*2"):
        notebooks.check(tmp_path / "one.ipynb")


def test_no_link_leads_nowhere():
    assert [f"{link}: {problem}" for link, problem in links.broken()] == []
    assert sum(1 for page in links.pages() for link in links.links(page)) > 40


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# The `first` thing: done\n\n## Same\n\n## Same\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[good](other.md#the-first-thing-done) [again](other.md#same-1) `[code](none.md)` [web](https://none.example)\n"
        "[no file](none.md)\n\n```md\n[fenced](none.md)\n```\n\n[no heading](other.md#last) ![picture](none.png)\n"
        "{download}`a file <none.ipynb>` [own](#here)\n\n```{include} none.txt\n```\n\n[named]: none.html\n"
    )
    found = {(link.line, link.to): link.problem() for link in links.links(page)}
    assert {place: problem for place, problem in found.items() if problem} == {
        (2, "none.md"): "there is no none.md",
        (8, "other.md#last"): "other.md has no heading #last",
        (8, "none.png"): "there is no none.png",
        (9, "none.ipynb"): "there is no none.ipynb",
        (9, "#here"): "page.md has no heading #here",
        (11, "none.txt"): "there is no none.txt",
        (14, "none.html"): "there is no none.html",
    }


@pytest.mark.slow
def test_programs_of_examples_run(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("A joy.\n\nDull.\n"))
    for path in sorted((ROOT / "examples").glob("*.py")):
        if not path.stem.endswith("_app"):  # pages: tests/test_example_apps.py
            runpy.run_path(str(path))["main"]()
            assert capsys.readouterr().out.count("\n") >= 2


def test_examples_that_are_not_run_say_why():
    left_out = [block.why for page in PAGES for block, _ in page.blocks() if block.why]
    assert set(left_out) <= set(REASONS)


def test_what_is_shown_to_hold_holds():
    said = [
        (page.path.name, block.line) for page in PAGES for block, _ in page.blocks() if "False" in (block.printed or "")
    ]
    assert said == []


def test_the_tutorial_shows_the_page_that_is_made_for_it(tmp_path):
    frames = [
        (path, source)
        for path in sorted((ROOT / "docs").rglob("*.md"))
        for source in re.findall(r'<iframe src="([^"]+)"', path.read_text(encoding="utf-8"))
    ]
    assert frames == [(ROOT / "docs" / "tutorial.md", "_static/page.html")]
    path = tmp_path / "page.html"
    docs_figures.write_page(path)
    page = path.read_text(encoding="utf-8")
    assert "default-src 'none'" in page and page.count("<article") == 2
    assert 'class="dx-layers"' in page and 'class="dx-parts"' in page and 'class="dx-river"' in page


def test_every_page_is_reached_from_the_index():
    reached, todo = set(), ["index"]
    while todo:
        name = todo.pop()
        path = (ROOT / "docs" / name).with_suffix(".md")
        if path in reached:
            continue
        reached.add(path)
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(encoding="utf-8"), re.S):
            entries = [line for line in tree.splitlines() if line and not line.startswith(":")]
            todo += [str(Path(name).parent / entry) for entry in entries]
    assert {page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts} == reached


def test_a_wrong_example_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    with pytest.raises(BlockError, match="page.md, line 1: the page says\n3\n\nand printed is\n2"):
        check(Page(page))
    page.write_text("```python\nprint(1 + )\n```\n")
    with pytest.raises(BlockError, match="page.md, line 1: SyntaxError"):
        check(Page(page))
    page.write_text("```sh\nrm -r x\n```\n")
    with pytest.raises(BlockError, match="the command 'rm' is none that is known"):
        check(Page(page))
