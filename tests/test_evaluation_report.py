"""The report says what it compares: every method and metric is defined where its numbers stand."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import evaluation_samples
import pytest
import torch
from click.testing import CliRunner

from decompx_fast.cli import cli
from decompx_fast.errors import OptionError
from decompx_fast.evaluation import METRICS, Method, all_methods, evaluate
from decompx_fast.models.demo import INSTALL


def test_report_defines_its_methods_and_metrics(tmp_path) -> None:
    own = Method("mine", "Mine", True, "half", lambda problem: [torch.zeros(len(one)) + 0.5 for one in problem.inputs])
    (tmp_path / "model").mkdir()
    model = evaluation_samples.save_classifier(tmp_path / "model")
    data = evaluation_samples.write_texts(tmp_path / "texts.csv", 12)
    evaluate(data, model, out=tmp_path / "out", methods=["random", "raw-attention", own], metrics=["aopc", "accuracy"])
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    _, _, methods = page.partition("## Methods")
    assert all_methods()["raw-attention"].about in methods
    assert re.search(r"^- Random \(`random`, magnitudes\): Uniform random numbers, .*\.$", methods, re.M)
    assert "- Mine (`mine`): a method of the user's own." in methods
    assert "- LIME" not in methods
    assert METRICS["aopc"].about in page.partition("## Metrics")[2]


def test_methods_are_compared_with_the_one_that_is_named(tmp_path) -> None:
    (tmp_path / "model").mkdir()
    model = evaluation_samples.save_classifier(tmp_path / "model")
    data = evaluation_samples.write_texts(tmp_path / "texts.csv", 12)
    options = {"methods": "random,occlusion", "metrics": "aopc", "out": tmp_path / "out"}
    found = evaluate(data, model, reference="occlusion", **options)
    assert found.setting.reference == "occlusion" and found.methods["random"].differences
    assert not evaluate(data, model, **options).methods["random"].differences  # DecompX is not there
    with pytest.raises(OptionError, match="reference='lime': name one of the methods, random, occlusion"):
        evaluate(data, model, reference="lime", **options)


def test_what_says_nothing_is_null_in_json(tmp_path) -> None:
    (tmp_path / "model").mkdir()
    model = evaluation_samples.save_classifier(tmp_path / "model")
    (tmp_path / "one.csv").write_text("text\nfilm\n", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        evaluate(tmp_path / "one.csv", model, out=tmp_path / "out", methods="occlusion", metrics="aopc", sanity=1)

    def refuse(name: str) -> float:
        raise AssertionError(name)

    summary = json.loads((tmp_path / "out" / "summary.json").read_text(), parse_constant=refuse)
    estimates = summary["methods"]["occlusion"]["estimates"]
    assert estimates["typo-stability"] == {"mean": None, "low": None, "high": None}  # of one word
    assert "| – |" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


def test_help_names_every_method_and_metric() -> None:
    text = " ".join(CliRunner().invoke(cli, ["evaluate", "--help"], terminal_width=100).output.split())
    for option, names in (("methods", all_methods()), ("metrics", METRICS)):
        listed = re.search(rf"--{option} NAMES {option.capitalize()}, with commas between: (.*?)\. ", text)[1]
        assert listed.replace("- ", "-").split(", ") == list(names)


def test_what_the_demo_asks_to_install_is_what_the_extra_asks_for() -> None:
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'demo = ["{INSTALL.removeprefix("pip install ")}"' in project
