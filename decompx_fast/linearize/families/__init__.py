"""Which architectures can be explained: a short file of data for each family, and this register of them.

A family says which modules play which part (:mod:`..spec`), with what :mod:`..reading` has for all of them. To add one,
write its file and put it here.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..spec import ModelSpec
from . import (
    albert,
    audio_spectrogram,
    bart,
    beit,
    bert,
    bigbird,
    bloom,
    clip,
    deberta,
    deberta_v2,
    dinov2,
    distilbert,
    electra,
    esm,
    eurobert,
    falcon,
    gpt2,
    gpt_neo,
    gptj,
    layoutlm,
    llama,
    longformer,
    megatron,
    mixtures,
    mobilebert,
    modernbert,
    mpnet,
    mpt,
    neox,
    nomic,
    opt,
    persimmon,
    phi,
    rembert,
    roberta_prelayernorm,
    roformer,
    stablelm,
    starcoder2,
    t5,
    vit,
    wav2vec2,
    wavlm,
    whisper,
    xlm,
)

#: What describes a model, by the name of its class in transformers.
Register = dict[str, Callable[[Any], ModelSpec]]


def _all_of(*modules: ModuleType) -> Register:
    return {name: family for module in modules for name, family in module.FAMILIES.items()}


#: Models with a decoder that attends an encoder, and encoders of such.
ENCODER_DECODERS = _all_of(bart, t5)

#: Classifiers of pictures.
PICTURES = _all_of(beit, clip, dinov2, vit)

#: Classifiers of sounds.
SOUNDS = _all_of(audio_spectrogram, wav2vec2, wavlm, whisper)

FAMILIES = {
    **_all_of(
        albert,
        bert,
        bigbird,
        bloom,
        deberta,
        deberta_v2,
        distilbert,
        electra,
        esm,
        eurobert,
        falcon,
        gpt2,
        gpt_neo,
        gptj,
        layoutlm,
        llama,
        longformer,
        megatron,
        mixtures,
        mobilebert,
        modernbert,
        mpnet,
        mpt,
        neox,
        nomic,
        opt,
        persimmon,
        phi,
        rembert,
        roberta_prelayernorm,
        roformer,
        stablelm,
        starcoder2,
        xlm,
    ),
    **PICTURES,
    **SOUNDS,
    **ENCODER_DECODERS,
}

#: Models with two heads: a masked language model, and whether a sentence follows. ELECTRA's has one.
TWO_HEADED = tuple(name for name in FAMILIES if name.endswith("ForPreTraining") and name not in electra.FAMILIES)
