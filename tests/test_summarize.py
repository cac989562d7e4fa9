"""Summaries of many explanations: every number against pandas, groups, bounds, views and the command."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from explanation_samples import sample, simple

from decompx_fast import DecompX, Failure
from decompx_fast.bulk import explain_dataset, load_results
from decompx_fast.cli import cli
from decompx_fast.errors import InputError
from decompx_fast.summarize import contrast, summarize, tally
from decompx_fast.summarize.tally import EXAMPLES, SAMPLES

TEXTS = [
    "A good film, a really good film.",
    "Bad acting and a bad plot.",
    "The acting is good, the plot is bad!",
    "Unbelievably good.",
    "It isn't bad; it isn't good.",
]
matplotlib.use("Agg")


@pytest.fixture(scope="module")
def several():
    return [sample(text) for text in TEXTS]


def by_pandas(explanations, key=lambda one: "") -> pd.DataFrame:
    """Places, texts and scores of each word, target and group, added up by pandas from the tables of each text."""
    rows = []
    for number, one in enumerate(explanations):
        one = one.words()
        for k, token in enumerate(one.tokens):
            if not one.special[k]:
                for c, target in enumerate(one.targets):
                    rows.append((token.lower(), target, key(one), number, float(one.scores[k, c])))
    table = pd.DataFrame(rows, columns=["word", "target", "group", "text", "score"])
    texts = table.groupby(["word", "target", "group", "text"])["score"].agg(["sum", "size"]).reset_index()
    found = texts.groupby(["word", "target", "group"]).agg(
        mean=("sum", "mean"),
        magnitude=("sum", lambda s: s.abs().mean()),
        deviation=("sum", "std"),
        sum=("sum", "sum"),
        count=("size", "sum"),
        documents=("sum", "size"),
    )
    return found.fillna(0.0)


@pytest.mark.parametrize("key", [None, "predicted"])
def test_every_number_equals_that_of_pandas(several, key):
    found = summarize(several, by=key).to_dataframe()
    expected = by_pandas(several, (lambda one: one.predicted_label) if key else (lambda one: ""))
    found = found.set_index(["word", "target", "group"]).sort_index()
    assert list(found.index) == list(expected.index)
    for column in expected:
        np.testing.assert_allclose(found[column], expected[column], atol=1e-12, err_msg=column)


def test_groups_together_are_the_whole(several):
    whole, groups = summarize(several), summarize(several, by="predicted")
    for word in ("good", "bad", "acting"):
        one, two = whole.word(word, "POSITIVE"), groups.word(word, "POSITIVE")
        assert (one.count, one.documents) == (two.count, two.documents)
        assert one.mean == pytest.approx(two.mean) and one.deviation == pytest.approx(two.deviation)
    assert sum(groups.group_texts.values()) == len(several)


def test_order_and_sign_of_top(several):
    found = summarize(several)
    for by, value in (("sum", "sum"), ("mean", "mean"), ("magnitude", "magnitude"), ("count", "count")):
        sizes = [abs(getattr(word, value)) for word in found.top(100, "POSITIVE", by=by)]
        assert sizes == sorted(sizes, reverse=True) and len(sizes) == len(found)
    assert all(word.mean > 0 for word in found.top(100, "POSITIVE", sign="positive"))
    assert {word.word for word in found.top(100, min_documents=3)} == {"good", "bad", "."}
    assert found.top(0) == [] and found.top(3) == found.top(3, "POSITIVE")


def test_examples_are_the_texts_with_the_largest_scores(several):
    found = summarize(several)
    scores = {}
    for one in several:
        words = one.words()
        total = sum(float(words.scores[k, 1]) for k, token in enumerate(words.tokens) if token.lower() == "good")
        if "good" in one.texts[0]:
            scores[one.texts[0]] = total
    examples = found.examples_of("good", "POSITIVE")
    expected = sorted(scores.items(), key=lambda item: -abs(item[1]))[:EXAMPLES]
    assert [example.before + example.word + example.after for example in examples] == [text for text, _ in expected]
    assert [example.score for example in examples] == pytest.approx([score for _, score in expected])


def test_memory_is_bounded_and_what_is_dropped_is_counted():
    words = [f"w{n}" for n in range(400)]

    def stream():
        for n, word in enumerate(words):
            one = simple(
                [1.0, 0.5], tokens=("common", word), texts=(f"common {word}",), spans=((0, 0, 6), (0, 7, 7 + len(word)))
            )
            yield one if n % 7 else Failure(n, "too long", "InputError")

    found = summarize(stream(), max_words=50)
    shown = [word for n, word in enumerate(words) if n % 7]
    assert len(found) <= 50 and found.texts == len(shown) and found.failures == 400 - len(shown)
    assert found.word("common").documents == len(shown)
    dropped, places = found.left_out
    assert dropped == places == len(shown) + 1 - len(found)
    assert {row for row, _ in found.examples} <= set(range(len(found)))


def test_samples_are_scores_of_the_word(several):
    many = [simple([float(n), -1.0]) for n in range(5 * SAMPLES)]
    scores = summarize(many)._scores(summarize(many).word("a"))
    assert len(scores) == SAMPLES and set(scores.tolist()) <= set(map(float, range(5 * SAMPLES)))
    assert scores.mean() > SAMPLES  # later ones are among them
    few = summarize(several)
    assert len(few._scores(few.word("unbelievably"))) == 1


def test_contrast_names_the_words_that_differ():
    generator = torch.Generator().manual_seed(0)

    def texts(shift):
        for _ in range(30):
            noise = torch.randn(3, generator=generator) / 10
            yield simple([noise[0] + shift, noise[1], noise[2]])

    a, b = summarize(texts(1.0)), summarize(texts(0.0))
    first, *rest = contrast(a, b)
    assert first.word == "a" and first.difference == pytest.approx(1.0, abs=0.1) and first.z > 20
    assert all(abs(one.z) < 4 for one in rest)
    one = math.sqrt(first.first.deviation**2 / 30 + first.second.deviation**2 / 30)
    assert first.z == pytest.approx(first.difference / one)
    assert contrast(a, b, min_documents=31) == []


class _Texts(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


def test_page_shows_words_and_texts_and_escapes_them():
    one = simple([2.0, -1.0], tokens=("<script>", "b"), texts=("<script> b",), spans=((0, 0, 8), (0, 9, 10)))
    page = _Texts()
    html = summarize([one, one]).to_html(full=True)
    page.feed(html)
    assert "script" not in page.tags and "<script>" in page.text and "b" in page.text and "class 0" in page.text
    assert "default-src 'none'" in html and "http" not in html.replace("http-equiv", "")
    assert "no text was explained" in summarize([]).to_html(full=True)


def test_what_options_leave_out_is_said_and_not_called_incomplete():
    whole, without = simple([2.0, -1.0]), simple([2.0, -1.0], options={"bias": "none"}, completeness_error=0.75)
    said = "Scores leave out the biases, by design: up to 0.75 of a target&#39;s value in a text."
    found = summarize([whole, without])
    assert found.left_out_by_design == ("the biases",) and found.to_dict()["left_out_by_design"] == ["the biases"]
    assert said in found.to_html() and "Complete" not in found.to_html()
    assert said not in summarize([whole]).to_html() and "<dt>Complete</dt>" in summarize([whole]).to_html()


def test_views_of_real_texts(several, tmp_path):
    found = summarize(several, by="predicted")
    assert found._repr_html_().startswith("<div") and "Summary(5 texts" in repr(found)
    for kind in ("bar", "beeswarm"):
        figure = found.plot(kind=kind, n=8).figure
        figure.savefig(tmp_path / f"{kind}.png")
        assert len(figure.axes[0].get_yticklabels()) == 8
    data = json.loads(json.dumps(found.to_dict(3)))
    assert data["texts"] == 5 and len(data["words"]) == 3 * len(found.columns)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s: summarize(s, by="label"),
            "by must be 'predicted', a function of an explanation, or None, got 'label'",
        ),
        (lambda s: summarize(s, max_words=0), "max_words must be 1 or more, got 0"),
        (lambda s: summarize(s, targets="NEUTRAL"), "no explanation has one of them; there are 'NEGATIVE', 'POSITIVE'"),
        (lambda s: summarize([*s, "text"]), "must be Explanations of texts, got str"),
        (lambda s: summarize(s).top(5, "NEUTRAL"), "target 'NEUTRAL' is not in the summary: there are 'NEGATIVE'"),
        (lambda s: summarize(s).top(5, group="x"), "group 'x' is not in the summary"),
        (lambda s: summarize(s).top(-1), "n must be 0 or more, got -1"),
        (
            lambda s: summarize(s).top(by="length"),
            "by must be one of 'sum', 'mean', 'magnitude', 'count', got 'length'",
        ),
        (lambda s: summarize(s).top(sign="no"), "sign must be 'both', 'positive' or 'negative', got 'no'"),
        (lambda s: summarize(s).word("absent"), "no text has the word 'absent'"),
        (lambda s: summarize(s).contrasts("", "", min_documents=1), "min_documents must be 2 or more"),
        (lambda s: summarize(s).plot(kind="pie"), "kind must be 'bar' or 'beeswarm', got 'pie'"),
        (lambda s: summarize(s).plot(min_documents=99), "there is no such word to be drawn"),
        (lambda s: summarize([]).top(), "this summary is empty"),
    ],
)
def test_wrong_arguments_are_named(several, call, message):
    with pytest.raises(InputError, match=message):
        call(several)


def test_places_of_targets_are_left_out_and_too_many_targets_refused(monkeypatch):
    labelled = simple([[1.0, 2.0], [0.0, 1.0]], targets=("B-PER @ John", "B-PER @ Mary"), target_ids=(None, None))
    found = summarize([labelled])
    assert found.targets == ("B-PER",) and found.word("a").sum == 3.0  # both columns are of one target
    monkeypatch.setattr(tally, "MAX_COLUMNS", 20)
    with pytest.raises(InputError, match="more than 20 targets and groups: name those that count by targets="):
        summarize(simple([1.0], targets=(f"t{n}",), target_ids=(None,)) for n in range(30))


@pytest.mark.slow
def test_command_reads_what_bulk_writes(tmp_path):
    table = pd.DataFrame({"text": TEXTS, "label": ["POSITIVE", "NEGATIVE", "1", "POSITIVE", None], "key": [*"abcde"]})
    table.to_csv(tmp_path / "in.csv", index=False)
    explain_dataset(tmp_path / "in.csv", out=tmp_path / "out", bias="none", workers=0, id_column="key", progress=False)
    explained = [*load_results(tmp_path / "out")]
    assert explained[0].metadata["columns"] == {"label": "POSITIVE"}
    arguments = ["summarize", str(tmp_path / "out"), "--by", "correct", "--column", "label", "--top", "4"]
    outs = ["--html", str(tmp_path / "s.html"), "--json", str(tmp_path / "s.json"), "--plot", str(tmp_path / "s.png")]
    done = CliRunner().invoke(cli, [*arguments, *outs], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "4 texts" in done.output and "1 explanations are in no group" in done.output
    data = json.loads((tmp_path / "s.json").read_text())
    labels = {"a": "POSITIVE", "b": "NEGATIVE", "c": "POSITIVE", "d": "POSITIVE"}
    right = sum(one.predicted_label == labels.get(one.metadata["id"]) for one in explained)
    assert data["groups"].get("right", 0) == right and data["ungrouped"] == 1
    assert (tmp_path / "s.png").stat().st_size > 1000 and "POSITIVE, of right" in (tmp_path / "s.html").read_text()
    again = CliRunner().invoke(cli, ["summarize", str(tmp_path / "out"), "--against", str(tmp_path / "out")])
    assert again.exit_code == 0 and "less" in again.output
    quiet = CliRunner().invoke(cli, ["summarize", str(tmp_path / "out"), "--json", "-"])
    assert json.loads(quiet.output)["texts"] == 5
    for wrong, message in (
        (["--by", "correct"], "--column NAME goes with --by correct"),
        (["--by", "column", "--column", "colour"], "has no such column; there are 'label'"),
        (["--target", "NEUTRAL"], "no explanation has one of them"),
        (["--contrast", "right", "wrong"], "group 'right' is not in the summary"),
    ):
        failed = CliRunner().invoke(cli, ["summarize", str(tmp_path / "out"), *wrong])
        assert failed.exit_code != 0 and message in failed.output + str(failed.exception)
    assert "is no folder of a bulk run" in str(CliRunner().invoke(cli, ["summarize", str(tmp_path)]).exception)


def test_command_line_knows_the_orders():
    from decompx_fast.commands.summarize import ORDERS as known
    from decompx_fast.summarize.summary import ORDERS

    assert known == ORDERS


def test_summary_of_the_real_model_finds_its_words():
    found = summarize(DecompX.demo().explain(TEXTS, bias="none"))
    assert {word.word for word in found.top(3, "POSITIVE", sign="negative")} & {"bad", "isn't"}
    assert found.word("good", "POSITIVE").mean > 0 > found.word("bad", "POSITIVE").mean
