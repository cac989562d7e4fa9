"""An output joined to its prompt: tokens after tokens, with their places in a text of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..errors import InputError
from ..result.words import Span
from .encoded import Encoded

#: So many tokens before an output are read with it, so that its first characters are those that stand there: some
#: tokenizers leave out the space at the beginning of a text.
_BEFORE = 4

#: What a tokenizer of this kind puts before a text by itself.
_SPACE = "\u2581"


def ids_of_text(tokenizer: Any, text: str, *, anew: bool = False) -> list[int]:
    """The tokens of a text that goes on: without special ones, and without a space that the tokenizer would add.

    Args:
        tokenizer: of the model.
        text: what follows.
        anew: whether it is a text of its own, which a decoder writes; some tokenizers have another vocabulary for it.

    Raises:
        InputError: without a tokenizer.
    """
    if tokenizer is None:
        raise InputError("a continuation that is a text needs a tokenizer: use DecompX(model, tokenizer), or token ids")
    if not text:
        return []
    if anew:
        try:
            found = tokenizer(text_target=text, add_special_tokens=False)["input_ids"]
        except TypeError as error:
            raise InputError(
                f"the tokenizer ({type(tokenizer).__name__}) takes no text_target, as Hugging Face tokenizers do, for "
                "what the model writes: give token ids"
            ) from error
        return [int(one) for one in found]
    # A tokenizer that begins every text with a space has written that of a text which begins with one.
    cut = text[1:] if text[0] == " " and _adds_space(tokenizer) else text
    found = tokenizer(cut or text, add_special_tokens=False)["input_ids"]
    return [int(one) for one in found]


def _adds_space(tokenizer: Any) -> bool:
    if not hasattr(tokenizer, "convert_ids_to_tokens"):
        return False
    first = tokenizer.convert_ids_to_tokens(list(tokenizer("a", add_special_tokens=False)["input_ids"]))
    return bool(first) and str(first[0]).startswith(_SPACE)


def with_output(prompt: Encoded, ids: Sequence[int], tokenizer: Any) -> Encoded:
    """A prompt and all but the last of the tokens that follow it.

    Args:
        prompt: of one text, or of token ids.
        ids: of the whole output.
        tokenizer: names the tokens; ``None``: they are named by their ids.
    """
    fed = list(ids[:-1])
    special_ids = set(getattr(tokenizer, "all_special_ids", ()))
    special = tuple(one in special_ids for one in ids)
    tokens = tuple(map(str, fed))
    if fed and hasattr(tokenizer, "convert_ids_to_tokens"):
        tokens = tuple(map(str, tokenizer.convert_ids_to_tokens(fed)))
    texts = prompt.texts
    spans: list[Span | None] = [None] * len(ids)
    if prompt.texts and hasattr(tokenizer, "decode"):
        text, spans = places_of_output(
            prompt.inputs["input_ids"].tolist()[-_BEFORE:], ids, special, tokenizer, len(texts)
        )
        texts = (*texts, text)
    inputs = {}
    for name, values in prompt.inputs.items():
        if name == "input_ids":
            more = torch.tensor(fed, dtype=torch.int64)
        elif name == "position_ids":
            more = values[-1] + torch.arange(1, len(fed) + 1)
        else:
            more = values[-1:].expand(len(fed))
        inputs[name] = torch.cat([values, more])
    return replace(
        prompt,
        inputs=inputs,
        tokens=prompt.tokens + tokens,
        spans=prompt.spans + tuple(spans[: len(fed)]),
        special=prompt.special + special[: len(fed)],
        texts=texts,
        words=prompt.words and prompt.words + (None,) * len(fed),
        continues=tuple(ids),
    )


def places_of_output(
    before: list[int], ids: Sequence[int], special: Sequence[bool], tokenizer: Any, segment: int
) -> tuple[str, list[Span | None]]:
    """The text of an output, and where each of its tokens is in it.

    The bytes of one character are tokens that all have its place.
    """

    def read(count: int) -> str:
        shown = [one for one, is_special in zip(ids[:count], special[:count], strict=True) if not is_special]
        return str(tokenizer.decode(before + shown, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    start = len(read(0))
    text = read(len(ids))[start:]
    spans: list[Span | None] = []
    begin = 0
    for n, is_special in enumerate(special):
        if is_special:
            spans.append(None)
            continue
        end = _agreeing(read(n + 1)[start:], text)
        if end > begin:
            spans.append((segment, begin, end))
            for k in range(n - 1, -1, -1):  # those before it whose characters only this one completes
                span = spans[k]
                if span is None or span[1] < span[2]:
                    break
                spans[k] = (segment, begin, end)
        else:
            spans.append((segment, begin, begin))
        begin = max(begin, end)
    return text, spans


def _agreeing(part: str, whole: str) -> int:
    """How many characters of a beginning are those of the whole: half a character is read as another."""
    count = min(len(part), len(whole))
    while not whole.startswith(part[:count]):
        count -= 1
    return count
