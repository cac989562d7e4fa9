"""What gives an input one vector, for a similarity: an encoder of texts, or one of texts and one of pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from ..engines.shape import ModelShape
from ..errors import InputError
from ..linearize.architectures import unwrap
from ..linearize.copies import Copies
from ..linearize.linearization import specification, taken_inputs
from ..linearize.sentence import SentenceEncoder
from ..linearize.spec import InputLimits
from ..linearize.towers import TwoTowers
from ..request.encoded import Encoded
from ..request.encoding import Reader
from ..request.pictures import PictureReader
from ..request.prepared import MODEL_INPUTS


class Model(Protocol):
    """What is explained: a model, what prepares its inputs, and where copies of it are kept."""

    model: nn.Module
    tokenizer: Any
    copies: Copies
    copies_of_pictures: Copies

    @property
    def device(self) -> torch.device:
        """Where the model is."""


@dataclass(frozen=True)
class Encoder:
    """What gives the vectors of one side.

    Attributes:
        model: of one vector for an input.
        copies: where the copy of it that is run is kept.
        shape: its sizes.
        reader: of its inputs.
    """

    model: nn.Module
    copies: Copies
    shape: ModelShape
    reader: Reader | PictureReader


def check_encoder(model: nn.Module) -> None:
    """Raise an InputError for a model that gives no vector, saying what does."""
    model = unwrap(model)
    if not isinstance(model, (SentenceEncoder, TwoTowers)):
        raise InputError(
            f"{type(model).__name__} gives classes and not one vector for a text: similarity needs a sentence encoder, "
            "or an encoder without a head, with its pooling as by pooling='mean' (--pooling mean), or a model of texts "
            "and pictures such as CLIP"
        )


def encoders_of(explainer: Model, *, truncate: bool) -> tuple[Encoder, Encoder]:
    """What gives the vectors of ``a`` and of ``b``: one encoder of texts, or one of texts and one of pictures.

    Raises:
        UnsupportedModelError: if the model is not what its architecture says.
    """
    model, tokenizer = unwrap(explainer.model), explainer.tokenizer
    if not isinstance(model, TwoTowers):
        spec = specification(explainer.model, explainer.copies)
        reader = text_reader(explainer.model, tokenizer, spec.limits, truncate=truncate, device=explainer.device)
        encoder = Encoder(explainer.model, explainer.copies, ModelShape.from_spec(spec), reader)
        return encoder, encoder
    found = []
    for tower, copies in zip(model.towers(), (explainer.copies, explainer.copies_of_pictures), strict=True):
        spec = specification(tower, copies)
        if spec.limits.picture is None:
            own = getattr(tokenizer, "tokenizer", tokenizer)
            one: Reader | PictureReader = text_reader(
                tower, own, spec.limits, truncate=truncate, device=explainer.device
            )
        else:
            one = PictureReader(getattr(tokenizer, "image_processor", None), spec.limits.picture)
        found.append(Encoder(tower, copies, ModelShape.from_spec(spec), one))
    return found[0], found[1]


def text_reader(
    model: nn.Module, tokenizer: Any, limits: InputLimits, *, truncate: bool, device: torch.device
) -> Reader:
    """A reader of texts for a model with these limits."""
    return Reader(
        tokenizer,
        limits.positions,
        sizes=limits.sizes,
        truncate=truncate,
        device=device,
        pad_to=limits.positions if limits.padded else None,
        takes=taken_inputs(model, MODEL_INPUTS),
    )


def texts_of(reader: Reader, items: Any, name: str) -> tuple[list[Encoded], bool]:
    """The texts of one argument, and whether it was a single one.

    Raises:
        InputError: for what cannot be read, naming the argument; a pair is none of them, since a sentence encoder makes
            no vector of two texts.
    """
    try:
        found, is_single = reader.read(items)
        texts = [encoded for encoded in found if isinstance(encoded, Encoded)]
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    if any(len(encoded.texts) > 1 for encoded in texts):
        raise InputError(f"{name} holds a pair of texts, as a tuple: give one text, or several as a list")
    return texts, is_single
