"""Which architectures can be explained: a short file of data for each family, and this register of them.

A family says which modules play which part (:mod:`..spec`), with what :mod:`..reading` has for all of them. To add one,
write its file and name it here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..spec import ModelSpec

#: What describes a model, by the name of its class in transformers.
Register = dict[str, Callable[[Any], ModelSpec]]


def _all_of(*files: str) -> Register:
    """What files of this folder describe."""
    modules = [import_module(f".{name}", __package__) for name in files]
    return {name: family for module in modules for name, family in module.FAMILIES.items()}


#: Models with a decoder that attends an encoder, and encoders of such.
ENCODER_DECODERS = _all_of("bart", "t5", "umt5")

#: Classifiers of pictures.
PICTURES = _all_of("beit", "clip", "data2vec_vision", "dinov2", "vit")

#: Classifiers of sounds.
SOUNDS = _all_of("audio_spectrogram", "wav2vec2", "wavlm", "whisper")

FAMILIES = {
    **_all_of(
        "albert",
        "bert",
        "bigbird",
        "bloom",
        "codegen",
        "deberta",
        "deberta_v2",
        "distilbert",
        "electra",
        "esm",
        "eurobert",
        "falcon",
        "flaubert",
        "gpt2",
        "gpt_neo",
        "gpt_oss",
        "gptj",
        "layoutlm",
        "llama",
        "longformer",
        "megatron",
        "mixtures",
        "mobilebert",
        "modernbert",
        "mpnet",
        "mpt",
        "neox",
        "nomic",
        "opt",
        "persimmon",
        "phi",
        "rembert",
        "roberta_prelayernorm",
        "roformer",
        "stablelm",
        "starcoder2",
        "xlm",
    ),
    **PICTURES,
    **SOUNDS,
    **ENCODER_DECODERS,
}

#: Models with two heads: a masked language model, and whether a sentence follows. ELECTRA's has one.
TWO_HEADED = tuple(name for name in FAMILIES if name.endswith("ForPreTraining") and name not in _all_of("electra"))

#: What describes a model without a head, by the name of its class: a language model's ends otherwise.
BARE_MODELS: Register = {
    name: family
    for name, family in FAMILIES.items()
    if name.endswith("Model") and not name.endswith(("LMHeadModel", "DoubleHeadsModel", "MTModel"))
}


def is_bare(model: Any) -> bool:
    """Whether a model is one of :data:`BARE_MODELS`."""
    return any(cls.__name__ in BARE_MODELS for cls in type(model).__mro__)
