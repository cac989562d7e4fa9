"""Architectures that are refused by name, with what is unusual in them."""

from __future__ import annotations

import re

import pytest
import torch
import transformers
from test_families import COMMON, XLM
from torch import nn
from transformers.models.auto import modeling_auto

from decompx_fast import UnsupportedModelError
from decompx_fast.linearize.architectures import supported_architectures
from decompx_fast.linearize.families.towers import PAIRED
from decompx_fast.linearize.families.unsupported import UNSUPPORTED
from decompx_fast.linearize.linearization import linearize

SMALL = {**COMMON, "num_hidden_layers": 1}


def model_of(name: str, **options) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(**(SMALL | options))
    return getattr(transformers, f"{name}ForSequenceClassification")(config).double().eval()


def found(name: str) -> type:
    """A class of transformers; one that needs a package that is not there stands for itself by name alone."""
    cls = getattr(transformers, name)
    return cls if issubclass(cls, nn.Module) else type(name, (nn.Module,), {})


@pytest.mark.parametrize("kind", ["IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION", "ZERO_SHOT_IMAGE_CLASSIFICATION"])
def test_every_class_that_transformers_has_for_pictures_and_sounds_is_explained_or_refused(kind):
    known = {*supported_architectures(), *PAIRED, *UNSUPPORTED}
    mapping = getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
    names = {name for each in mapping.values() for name in ([each] if isinstance(each, str) else each)}
    assert names - known == set()


def refusal(model: nn.Module) -> str:
    with pytest.raises(UnsupportedModelError) as found:
        linearize(model, {"input_ids": torch.arange(5, 12)[None]})
    return str(found.value)


def test_every_refused_name_is_one_of_transformers_and_not_supported():
    for name in UNSUPPORTED:
        assert issubclass(found(name), nn.Module)
    assert not set(UNSUPPORTED) & set(supported_architectures())


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_a_refused_architecture_is_told_why(name):
    # Nothing of a model is read before it is refused, so no weights need be made.
    model = nn.Module.__new__(found(name))
    nn.Module.__init__(model)
    message = refusal(model)
    assert message.startswith(f"{name} cannot be explained exactly: {UNSUPPORTED[name]}; supported are ")


def test_a_subclass_is_refused_for_the_reason_of_its_architecture():
    class Mine(transformers.FNetForSequenceClassification):
        pass

    model = Mine.__new__(Mine)
    nn.Module.__init__(model)
    assert refusal(model).startswith("Mine cannot be explained exactly: it mixes positions and features by a Fourier")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Deberta", {"talking_head": True}, r"deberta\.encoder\.layer\.0\.attention\.self has talking heads"),
        ("Flaubert", XLM | {"pre_norm": True}, r"norms before the branches \(pre_norm=True\)"),
        ("XLM", XLM | {"summary_use_proj": False}, r"no projection \(summary_use_proj\)"),
        ("XLM", XLM | {"summary_proj_to_labels": False}, r"24 numbers, not to the 3 labels \(summary_proj_to_labels\)"),
    ],
)
def test_an_option_that_is_not_exact_is_refused_by_name(name, options, message):
    assert re.search(message, refusal(model_of(name, **options)))


def test_xlm_with_padding_inside_of_the_text_is_refused():
    """It takes the number of padding tokens off the end, so that real tokens would be hidden."""
    model = model_of("XLM", **XLM)
    with pytest.raises(UnsupportedModelError, match="layer 0"):
        list(linearize(model, {"input_ids": torch.tensor([[5, 6, 1, 7, 8]])}).layers())


def test_a_norm_of_a_class_of_its_own_must_be_one():
    model = model_of("Deberta")
    norm = model.deberta.encoder.layer[0].output.LayerNorm
    norm.forward = lambda x: x * norm.weight + norm.bias
    message = refusal(model)
    assert re.search(r"layer\.0\.output\.LayerNorm.*where a LayerNorm \(it differs from one by", message)
