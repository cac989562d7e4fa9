"""Results of language models, and how they are shown: a matrix of sources against the tokens of an output."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest
import torch
from explanation_samples import without_script
from generation_models import MODELS, PROMPT, byte_level
from rich.console import Console

from decompx_fast import DecompX, Explanation
from decompx_fast.errors import InputError

EXACT = 1e-10  # in float64, relative to values of order 1


@pytest.fixture(scope="module")
def explainers() -> dict[str, DecompX]:
    return {name: DecompX(make(), byte_level()) for name, make in MODELS.items()}


@pytest.fixture(scope="module")
def written(explainers) -> Explanation:
    return explainers["llama"].explain(PROMPT, continuation=" Paris. one")


def test_one_column_by_itself_is_an_ordinary_explanation(written):
    for n, name in enumerate(written.targets):
        alone = written.at(n)
        assert alone.targets == alone.labels == (name,) and torch.equal(alone.scores, written.scores[:, [n]])
        assert torch.equal(written.at(name).scores, alone.scores)
        gap = abs(written.totals[n] - written.target_logits[n].double()).item()
        assert alone.completeness_error == pytest.approx(gap, abs=1e-15) and gap < EXACT  # sums in another order
        assert name in alone.to_html() and len(alone.words().targets) == 1
    assert torch.equal(written.at(-1).scores, written.scores[:, [-1]])
    with pytest.raises(InputError, match=r"at\(20\) is beyond the columns, of which there are"):
        written.at(20)


def test_a_result_with_an_output_can_be_kept(written, tmp_path):
    written.save(tmp_path / "one.safetensors")
    for found in (Explanation.load(tmp_path / "one.safetensors"), Explanation.from_dict(written.to_dict())):
        assert found.predictions == written.predictions and found.texts == written.texts
        assert torch.equal(found.scores, written.scores) and found.task == "text-generation"
    table = written.to_dataframe()
    assert [f"score_{name}" for name in written.targets] == list(table.columns[-len(written.targets) :])
    assert table["segment"].tolist() == [0 if span[0] == 0 else 1 for span in written.spans]


def test_the_page_has_a_tab_for_each_token_without_scripts(written):
    page = without_script(written.to_html(full=True))
    assert page.count('<input type="radio"') == len(written.targets) == page.count('<div class="dx-panel">')
    assert page.count(" checked>") == 1 and "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert 'type="radio"' not in written.at(0).to_html() and 'type="radio"' not in written.to_html(written.targets[1])


def test_only_the_panel_of_the_chosen_tab_is_hidden_by_a_rule_on_its_button(written):
    """A label also holds the name, and that is never checked: a rule that looks at all of it hides every panel."""
    (rule,) = re.findall(r"\.dx-tab(.*?) \+ \.dx-panel { display: none; }", written.to_html(full=True))
    assert rule == ":has(> input:not(:checked))"


def test_the_page_has_the_scale_and_the_numbers_of_all_tabs(written):
    page = written.to_html(full=True)
    ordinary = written.scores[1:].abs().max().item()  # the first token does not set the scale
    legend = re.search(r'<p class="dx-legend">(.*?)</p>', page, re.S)[1]
    spans = re.findall(r"<span[^>]*>([^<]*)</span>", legend)
    assert float(spans[2]) == pytest.approx(ordinary, rel=1e-2) and float(spans[0]) == -float(spans[2])
    (ends,) = (re.fullmatch(r"scores from (\S+) to (\S+)", one) for one in spans if "scores" in one)
    low, high = map(float, ends.groups())
    assert (low, high) == pytest.approx((written.scores.min().item(), written.scores.max().item()), abs=1e-3)
    assert "<dt>Explained</dt>" not in page and "<dt>Explained</dt>" in written.at(0).to_html()


def test_the_first_token_does_not_set_the_scale_and_both_views_say_so(written):
    alone = written.at(0)
    scores = torch.full_like(alone.scores, 0.5)
    scores[0], scores[1] = 30.0, -2.0
    heavy = dataclasses.replace(alone, scores=scores)
    console = Console(file=io.StringIO(), width=100)
    heavy.show(console=console)
    words = "the first token and special tokens do not set the scale"
    assert "full at -2.00" not in console.file.getvalue() and f"full at +2.00, as {words}" in console.file.getvalue()
    assert words in heavy.to_html() and "<span>+2.00</span>" in heavy.to_html()


def test_each_tab_has_the_probability_of_its_own_token(explainers):
    found = explainers["llama"].explain(PROMPT, continuation="oooo", contrast="mean")
    assert len(found.targets) == 4 and len({one.name for one in found.predictions}) == 1
    notes = re.findall(r'<p class="dx-note"><b>.*?probability (\S+)</p>', found.to_html())
    assert notes == [f"{one.score:.1%}" for one in found.predictions]
    others = explainers["llama"].explain(PROMPT, continuation="oooo", targets=["a", "o"])
    assert "probability" not in others.to_html()


def test_a_token_of_white_space_is_named_by_signs(explainers):
    found = explainers["llama"].explain("one\n two", continuation="\n \t", targets=None)
    assert found.targets == ("\u23ce", "\u2423", "\u21e5")
    chat = explainers["llama"].explain([{"role": "user", "content": "one"}], continuation="a")
    console = Console(file=io.StringIO(), width=100)
    chat.show(console=console)
    assert "\u010a" not in console.file.getvalue() and "\u23ce" in console.file.getvalue()


def test_what_comes_after_a_token_is_no_zero(written):
    console = Console(file=io.StringIO(), width=200)
    written.show(console=console)
    last = re.search(rf"^ *{len(written) - 1} +.*$", console.file.getvalue(), re.M)[0]
    assert last.split()[-1] != "\u00b7" and last.split()[-2] == "\u00b7"
    assert written.to_html().count(">\u00b7</td>") == int((written.scores == 0).sum())


def test_the_terminal_shows_sources_against_tokens(written):
    console = Console(file=io.StringIO(), width=100)
    written.show(console=console)
    shown = console.file.getvalue()
    assert PROMPT in shown and "Paris. one" in shown and "Complete" in shown and "Model" in shown
    largest = written.scores.abs().amax(1).topk(3).indices.tolist()
    assert all(re.search(rf"^ *{k} ", shown, re.M) for k in largest)
    console = Console(file=io.StringIO(), width=100)
    written.show(written.targets[0], console=console)
    assert "Explained" in console.file.getvalue()
