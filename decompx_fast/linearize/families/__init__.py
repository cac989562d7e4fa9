"""Which architectures can be explained: a short file of data for each family, and this register of them.

A family says which modules play which part (:mod:`..spec`); nothing in it computes. To add one, write its file and put
its ``FAMILIES`` here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..spec import ModelSpec
from . import (
    albert,
    alibi,
    bart,
    bert,
    bigbird,
    deberta,
    distilbert,
    gpt,
    llama,
    longformer,
    mixtures,
    mobilebert,
    modernbert,
    mpnet,
    neox,
    opt,
    pictures,
    prenorm,
    rotary,
    sounds,
    t5,
    xlm,
)

#: Models with a decoder that attends an encoder, and encoders of such.
ENCODER_DECODERS: dict[str, Callable[[Any], ModelSpec]] = {**bart.FAMILIES, **t5.FAMILIES}

#: What describes a model, by the name of its class in transformers.
FAMILIES: dict[str, Callable[[Any], ModelSpec]] = {
    **albert.FAMILIES,
    **alibi.FAMILIES,
    **bert.FAMILIES,
    **bigbird.FAMILIES,
    **deberta.FAMILIES,
    **distilbert.FAMILIES,
    **gpt.FAMILIES,
    **llama.FAMILIES,
    **mixtures.FAMILIES,
    **longformer.FAMILIES,
    **mobilebert.FAMILIES,
    **modernbert.FAMILIES,
    **mpnet.FAMILIES,
    **neox.FAMILIES,
    **opt.FAMILIES,
    **pictures.FAMILIES,
    **prenorm.FAMILIES,
    **rotary.FAMILIES,
    **sounds.FAMILIES,
    **xlm.FAMILIES,
    **ENCODER_DECODERS,
}
