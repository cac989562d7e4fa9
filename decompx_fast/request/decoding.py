"""What the decoder of an encoder-decoder reads: an output so far, or the text itself, as tokens after the encoder's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..result.failure import Failure
from ..result.words import Span
from .encoded import Encoded
from .output import places_of_output
from .prepared import DECODER_IDS


def with_decoder(read: Encoded, start: Sequence[int], ids: Sequence[int], tokenizer: Any) -> Encoded:
    """A text for the encoder, and for the decoder what it starts with and all but the last of an output's tokens.

    Args:
        read: what the encoder reads.
        start: the ids that the decoder starts with, which the model does not choose.
        ids: of the whole output; empty: what the model says first.
        tokenizer: names the tokens; ``None``: they are named by their ids.
    """
    fed = [*start, *ids[:-1]]
    special_ids = set(getattr(tokenizer, "all_special_ids", ()))
    special = tuple(one in special_ids for one in ids)
    texts = read.texts
    spans: list[Span | None] = [None] * len(ids)
    if ids and read.texts and hasattr(tokenizer, "decode"):
        text, spans = places_of_output([], ids, special, tokenizer, len(texts))
        texts = (*texts, text)
    count = len(fed) - len(start)
    return _joined(
        replace(read, texts=texts, continues=tuple(ids)),
        fed,
        _names(fed, tokenizer),
        (*[None] * len(start), *spans[:count]),
        (*[True] * len(start), *special[:count]),
    )


def with_text_again(
    inputs: Iterator[Encoded | Failure], shift: Callable[[Tensor], Tensor], tokenizer: Any
) -> Iterator[Encoded | Failure]:
    """Each text for the encoder and, one place on, for the decoder, whose tokens are in texts of their own.

    Args:
        inputs: as the encoder reads them.
        shift: makes the decoder's ids ``[b, i]`` of the encoder's.
        tokenizer: names the first token; ``None``: it is named by its id.

    Raises:
        InputError: for an input that the model cannot be given.
    """
    for one in inputs:
        if isinstance(one, Failure):
            yield one
            continue
        fed = shift(one.inputs["input_ids"][None])[0].tolist()
        spans = [None if span is None else (span[0] + len(one.texts), *span[1:]) for span in one.spans[:-1]]
        tokens, special = (*_names(fed[:1], tokenizer), *one.tokens[:-1]), (True, *one.special[:-1])
        yield _joined(replace(one, texts=one.texts * 2, reads_again=True), fed, tokens, (None, *spans), special)


def _joined(
    read: Encoded, fed: Sequence[int], tokens: Sequence[str], spans: Sequence[Span | None], special: Sequence[bool]
) -> Encoded:
    """The encoder's tokens, and then the decoder's."""
    if set(read.inputs) != {"input_ids"}:
        more = ", ".join(sorted(set(read.inputs) - {"input_ids"}))
        raise InputError(f"input {read.number} holds {more}, which a model with a decoder does not take: leave it out")
    words = read.words
    if words is not None:  # those of a text that the decoder reads again are other words
        first = max((word for word in words if word is not None), default=-1) + 1
        again = [None, *(None if word is None else word + first for word in words[:-1])]
        words = (*words, *(again if len(again) == len(fed) else [None] * len(fed)))
    return replace(
        read,
        inputs={**read.inputs, DECODER_IDS: torch.tensor(fed, dtype=torch.int64)},
        tokens=(*read.tokens, *tokens),
        spans=(*read.spans, *spans),
        special=(*read.special, *special),
        words=words,
        encoder=len(read),
    )


def _names(ids: Sequence[int], tokenizer: Any) -> tuple[str, ...]:
    if not hasattr(tokenizer, "convert_ids_to_tokens"):
        return tuple(map(str, ids))
    return tuple(map(str, tokenizer.convert_ids_to_tokens(list(ids))))
