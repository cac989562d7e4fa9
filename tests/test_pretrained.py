"""Loading a model from a folder: what can be wrong with it, each with a message of its own."""

from __future__ import annotations

import json
import shutil
import warnings

import models
import pytest
import task_models
import torch
from models import classifier
from refusals import refuses
from transformers import BertModel, XLNetConfig, XLNetForSequenceClassification

from decompx_fast import DecompX
from decompx_fast.errors import InputError, ModelLoadError, OptionError, UnsupportedModelError


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    classifier(vocab=models.WORD_PIECES, dtype=torch.float32, hidden_size=4).save_pretrained(folder)
    models.word_piece().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(saved, tmp_path / "model")


def cannot_load(path, *match: str, error=ModelLoadError, **options) -> None:
    refuses(DecompX.from_pretrained, path, match=match, error=error, **options)


def test_a_saved_model_is_loaded(saved):
    for path in (saved, str(saved)):
        explanation = DecompX.from_pretrained(path).explain("a good film")
        assert explanation.metadata["model"] == str(saved)
        assert explanation.completeness_error < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_unless_asked_for(folder, dtype):
    classifier(dtype=dtype).save_pretrained(folder)
    assert DecompX.from_pretrained(folder).model.dtype == torch.float32
    assert DecompX.from_pretrained(folder, half=True).model.dtype == dtype


def test_paths_that_lead_nowhere(folder, tmp_path):
    cannot_load(tmp_path / "none", "there is no folder", "none")
    cannot_load("./none", "there is no folder './none'")
    cannot_load("~/none", "there is no folder '~/none'")
    cannot_load("", "path is empty")
    cannot_load(folder / "config.json", "is a file: give the folder")
    (tmp_path / "empty").mkdir()
    cannot_load(tmp_path / "empty", "has no config.json", "save_pretrained")
    cannot_load(None, "not from a NoneType")
    cannot_load(5, "not from a int")


@pytest.mark.parametrize("name", ["some-model", "someone/some-model", "a model", "a\0b"])
def test_ids_of_a_hub_that_is_out_of_reach(name):
    cannot_load(name, repr(name), "there is no folder of that name, and as the id of a model: ")


@pytest.mark.parametrize("content", [b"", b"\x00", b"not weights" * 100])
def test_weights_that_cannot_be_read(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    cannot_load(folder, "no classifier could be loaded", "header")


def test_weights_that_are_cut_off_or_missing(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    cannot_load(folder, "no classifier could be loaded", "incomplete")
    file.unlink()
    cannot_load(folder, "no classifier could be loaded", "model.safetensors")


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"model_type": "unheard-of"}'])
def test_configurations_that_cannot_be_read(folder, content):
    (folder / "config.json").write_text(content)
    cannot_load(folder, "no classifier could be loaded from")


def test_what_was_not_trained_to_classify(folder):
    BertModel(classifier(hidden_size=4).config).save_pretrained(folder)
    cannot_load(folder, "is no trained classifier", "classifier.bias, classifier.weight", "would be random")


def test_weights_of_another_shape(folder):
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    (folder / "config.json").write_text(json.dumps(config))
    cannot_load(folder, "do not fit its config.json", "classifier.bias is [2]", "expects [3]")


def test_architectures_that_are_not_supported(folder):
    sizes = {"d_model": 4, "n_head": 2, "n_layer": 1, "d_inner": 4, "vocab_size": 10}
    XLNetForSequenceClassification(XLNetConfig(**sizes)).save_pretrained(folder)
    cannot_load(folder, "XLNetForSequenceClassification cannot be explained", error=UnsupportedModelError)


@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_missing_tokenizer_is_not_made_up(tmp_path, family):
    classifier(family, dtype=torch.float32).save_pretrained(tmp_path)
    cannot_load(tmp_path, "was loaded, but not its tokenizer", "vocabulary is missing", "DecompX(model, tokenizer)")


@pytest.mark.parametrize("content", ["", "{"])
def test_a_tokenizer_that_cannot_be_read(folder, content):
    (folder / "tokenizer.json").write_text(content)
    cannot_load(folder, "was loaded, but not its tokenizer")


def test_code_in_a_checkpoint_is_not_run_and_not_asked_for(folder, monkeypatch):
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('this code was run')")
    monkeypatch.setattr("builtins.input", lambda prompt="": pytest.fail("asked on standard input"))
    cannot_load(folder, "custom code")


@pytest.mark.parametrize("device", ["no-such-device", []])
def test_devices_that_are_none(saved, device):
    cannot_load(saved, f"device={str(device)!r} is no device", "use 'cpu'", device=device, error=OptionError)


def test_devices_that_are_not_here(saved):
    cannot_load(saved, "device='cuda:99' cannot be used here", "use 'cpu'", device="cuda:99", error=InputError)


def test_loading_leaves_transformers_as_it_was(saved, capfd):
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    DecompX.from_pretrained(saved)
    cannot_load("some-model", "no classifier")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


# Tasks.


@pytest.mark.parametrize("task", task_models.HEADS)
def test_a_saved_model_has_its_task(tmp_path, task):
    task_models.model(task, dtype=torch.float32).save_pretrained(tmp_path)
    models.word_piece().save_pretrained(tmp_path)
    explainer = DecompX.from_pretrained(tmp_path)
    assert explainer.task == task and type(explainer.model) is task_models.HEADS[task]
    assert explainer(task_models.INPUTS[task]).completeness_error < 1e-5


def test_a_head_that_was_not_trained_is_named_in_a_warning(tmp_path):
    task_models.model("fill-mask", dtype=torch.float32).save_pretrained(tmp_path)
    models.word_piece().save_pretrained(tmp_path)
    with pytest.warns(
        UserWarning, match="for token classification was not trained: classifier.bias, classifier.weight"
    ):
        explainer = DecompX.from_pretrained(tmp_path, task="ner")
    assert explainer.task == "token-classification"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # its own head was trained
        assert DecompX.from_pretrained(tmp_path, task="fill-mask").task == "fill-mask"
    cannot_load(tmp_path, "task='nar' is no task", "'token-classification'", error=OptionError, task="nar")


def test_a_base_model_is_no_trained_model(tmp_path):
    BertModel(classifier(hidden_size=4).config).save_pretrained(tmp_path)
    models.word_piece().save_pretrained(tmp_path)
    cannot_load(tmp_path, "is no trained classifier", "would be random", "task=")


def test_an_encoder_without_weights_is_refused_whatever_the_task(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights.pop("bert.encoder.layer.0.output.dense.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    match = ("is no trained classifier", "bert.encoder.layer.0.output.dense.weight")
    cannot_load(folder, *match, task="text-classification")
