"""A run of the evaluation: what it writes, what it refuses, and that its table can be believed."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import evaluation_samples
import models
import numpy as np
import pyarrow.parquet
import pytest
import torch

from decompx_fast import DecompX
from decompx_fast.errors import InputError, OptionError, OutputError
from decompx_fast.evaluation import METRICS, Method, evaluate
from decompx_fast.evaluation.classifier import Classifier
from decompx_fast.evaluation.masking import input_key
from decompx_fast.evaluation.method import get_method
from decompx_fast.evaluation.store import Store
from decompx_fast.evaluation.work import EvaluationError
from decompx_fast.optional import MissingPackageError

N_TEXTS = 150
MARKS = "random,occlusion"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return evaluation_samples.write_texts(tmp_path_factory.mktemp("data") / "texts.csv", N_TEXTS)


def shuffled(problem):
    """The scores of occlusion, given to the wrong tokens: a deliberately broken method."""
    scores = get_method("occlusion").score(problem)
    return [
        row[torch.randperm(len(row), generator=problem.generator(index, "shuffled"))]
        for index, row in enumerate(scores)
    ]


SHUFFLED = Method("shuffled", "Shuffled", True, "occlusion, broken", shuffled)


@pytest.fixture(scope="module")
def whole(model, data, tmp_path_factory):
    """An uninterrupted run with the marks and the broken method."""
    out = tmp_path_factory.mktemp("whole")
    return evaluate(data, model, out=out, methods=["random", "occlusion", SHUFFLED])


@pytest.mark.slow
def test_occlusion_is_an_oracle_and_shuffled_scores_are_random(whole):
    estimates = {name: result.estimates for name, result in whole.methods.items()}
    random, broken, oracle = estimates["random"], estimates["shuffled"], estimates["occlusion"]
    for name, metric in METRICS.items():
        if name == "prediction-performance" or metric.needs_rationales:
            continue  # the labels are no matter of the text
        if name == "infidelity":
            continue  # it reads the scores themselves, and these two have other ones: uniform, and signed
        better = 1 if metric.higher_is_better else -1
        if name in ("aopc", "aopc-least", "comprehensiveness", "sufficiency", "log-odds", "flip-fraction"):
            assert better * (oracle[name].mean - random[name].mean) > 0, name
        # The broken method and random scores are two draws of the same thing: their intervals meet.
        assert broken[name].low < random[name].high and random[name].low < broken[name].high, name
    assert oracle["aopc"].low > max(random["aopc"].high, broken["aopc"].high)
    assert list(whole.methods)[0] == "occlusion"


@pytest.mark.slow
def test_results_hold_every_text_once_for_each_method(whole):
    rows = pyarrow.parquet.read_table(whole.folder / "results.parquet").to_pylist()
    assert len(rows) == 3 * N_TEXTS
    assert {(row["method"], row["index"]) for row in rows} == {
        (name, index) for name in whole.methods for index in range(N_TEXTS)
    }
    for row in rows[:20]:
        assert len(row["scores"]) == len(row["tokens"]) == len(row["special"])
        assert row["aopc"] == pytest.approx(sum(row["probability"] - p for p in row["mask-most_probability"]) / 9)
        assert row["label"] == row["index"] % 2


@pytest.mark.slow
def test_probabilities_are_those_of_the_model(whole, model):
    """Of a few texts, from the stored scores by way of the model alone."""
    explainer = DecompX.from_pretrained(model)
    rows = pyarrow.parquet.read_table(whole.folder / "results.parquet").to_pylist()
    for row in [row for row in rows if row["method"] == "occlusion"][:3]:
        ids = torch.tensor(explainer.tokenizer.convert_tokens_to_ids(row["tokens"]))
        order = sorted((k for k in range(len(ids)) if not row["special"][k]), key=lambda k: -row["scores"][k])
        half = ids.clone()
        half[order[: int(len(order) / 2 + 0.5)]] = explainer.tokenizer.mask_token_id
        full, masked = models.logits_of(explainer.model, torch.stack([ids, half])).softmax(-1)
        assert row["predicted"] == full.argmax()
        assert row["probability"] == pytest.approx(float(full[row["predicted"]]), abs=1e-6)
        assert row["mask-most_probability"][4] == pytest.approx(float(masked[row["predicted"]]), abs=1e-6)


@pytest.mark.slow
def test_report_and_curves_are_there_and_can_be_read(whole):
    page = (whole.folder / "report.md").read_text(encoding="utf-8")
    first = page.index("| Method |")
    header, rule, *rows = page[first:].split("\n\n")[0].strip().split("\n")
    shown = [metric for metric in METRICS.values() if not metric.needs_rationales]
    assert header.count("|") == rule.count("|") == len(shown) + 2
    assert [row.split("|")[1].strip() for row in rows] == [result.label for result in whole.methods.values()]
    mean = whole.methods["occlusion"].estimates["aopc"].mean
    assert rows[0].split("|")[2].strip().startswith(f"{mean:.3f} [")
    assert "Seed" in page and "Seconds per text" in page and f"{N_TEXTS} texts" in page
    curves = ["aopc", "accuracy", "aopc-least", "accuracy-least", "comprehensiveness", "sufficiency", "log-odds"]
    for name in curves:
        assert (whole.folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(whole.folder / f"{name}.svg").getroot().tag.endswith("svg")
        assert all(name in result.curves for result in whole.methods.values())
    values = whole.methods["random"].curves["aopc"]
    assert sum(values) / 9 == pytest.approx(whole.methods["random"].estimates["aopc"].mean)


def test_a_second_run_computes_nothing_and_may_ask_for_other_methods(model, data, tmp_path, monkeypatch):
    options = {"out": tmp_path, "limit": 40, "metrics": "aopc"}
    first = evaluate(data, model, methods="random", **options)
    both = evaluate(data, model, methods=MARKS, **options)
    assert both.methods["random"].estimates == first.methods["random"].estimates
    monkeypatch.setattr("decompx_fast.evaluation.work.Worker.compute", None)
    again = evaluate(data, model, methods=MARKS, **options)
    assert again.methods == both.methods


def test_differences_to_the_reference_are_of_the_same_texts(model, data, tmp_path):
    found = evaluate(data, model, out=tmp_path, methods=MARKS, metrics="aopc", limit=60, reference="occlusion")
    assert found.methods["occlusion"].differences == {}
    rows = pyarrow.parquet.read_table(tmp_path / "results.parquet").to_pylist()
    values = {
        name: np.array([row["aopc"] for row in rows if row["method"] == name]) for name in ("random", "occlusion")
    }
    paired = values["random"] - values["occlusion"]
    mean, low, high = found.methods["random"].differences["aopc"]
    assert mean == pytest.approx(paired.mean(), abs=1e-12)
    # The normal approximation of 60 values; that of unpaired ones would be another.
    assert high - low == pytest.approx(2 * 1.96 * paired.std() / 60**0.5, rel=0.15)
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "## Difference to Leave-one-out" in page and f"| Random | {mean:+.3f} [" in page


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"seed": 1}, "seed: 0 there, 1 now"),
        ({"limit": 30}, "n_texts: 20 there, 30 now"),
        ({"metrics": "sufficiency"}, "perturbations"),
    ],
)
def test_other_settings_are_refused_with_what_differs(model, data, tmp_path, option, message):
    options = {"out": tmp_path, "limit": 20, "methods": "random", "metrics": "aopc"}
    evaluate(data, model, **options)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=message):
        evaluate(data, model, **{**options, **option})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_another_model_is_refused(model, data, tmp_path):
    options = {"out": tmp_path, "limit": 20, "methods": "random", "metrics": "aopc"}
    explainer = DecompX.from_pretrained(model)
    evaluate(data, explainer, **options)
    with torch.no_grad():
        explainer.model.classifier.bias += 1
    with pytest.raises(InputError, match="model_sha256"):
        evaluate(data, explainer, **options)


def test_two_runs_in_one_folder_are_refused(tmp_path):
    with Store(tmp_path, {}).opened(), pytest.raises(OutputError, match="another run is at work"):
        with Store(tmp_path, {}).opened():
            pass
    with Store(tmp_path, {}).opened():
        pass


def test_wrong_options_are_refused_before_the_work(model, data, tmp_path):
    out = tmp_path / "out"
    for options, message in (
        ({"methods": "randum"}, "unknown attribution method 'randum': use one of random, occlusion"),
        ({"metrics": "aopk"}, "unknown metric 'aopk': use one of aopc"),
        ({"methods": "random,random"}, "give each method once"),
        ({"methods": ""}, "name one method at least"),
        ({"methods": [get_method("random"), "random"]}, "'random' is there twice"),
        ({"workers": 0}, "workers=0"),
        ({"seed": -1}, "seed=-1"),
    ):
        with pytest.raises(OptionError, match=message):
            evaluate(data, model, out=out, **options)
    with pytest.raises(OptionError, match="give its folder"):
        evaluate(data, DecompX.from_pretrained(model), out=out, workers=2)
    with pytest.raises(OptionError, match="'../up' cannot be that of a folder"):
        evaluate(data, model, out=out, methods=[Method("../up", "Up", True, "", shuffled)])
    needy = Method("needy", "Needy", True, "needs a package", shuffled, needs=("no_such_package",))
    with pytest.raises(MissingPackageError, match="the method 'needy' needs no_such_package"):
        evaluate(data, model, out=out, methods=[needy])
    assert not out.exists()


def test_metrics_without_labels_are_those_that_need_none(model, tmp_path):
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": "a dull film"}\n{"text": "a warm, sharp plot"}\n', encoding="utf-8")
    found = evaluate(data, model, out=tmp_path / "out", methods="random")
    names = "aopc,aopc-least,comprehensiveness,sufficiency,log-odds,flip-fraction,flip-first,monotonicity,infidelity"
    assert [metric.name for metric in found.metrics] == names.split(",")
    assert found.accuracy is None
    with pytest.raises(InputError, match="'accuracy' needs labels"):
        evaluate(data, model, out=tmp_path / "other", methods="random", metrics="accuracy")


def test_too_few_texts_for_a_metric_are_refused_before_the_work(model, data, tmp_path):
    assert "prediction-performance" not in [
        metric.name for metric in evaluate(data, model, out=tmp_path / "a", methods="random", limit=9).metrics
    ]
    with pytest.raises(InputError, match="at least 10 texts, and texts.csv gives 9"):
        evaluate(data, model, out=tmp_path / "b", methods="random", limit=9, metrics="prediction-performance")
    assert not (tmp_path / "b").exists()


def test_pairs_are_evaluated(model, tmp_path):
    data = tmp_path / "pairs.csv"
    data.write_text("text,second\na dull film,it is bad\na warm plot,it is good and sharp\n", encoding="utf-8")
    found = evaluate(data, model, out=tmp_path / "out", methods="occlusion", metrics="aopc", pair_column="second")
    row = pyarrow.parquet.read_table(found.folder / "results.parquet").to_pylist()[1]
    assert row["tokens"].count("[SEP]") == 2
    assert "2 pairs of texts" in (found.folder / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda problem: [torch.zeros(2)] * len(problem.inputs), r"shape \[2\] for \d+ tokens"),
        (lambda problem: [], "0 rows of scores for 20 texts"),
        (lambda problem: [torch.full((len(one),), float("nan")) for one in problem.inputs], "NaN"),
        (lambda problem: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_method_that_fails_is_named(model, data, tmp_path, score, message):
    with pytest.raises(EvaluationError, match=f"(?s)the method 'broken' failed on the texts 0, .*{message}"):
        evaluate(
            data, model, out=tmp_path, methods=[Method("broken", "Broken", True, "", score)], limit=20, metrics="aopc"
        )
    assert not (tmp_path / "report.md").exists()


def test_the_model_and_the_threads_are_left_as_they_were(model, data, tmp_path):
    explainer = DecompX.from_pretrained(model)
    explainer.model.train()
    with models.unchanged(explainer.model):
        evaluate(data, explainer, out=tmp_path, methods=MARKS, limit=20, metrics="aopc")
    assert os.listdir(tmp_path)


def test_what_is_said_about_a_text_does_not_depend_on_its_company(model):
    classifier = Classifier(DecompX.from_pretrained(model))
    texts = [" ".join(["good", "bad", "the", "film"][(n + k) % 4] for k in range(1 + n % 7)) for n in range(60)]
    inputs = [encoded.inputs for encoded in classifier.encode(texts)]
    together = classifier.predict(inputs)
    for n in range(0, len(inputs), 7):
        alone = classifier.predict(inputs[n : n + 1])
        assert torch.equal(alone.log_probabilities[0], together.log_probabilities[n])
        assert torch.equal(alone.states[0], together.states[n])


def test_methods_that_change_a_text_alike_ask_about_it_once(model, data, tmp_path, monkeypatch):
    asked: list[object] = []
    predict = Classifier.predict

    def count(self: Classifier, inputs: list) -> object:
        asked.extend(input_key(one) for one in inputs)
        return predict(self, inputs)

    monkeypatch.setattr(Classifier, "predict", count)
    again = Method("again", "Again", True, "the same once more", get_method("random").score)
    evaluate(data, model, out=tmp_path / "out", methods=["random", again], metrics="aopc,sufficiency", limit=20)
    assert asked and len(asked) == len(set(asked))
    rows = pyarrow.parquet.read_table(tmp_path / "out" / "results.parquet").drop_columns(["seconds"]).to_pylist()
    by_method = [[{**row, "method": ""} for row in rows if row["method"] == name] for name in ("random", "again")]
    assert len(by_method[0]) == 20 and by_method[0] == by_method[1]


def test_equal_texts_are_warned_of_and_kept_together(model, tmp_path):
    """Twenty texts three times, with labels that the texts cannot tell: nothing may be learnt from the copies."""
    words = "a the film plot acting is was not very good bad dull joy mess hero end slow sharp warm loud".split()
    lines = [f"{first} {second} {first}" for first, second in zip(words, words[7:] + words[:7], strict=True)]
    data = tmp_path / "texts.csv"
    rows = [f"{line},{n * 7 % 5 % 2}" for n, line in enumerate(lines)]
    data.write_text("text,label\n" + "\n".join(rows * 2 + [row.capitalize() for row in rows]) + "\n", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"40 of 60 texts repeat .*line 22 of .* is equal to line 2 of"):
        found = evaluate(data, model, out=tmp_path / "out", methods="random", metrics="prediction-performance,aopc")
    assert found.methods["random"].estimates["prediction-performance"].mean < 0.95
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "40 of them repeat an earlier one" in page
    few = tmp_path / "few.csv"
    few.write_text("text,label\n" + "\n".join(rows[:9] * 3) + "\n", encoding="utf-8")
    with (
        pytest.warns(UserWarning),
        pytest.raises(InputError, match="at least 10 texts, and few.csv gives 9 that differ"),
    ):
        evaluate(few, model, out=tmp_path / "other", methods="random", metrics="prediction-performance")


@pytest.mark.slow
def test_the_report_keeps_the_methods_of_earlier_runs(model, data, tmp_path):
    options = {"out": tmp_path, "limit": 40, "metrics": "aopc,sufficiency"}
    first = evaluate(data, model, methods=["random", SHUFFLED], **options)
    second = evaluate(data, model, methods="occlusion", **options)
    assert set(second.methods) == {"random", "shuffled", "occlusion"}
    assert second.methods["shuffled"] == first.methods["shuffled"]
    assert second.methods["shuffled"].label == "Shuffled"
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert all(f"| {label} |" in page for label in ("Random", "Shuffled", "Leave-one-out"))
    (tmp_path / "parts" / "shuffled" / "000000.parquet").unlink()  # as of a method that was not finished
    assert set(evaluate(data, model, methods="occlusion", **options).methods) == {"random", "occlusion"}


def test_settings_that_differ_late_show_where(tmp_path):
    same = "a text that is long enough to be cut " * 3
    with Store(tmp_path, {"data": same + "one"}).opened():
        pass
    with pytest.raises(InputError, match=r'data: \.\.\..* one" there, \.\.\..* two" now'):
        with Store(tmp_path, {"data": same + "two"}).opened():
            pass


def test_files_that_a_killed_run_left_are_removed(tmp_path):
    with Store(tmp_path, {}).opened():
        pass
    left = tmp_path / ".0123456789abcdef.tmp"
    left.write_bytes(b"half a report")
    with Store(tmp_path, {}).opened():
        assert not left.exists()


def test_methods_that_workers_cannot_import_are_refused_before_the_work(model, data, tmp_path):
    local = Method("local", "Local", True, "", lambda problem: [])
    with pytest.raises(OptionError, match="'local' cannot be sent to worker processes .*workers=1"):
        evaluate(data, model, out=tmp_path / "out", methods=[local], workers=2)
    assert not (tmp_path / "out").exists()


def test_data_that_the_results_would_replace_are_refused(model, tmp_path):
    with pytest.raises(OptionError, match="would be replaced"):
        evaluate(tmp_path / "results.parquet", model, out=tmp_path, methods="random")


def test_a_text_that_cannot_be_read_is_named_by_its_line(model, tmp_path):
    data = tmp_path / "x.csv"
    data.write_text("text\nfine\n\n" + "word " * 300 + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 4 of .*x.csv has 302 tokens"):
        evaluate(data, model, out=tmp_path / "out", methods="random")


def test_texts_that_are_cut_or_unknown_are_warned_of(model, tmp_path):
    data = tmp_path / "x.csv"
    data.write_text("text\nfine\n" + "word " * 300 + "\n\u4dc0 \u4dc1\n", encoding="utf-8")
    with pytest.warns(UserWarning) as caught:
        evaluate(data, model, out=tmp_path / "out", methods="random", metrics="aopc", truncate=True)
    said = [str(warning.message) for warning in caught]
    assert any("line 3 of" in text and "was cut to the model's 64 positions" in text for text in said), said
    assert any("line 4 of" in text and "unknown to the tokenizer" in text for text in said), said


def test_a_model_that_chooses_no_class_is_refused_before_its_labels_are_read(tmp_path):
    one = models.classifier(vocab=models.WORD_PIECES, labels=1, dtype=torch.float32)
    data = tmp_path / "x.csv"
    data.write_text("text,label\nfine,0.7\n", encoding="utf-8")
    with pytest.raises(InputError, match="the model is one of regression"):
        evaluate(data, DecompX(one, models.word_piece()), out=tmp_path / "out", methods="random")
