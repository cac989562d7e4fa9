"""Pages: well formed, with every score in them, and nothing that loads, runs or leaks."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import torch
from explanation_samples import byte_level, sample, simple, without_script

from decompx_fast.result.render import page_chunks, render_page

TECHNOLOGIST = "\U0001f469\U0001f3fd\u200d\U0001f4bb"
ATTACK = "<script>alert('x')</script> & \"quoted\" [bold]$x$"
VOID_TAGS = {"meta", "br", "hr", "img", "input", "link"}


class Reader(HTMLParser):
    """Reads HTML strictly: every element is closed in order. Keeps elements, visible text and style sheets."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []  # of each text box
        self.styles = ""
        self.visible = ""
        self.feed(html)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID_TAGS:
            self.open.append(tag)
        if self.box_starts(tag, dict(attrs)):
            self.texts.append("")

    def box_starts(self, tag: str, attrs: dict[str, str | None]) -> bool:
        return tag == "p" and attrs.get("class") == "dx-text"

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            self.styles += data
            return
        self.visible += data
        if "p" in self.open and "bdi" not in self.open and self.texts and "dl" not in self.open:
            self.texts[-1] += data

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for _, attrs in self.elements if name in (attrs.get("class") or "").split()]


def test_html_is_well_formed_and_keeps_the_text() -> None:
    for text in ("A  good\n\tfilm.", ATTACK, f"\u6771\u4eac {TECHNOLOGIST}", "\u0645\u0631\u062d\u0628\u0627 3.5"):
        for explanation in (sample(text), sample(text, byte_level()), sample(text).words()):
            for html in (explanation.to_html(), explanation.to_html(full=True), explanation._repr_html_()):
                reader = Reader(html)
                assert reader.texts[0].startswith(text)  # what follows is the legend


def test_html_escapes_everything() -> None:
    explanation = simple(
        [[1.0, 2.0]],
        tokens=(ATTACK,),
        texts=(ATTACK,),
        spans=((0, 0, len(ATTACK)),),
        labels=("<i>a</i>", "'><img src=x onerror=y>"),
        targets=("<i>a</i>", "'><img src=x onerror=y>"),
        options={"<b>": "</style><script>"},
        metadata={"model": "<script src='http://x'>"},
    )
    reader = Reader(without_script(render_page([explanation], title="<h1>title")))
    assert {tag for tag, _ in reader.elements}.isdisjoint({"script", "i", "img"})
    assert not any(name.startswith("on") for _, attrs in reader.elements for name in attrs)
    for shown in (
        ATTACK,
        "<i>a</i>",
        "'><img src=x onerror=y>",
        "</style><script>",
        "<script src='http://x'>",
        "<h1>title",
    ):
        assert shown in reader.visible


def test_html_needs_no_network_and_no_script() -> None:
    reader = Reader(render_page([sample("A good film.")]))
    assert not any(name in attrs for _, attrs in reader.elements for name in ("src", "href"))
    assert "url(" not in reader.styles and "@import" not in reader.styles


def test_html_fragment_styles_only_itself() -> None:
    html = sample("A good film.").to_html()
    styles = Reader(html).styles
    selectors = [part.strip() for rule in re.findall(r"([^{}]+)\{[^{}]*\}", styles) for part in rule.split(",")]
    assert len(selectors) > 20
    assert all(selector.startswith(".decompx-fast") for selector in selectors)
    assert html.startswith('<div class="decompx-fast">')
    assert "<html" not in html


def test_html_tokens_carry_score_sign_and_strength() -> None:
    reader = Reader(simple([2.0, -1.0, 0.0]).to_html())
    tokens = [attrs for attrs in reader.of_class("dx-token") if "title" in attrs]
    assert [attrs["title"] for attrs in tokens] == ["a +2.000 (#0)", "b -1.000 (#1)", "c +0.000 (#2)"]
    assert [attrs["class"] for attrs in tokens] == ["dx-token dx-for", "dx-token dx-against", "dx-token"]
    alphas = [float(attrs["style"].removeprefix("--a:")) for attrs in tokens]
    assert alphas[0] == 2 * alphas[1] > alphas[2] == 0
    line_styles = {
        name: re.search(rf"\.dx-{name} \{{[^}}]*border-bottom: 2px (\w+)", reader.styles)[1]
        for name in ("for", "against")
    }
    assert line_styles == {"for": "solid", "against": "dotted"}


def test_html_line_is_as_strong_as_the_score() -> None:
    for name in ("for", "against"):
        rule = re.search(rf"\.dx-{name} \{{([^}}]*)\}}", Reader(simple([1.0]).to_html()).styles)[1]
        assert re.search(rf"border-bottom: 2px \w+ rgb\(var\(--{name}\) / calc\(var\(--a\) / 0\.6\)\)", rule)


def test_html_special_tokens_tell_their_sign_by_the_line() -> None:
    styles = Reader(simple([1.0]).to_html()).styles
    # Of rules that weigh the same the last one holds: the border of a marker must not hide the line.
    assert styles.index(".dx-marker {") < min(styles.index(".dx-for {"), styles.index(".dx-against {"))


def test_html_of_ids_sets_only_special_tokens_apart() -> None:
    explanation = simple(
        [1.0, -1.0, 0.5], tokens=("[CLS]", "good", "##ly"), texts=(), spans=(None,) * 3, special=(True, False, False)
    )
    reader = Reader(explanation.to_html())
    assert [attrs["class"] for attrs in reader.of_class("dx-token") if "title" in attrs] == [
        "dx-token dx-marker dx-for",
        "dx-token dx-against",
        "dx-token dx-for",
    ]
    assert "[CLS] good ly" in reader.visible


def test_html_scale_is_not_that_of_special_tokens() -> None:
    reader = Reader(simple([-50.0, 1.0, 0.5], special=(True, False, False)).to_html())
    tokens = [attrs["style"] for attrs in reader.of_class("dx-token") if "title" in attrs]
    assert tokens == ["--a:0.600", "--a:0.600", "--a:0.300"]
    assert "special tokens do not set the scale" in reader.visible
    assert "special tokens" not in Reader(simple([1.0]).to_html()).visible


def test_html_table_has_one_scale_and_begins_with_what_is_explained() -> None:
    scores = torch.zeros(2, 50)
    scores[0, 30], scores[0, 7], scores[1, 49] = 2.0, 1.0, -1.0
    html = simple(scores).to_html("class 7")
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.S)
    names = re.findall(r"<bdi>(.*?)</bdi>", rows[0])
    assert names[:4] == ["class 7", "class 30", "class 0", "class 1"] and len(names) == 50
    headers = [attrs for tag, attrs in Reader(html).elements if tag == "th" and attrs.get("scope") == "col"]
    assert [attrs.get("title") for attrs in headers[2:5]] == ["explained", "predicted", None]
    alphas = [float(alpha) for alpha in re.findall(r"<td[^>]*--a:([\d.]+)", rows[1])]
    assert alphas[:2] == [0.3, 0.6]  # twice the score, twice the colour, in whatever column


def test_html_marks_all_predicted_labels() -> None:
    html = simple([[3.0, -2.0, 1.0]], problem_type="multi_label").to_html()
    assert re.findall(r"<b>(.*?)</b>", html.split("Explained")[0]) == ["class 0", "class 2"]
    assert [attrs["title"] for attrs in Reader(html).of_class("dx-predicted")] == ["explained, predicted", "predicted"]


def test_html_outweighs_the_style_of_a_notebook() -> None:
    styles = Reader(sample("A good film.").to_html()).styles
    selectors = [part.strip() for rule in re.findall(r"([^{}]+)\{[^{}]*\}", styles) for part in rule.split(",")]
    # JupyterLab's strongest rule for what is shown, .jp-RenderedHTMLCommon tbody tr:nth-child(even), has two classes.
    assert min(selector.count(".") for selector in selectors) >= 3
    whole = ".decompx-fast" * 3
    assert re.search(rf"{re.escape(whole)}, {re.escape(whole)} \* \{{ all: revert; \}}", styles)
    assert "all: revert" not in Reader(sample("A good film.").to_html(full=True)).styles  # with no other style


def test_html_legend_and_table_have_the_numbers() -> None:
    explanation = simple([[2.0, 1.0], [-1.0, 4.0]], bias_token=torch.tensor([0.5, 0.25]))
    visible = Reader(explanation.to_html(0)).visible
    assert "scores from -1.000 to +2.000" in visible
    assert "-2.000" in visible and "+2.000" in visible
    rows = [" ".join(row.split()) for row in re.findall(r"<tr>(.*?)</tr>", explanation.to_html(0), re.S)]
    cells = [re.sub(r"<[^>]+>", " ", row).split() for row in rows]
    assert cells == [
        ["#", "Token", "class", "0", "class", "1"],
        ["0", "a", "+2.000", "+1.000"],
        ["1", "b", "-1.000", "+4.000"],
        ["Sum", "of", "tokens", "+1.000", "+5.000"],
        ["Bias", "token", "+0.500", "+0.250"],
        ["Model", "+1.000", "+5.000"],
    ]


def test_html_tells_how_it_was_made() -> None:
    visible = Reader(sample("Good", completeness_error=2e-6).to_html()).visible
    for fact in ("forward", "0.25 s", "absdot", "sample", "2.0e-06"):
        assert fact in visible


def test_html_direction_is_that_of_the_text() -> None:
    reader = Reader(sample("\u05e9\u05dc\u05d5\u05dd").to_html())
    boxes = reader.of_class("dx-text")
    assert [(box["dir"], box["lang"]) for box in boxes] == [("auto", "")]
    # [CLS] comes first and is Latin: only an isolated element leaves the direction to the text.
    assert [tag for tag, attrs in reader.elements if "dx-marker" in (attrs.get("class") or "")] == ["bdi", "bdi"]


def test_html_has_no_characters_that_html_forbids() -> None:
    text = "a\x00\x1b\ud800b"
    html = simple([1.0], texts=(text,), spans=((0, 0, 5),)).to_html(full=True)
    html.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", html)


def test_page_is_made_as_it_is_read() -> None:
    seen = []

    def entries():
        for text in ("one", "two", "three"):
            seen.append(text)
            yield f"line {text}", sample(text)
        yield "line four", RuntimeError("<b>too long</b>")

    chunks = page_chunks(entries(), title="t")
    first = ""
    while "line one" not in first:
        first += next(chunks)
    assert seen == ["one"]
    page = first + "".join(chunks)
    reader = Reader(page)
    assert len(reader.of_class("decompx-fast")) == 4 and "Not explained: <b>too long</b>" in reader.visible


def test_page_holds_several_and_none() -> None:
    page = render_page([sample("one"), sample("two").words()])
    assert len(Reader(page).of_class("decompx-fast")) == 2
    assert page.count("<style>") == 2  # of explanations, once; of the page
    assert "nothing to show" in Reader(render_page([])).visible
