"""Models that peft adapted: every kind of adapter that changes weights, wherever it was put, and adapters' folders."""

from __future__ import annotations

import copy
import json

import models
import peft
import pytest
import task_models
import torch
from models import classifier, logits_of, token_ids, unchanged
from refusals import refuses
from torch import nn
from transformers import AutoModelForTokenClassification

from decompx_fast import DecompX
from decompx_fast.errors import ModelLoadError, UnsupportedModelError
from decompx_fast.optional import MissingPackageError

#: Rounding of two layers in float64.
EXACT = 1e-12


def lora(**options) -> peft.LoraConfig:
    return peft.LoraConfig(**{"task_type": "SEQ_CLS", "target_modules": ["query"], "r": 2} | options)


def ia3() -> peft.IA3Config:
    return peft.IA3Config(
        task_type="SEQ_CLS", target_modules=["key", "output.dense"], feedforward_modules=["output.dense"]
    )


ADAPTERS = {
    "attention": lambda: lora(target_modules=["query", "value"]),
    "every linear layer": lambda: lora(target_modules="all-linear"),
    "head": lambda: lora(target_modules=["dense"]),
    "word embeddings": lambda: lora(target_modules=["word_embeddings", "query"]),
    "other embeddings": lambda: lora(target_modules=["position_embeddings", "token_type_embeddings"]),
    "single words": lambda: lora(trainable_token_indices={"word_embeddings": [7, 8]}),
    "tuned embeddings and norms": lambda: lora(modules_to_save=["word_embeddings", "LayerNorm", "classifier"]),
    "the embedding block": lambda: lora(modules_to_save=["embeddings", "classifier"]),
    "biases": lambda: lora(bias="all"),
    "norms": lambda: peft.LNTuningConfig(task_type="SEQ_CLS", target_modules=["LayerNorm"]),
    "magnitudes": lambda: lora(use_dora=True),
    "scales": ia3,
}


def adapted(config, family: str = "bert", **options) -> nn.Module:
    """In train mode, as after training."""
    model = peft.get_peft_model(classifier(family, **options), config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(0.1 * noise.to(parameter.dtype))
    return model.train()


def gap(explainer: DecompX, model: nn.Module) -> float:
    """Of the scores' sum to the logits in eval mode."""
    ids = token_ids()
    expected = logits_of(copy.deepcopy(model).eval(), ids)[0]
    return (explainer.explain(ids[0].tolist()).scores.sum(0) - expected).abs().max().item()


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapted_models_are_explained_as_they_are(name, family):
    model = adapted(ADAPTERS[name](), family)
    plain = logits_of(classifier(family), token_ids())
    assert (logits_of(copy.deepcopy(model).eval(), token_ids()) - plain).abs().max() > 1e-3, (
        "the adapter does something"
    )
    with unchanged(model):
        for engine in ("reference", "forward"):
            assert gap(DecompX(model, engine=engine), model) < EXACT


@pytest.mark.parametrize("name", ["attention", "tuned embeddings and norms", "norms"])
def test_an_adapter_may_be_switched_off_and_changed(name):
    model = adapted(ADAPTERS[name]())
    explainer, plain = DecompX(model), DecompX(classifier())
    model.add_adapter("other", ADAPTERS[name]())
    ids = token_ids()[0].tolist()
    first = explainer.explain(ids).scores
    with model.disable_adapter():
        assert (explainer.explain(ids).scores - plain.explain(ids).scores).abs().max() < EXACT
    model.set_adapter("other")
    assert gap(explainer, model) < EXACT
    model.set_adapter("default")
    assert torch.equal(explainer.explain(ids).scores, first)


def test_learned_prompts_are_refused():
    config = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2)
    model = peft.get_peft_model(classifier(), config)
    with pytest.raises(UnsupportedModelError, match="learned prompts"):
        DecompX(model)


# Folders.


@pytest.fixture
def base(tmp_path):
    """A model that knows no classes yet, and its tokenizer."""
    folder = tmp_path / "base"
    classifier(dtype=torch.float32, vocab=models.WORD_PIECES, hidden_size=8).bert.save_pretrained(folder)
    models.word_piece().save_pretrained(folder)
    return folder


def save_adapter(base, folder, config) -> nn.Module:
    """An adapter for three classes that was trained on ``base``; gives the model."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    model = peft.get_peft_model(model, config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("name", ["attention", "tuned embeddings and norms", "norms"])
def test_an_adapters_folder_is_loaded_with_its_base(base, tmp_path, name):
    model = save_adapter(base, tmp_path / "adapter", ADAPTERS[name]())
    explainer = DecompX.from_pretrained(tmp_path / "adapter")
    explanation = explainer.explain("a good film")
    assert len(explainer.labels) == 3
    ids = torch.tensor([explainer.tokenizer("a good film")["input_ids"]])
    assert (explanation.scores.sum(0) - logits_of(model, ids)[0]).abs().max() < 1e-5
    assert not any("lora" in name for name, _ in explainer.model.named_modules()), "merged"


def test_adapters_folders_that_cannot_be_loaded(base, tmp_path, monkeypatch):
    folder = tmp_path / "adapter"
    save_adapter(base, folder, lora())
    config = json.loads((folder / "adapter_config.json").read_text())

    def cannot_load(*match, error=ModelLoadError, **changes):
        (folder / "adapter_config.json").write_text(json.dumps(config | changes))
        refuses(DecompX.from_pretrained, folder, match=match, error=error)

    cannot_load("needs its base model", "there is no", base_model_name_or_path=str(tmp_path / "none"))
    cannot_load("does not name its base model", base_model_name_or_path=None)
    cannot_load("cannot be read", peft_type="UNHEARD_OF")
    cannot_load("cannot be loaded", target_modules=["no_such_module"])
    (folder / "adapter_model.safetensors").write_bytes(b"nothing")
    cannot_load("cannot be read")
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    cannot_load("needs peft", "pip install peft", error=MissingPackageError)


def test_an_adapter_without_a_head_needs_a_base_that_has_one(base, tmp_path):
    save_adapter(base, tmp_path / "adapter", lora(task_type=None))
    refuses(
        DecompX.from_pretrained,
        tmp_path / "adapter",
        match=("is no trained classifier", "classifier.weight"),
        error=ModelLoadError,
    )


def test_an_adapter_says_its_task(tmp_path):
    base, folder = tmp_path / "base", tmp_path / "adapter"
    task_models.model("fill-mask", dtype=torch.float32).save_pretrained(base)
    models.word_piece().save_pretrained(base)
    tagger = AutoModelForTokenClassification.from_pretrained(base, num_labels=3)
    adapted = peft.get_peft_model(tagger, lora(task_type="TOKEN_CLS")).eval()
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.2)
    adapted.save_pretrained(folder)
    explainer = DecompX.from_pretrained(folder)
    assert explainer.task == "token-classification"
    explanation = explainer("a good film", at=2, targets=[0, 1, 2])
    with torch.no_grad():
        expected = adapted(**models.word_piece()("a good film", return_tensors="pt")).logits[0, 2]
    assert (explanation.totals - expected).abs().max() < 1e-5  # float32
