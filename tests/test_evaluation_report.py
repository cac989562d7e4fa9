"""The report says what it compares: every method and metric is defined where its numbers stand."""

from __future__ import annotations

import re
from pathlib import Path

import evaluation_samples
import torch
from click.testing import CliRunner

from decompx_fast.cli import cli
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


def test_help_names_every_method_and_metric() -> None:
    text = " ".join(CliRunner().invoke(cli, ["evaluate", "--help"], terminal_width=100).output.split())
    for option, names in (("methods", all_methods()), ("metrics", METRICS)):
        listed = re.search(rf"--{option} NAMES {option.capitalize()}, with commas between: (.*?)\. ", text)[1]
        assert listed.replace("- ", "-").split(", ") == list(names)


def test_what_the_demo_asks_to_install_is_what_the_extra_asks_for() -> None:
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'demo = ["{INSTALL.removeprefix("pip install ")}"' in project
