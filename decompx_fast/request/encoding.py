"""Reading what the user wants explained: texts, pairs, token ids or a prepared encoding, each without padding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, shown
from ..result.failure import Failure, attempt
from ..result.tokens import BLANK
from ..result.words import Span
from .alignment import align
from .boxes import BOXES, check_boxes
from .chat import is_chat, read_chat
from .cutting import kept_of_long, taken
from .encoded import Encoded
from .forms import (
    is_ids,
    is_pair,
    is_single,
    is_split,
    n_axes,
    refusal,
    refuse_tables,
    several,
)
from .forms import whole_numbers as whole
from .notices import MANY_UNKNOWN, Notices
from .prepared import MODEL_INPUTS, Encoding
from .presplit import places_of_words

#: A fast tokenizer may not be called while another thread changes its truncation, which every call may do.
_tokenizing = threading.Lock()

#: Attributes of a tokenizer that hold the tokens which are no words. The unknown token is one only if it is these too.
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "pad_token_id", "mask_token_id")


class Reader:
    """Turns inputs into :class:`Encoded`.

    Args:
        tokenizer: a Hugging Face tokenizer, or ``None`` if only token ids and encodings will be given.
        max_positions: how many tokens the model has positions for; ``None`` for any number.
        sizes: of each of :data:`MODEL_INPUTS`, the first number that the model has no embedding for; of :data:`BOXES`
            for models that take them.
        truncate: cut longer inputs, with a warning, instead of refusing them.
        skip: give a :class:`Failure` for an input that cannot be read, and go on.
        device: the model's; tensors that the user prepared must be there, everything else is moved.
        split: texts are lists of words.
        prompts: inputs are what a language model goes on from, which the beginning of text alone may be.
        pairs: inputs are two texts each; what the model says of them, for the message where one is given.
        pad_to: texts are padded to so many tokens, which the model reads as any others; ``None``: to none.
        takes: of :data:`MODEL_INPUTS` those that the model takes; what else a tokenizer makes of a text is left out.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_positions: int | None,
        *,
        sizes: Mapping[str, int] | None = None,
        truncate: bool = False,
        skip: bool = False,
        device: torch.device | None = None,
        split: bool = False,
        prompts: bool = False,
        pairs: str | None = None,
        pad_to: int | None = None,
        takes: Sequence[str] = MODEL_INPUTS,
    ) -> None:
        self.split = split
        self.pad_to = pad_to
        self.prompts = prompts
        self.pairs = pairs
        self.takes = takes
        self.tokenizer = tokenizer
        self.max_positions = max_positions
        self.sizes = sizes or {}
        self.truncate = truncate
        self.skip = skip
        self.device = device
        self.notices = Notices(max_positions)
        ids = {name: getattr(tokenizer, name, None) for name in _SPECIAL_IDS}
        self.unknown_id = _unless_in(getattr(tokenizer, "unk_token_id", None), ids.values())
        self.special_ids = set(getattr(tokenizer, "all_special_ids", ())) - {self.unknown_id}
        self.mask_id = ids["mask_token_id"]

    def read(self, items: Any) -> tuple[Iterator[Encoded | Failure], bool]:
        """All of ``items``, lazily, and whether it was a single input.

        What is worth a warning in them is said once, when all have been read or the iterator is closed.

        Raises:
            InputError: for what cannot be read, naming which one it is.
        """
        if isinstance(items, Mapping):
            if self.pad_to is not None and "attention_mask" in items:
                raise InputError(
                    f"this model reads padding as it does other tokens: give input_ids padded to {self.pad_to} tokens "
                    "and no attention_mask, or the text itself"
                )
            taken = MODEL_INPUTS + ((BOXES,) if BOXES in self.sizes else ())
            encoding = Encoding(items, taken, self._check_device)
            return self._each(range(len(encoding)), lambda n, _: self._read_row(encoding, n)), encoding.is_single
        refuse_tables(items)
        if is_split(items) if self.split else is_single(items) or is_chat(items):
            return self._each([items], lambda n, item: self.read_one(item, "the input")), True
        return self._each(several(items), lambda n, item: self.read_one(item, f"input {n}", n)), False

    def _each(self, items: Iterable[Any], read: Callable[[int, Any], Encoded]) -> Iterator[Encoded | Failure]:
        try:
            for n, item in enumerate(items):
                yield attempt(partial(read, n, item), n, skip=self.skip)
        finally:
            self.notices.say()

    def read_one(self, item: Any, where: str, number: int = 0) -> Encoded:
        """One text, pair, or sequence of token ids; or of words."""
        if self.split:
            return self._read_words(item, where, number)
        if isinstance(item, str):
            return self._read_text((item,), where, number)
        if is_pair(item):
            return self._read_text(tuple(item), where, number)
        if is_chat(item):
            ids, special, spans, text = read_chat(self.tokenizer, item, where)
            chat: dict[str, Any] = {"special": special, "spans": spans, "texts": (text,) if text else ()}
            return self._finish({"input_ids": whole(ids, where)}, where, number, **chat)
        if is_ids(item):
            self._check_device(item, where)
            return self._finish({"input_ids": whole(item, where)}, where, number)
        raise refusal(item, where)

    def _read_text(self, texts: tuple[str, ...], where: str, number: int) -> Encoded:
        self._check_texts(texts, where)
        encoding = self._tokenize(texts, where)
        length = len(encoding["input_ids"])
        if self.truncate and self._is_too_long(length):
            encoding = self._tokenize(texts, where, truncation=True, max_length=self.max_positions)
        inputs = {name: whole(encoding[name], where) for name in self.takes if name in encoding}
        special = self._special(inputs["input_ids"], encoding.get("special_tokens_mask"))
        if all(special):
            raise InputError(
                f"{where} is a text of which the tokenizer keeps nothing ({_named(''.join(texts))}): there is nothing "
                "to explain"
            )
        spans = None
        if "offset_mapping" in encoding:
            spans = _spans(encoding, special, texts, self._names(inputs["input_ids"]))
        return self._finish(inputs, where, number, special=special, spans=spans, texts=texts, length=length)

    def _read_words(self, item: Any, where: str, number: int) -> Encoded:
        """Words that were split before, of one text or a pair."""
        if not is_split(item):
            raise InputError(
                f"{where} is {shown(item)}, and is_split_into_words=True: give the words of a text as a list of "
                "strings, or a pair of such lists as a tuple"
            )
        parts: tuple[list[str], ...] = tuple(map(list, item)) if isinstance(item, tuple) else (list(item),)
        texts = tuple(map(" ".join, parts))
        self._check_texts(texts, where)
        encoding = self._tokenize(parts, where, is_split_into_words=True)
        length = len(encoding["input_ids"])
        if self.truncate and self._is_too_long(length):
            limits = {"truncation": True, "max_length": self.max_positions}
            encoding = self._tokenize(parts, where, is_split_into_words=True, **limits)
        if not hasattr(encoding, "word_ids") or not getattr(encoding, "is_fast", False):
            raise InputError(
                f"the tokenizer ({type(self.tokenizer).__name__}) does not tell which word a token is of: words that "
                "were split before need a fast tokenizer; join them into a text"
            )
        inputs = {name: whole(encoding[name], where) for name in self.takes if name in encoding}
        special = self._special(inputs["input_ids"], encoding.get("special_tokens_mask"))
        words, spans = places_of_words(encoding, special, parts)
        return self._finish(
            inputs, where, number, special=special, spans=spans, texts=texts, length=length, words=words
        )

    def _check_texts(self, texts: Sequence[str], where: str) -> None:
        if self.tokenizer is None:
            raise InputError("texts need a tokenizer: use DecompX(model, tokenizer), or give token ids")
        for text in texts:
            if not text.strip():
                raise InputError(f"{where} is an empty text: there is nothing to explain")
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise InputError(f"{where} is not valid Unicode ({error.reason}): clean the text first") from error

    def _tokenize(self, texts: tuple[Any, ...], where: str, **options: Any) -> Mapping[str, Any]:
        """What the tokenizer says of one text or pair; any callable that gives ids will do."""
        wanted: dict[str, Any] = {"truncation": False, "max_length": None, "padding": False}
        if self.pad_to is not None:
            wanted |= {"max_length": self.pad_to, "padding": "max_length"}
        try:
            with _tokenizing:
                found = self.tokenizer(
                    *texts,
                    **wanted | options,
                    return_special_tokens_mask=True,
                    return_offsets_mapping=bool(getattr(self.tokenizer, "is_fast", False)),
                    verbose=False,
                )
        except Exception as error:
            raise InputError(
                f"the tokenizer ({type(self.tokenizer).__name__}) failed on {where}: {type(error).__name__}: {error}. "
                "It is called as a Hugging Face tokenizer is; without one, give token ids"
            ) from error
        if isinstance(found, Sequence) and is_ids(found):
            return {"input_ids": found}
        if not isinstance(found, Mapping) or "input_ids" not in found:
            raise InputError(
                f"the tokenizer ({type(self.tokenizer).__name__}) gave a {type(found).__name__} without input_ids for "
                f"{where}: it must give the token ids of one text, as Hugging Face tokenizers do"
            )
        if n_axes(found["input_ids"]) == 2:
            found = {name: value[0] for name, value in found.items() if name in (*MODEL_INPUTS, "special_tokens_mask")}
        lengths = {name: len(found[name]) for name in (*MODEL_INPUTS, "special_tokens_mask") if name in found}
        if len(set(lengths.values())) != 1:
            raise InputError(
                f"the tokenizer ({type(self.tokenizer).__name__}) gave parts of different lengths: {lengths}"
            )
        return found

    def _read_row(self, encoding: Encoding, n: int) -> Encoded:
        where = f"row {n} of the encoding"
        row, mask, words = encoding.row(n, where)
        given = row.pop("special_tokens_mask", mask)
        special = None if given is None else self._special(row["input_ids"], given)
        return self._finish(row, where, n, special=special, words=words)

    def _special(self, ids: Tensor, mask: Any = None) -> tuple[bool, ...]:
        """Which tokens are no part of the text: as the tokenizer says, else by their ids. Unknown words are a part."""
        if mask is None:
            return tuple(int(i) in self.special_ids for i in ids.tolist())
        flags = mask.tolist() if hasattr(mask, "tolist") else mask
        return tuple(bool(flag) and i != self.unknown_id for flag, i in zip(flags, ids.tolist(), strict=True))

    def _finish(
        self,
        inputs: Mapping[str, Tensor],
        where: str,
        number: int,
        *,
        special: tuple[bool, ...] | None = None,
        spans: tuple[Span | None, ...] | None = None,
        texts: tuple[str, ...] = (),
        length: int | None = None,
        words: tuple[int | None, ...] | None = None,
    ) -> Encoded:
        """Check, cut and name the tokens of one input, which had ``length`` tokens before its tokenizer cut it."""
        ids = inputs["input_ids"]
        length = len(ids) if length is None else length
        if len(ids) == 0:
            raise InputError(f"{where} has no tokens: there is nothing to explain")
        if self.pairs and _is_one_text(inputs, texts):
            raise InputError(
                f"{where} is one text, and this model says {self.pairs}: give a pair of texts as a tuple, "
                "(first, second)"
            )
        special = self._special(ids) if special is None else special
        if self._is_too_long(len(ids)):
            keep = self._kept(ids, special) if self.truncate else None
            if keep is None:
                raise self._too_long(len(ids), where)
            inputs = taken(inputs, keep)
            special = tuple(special[k] for k in keep)
            spans = spans and tuple(spans[k] for k in keep)
            words = words and tuple(words[k] for k in keep)
            ids = inputs["input_ids"]
        for name, values in inputs.items():
            self._check_size(name, values, where)
        if BOXES in inputs:
            check_boxes(inputs[BOXES], where)
        if all(special) and not self.prompts:
            raise InputError(f"{where} holds only special tokens: there is nothing to explain")
        tokens = self._names(ids)
        unknown = tuple(i == self.unknown_id for i in ids.tolist())
        if spans is None and texts:
            spans = align(tokens, special, unknown, texts, cut=length > len(ids))
        about = self._notice(where, length, special, unknown)
        return Encoded(inputs, tokens, spans or (None,) * len(ids), special, texts, number, about, words)

    def _kept(self, ids: Tensor, special: tuple[bool, ...]) -> list[int] | None:
        """Which tokens stay; a mask is a word of the text here."""
        separators = [flag and i != self.mask_id for flag, i in zip(special, ids.tolist(), strict=True)]
        return None if self.max_positions is None else kept_of_long(separators, self.max_positions)

    def _notice(self, where: str, length: int, special: Sequence[bool], unknown: Sequence[bool]) -> dict[str, Any]:
        """Keep what is worth a warning, and say it of the explanation."""
        about: dict[str, Any] = {}
        if length > len(special):
            self.notices.cut.add(where, f"{length} tokens")
            about["truncated_from"] = length
        words, missing = len(special) - sum(special), sum(unknown)
        if missing:
            about["unknown_tokens"] = missing
        if missing and missing >= MANY_UNKNOWN * words:
            self.notices.unknown.add(where, f"{missing} of {words} tokens")
        return about

    def _names(self, ids: Tensor) -> tuple[str, ...]:
        """How the tokenizer writes each token; its number where nobody knows."""
        if not hasattr(self.tokenizer, "convert_ids_to_tokens"):
            return tuple(str(i) for i in ids.tolist())
        return tuple(str(token) for token in self.tokenizer.convert_ids_to_tokens(ids.tolist()))

    def _is_too_long(self, length: int) -> bool:
        return self.max_positions is not None and length > self.max_positions

    def _check_size(self, name: str, values: Tensor, where: str) -> None:
        size = self.sizes.get(name)
        wrong = values[(values < 0) | (values >= size)] if size is not None else values[values < 0]
        if len(wrong):
            allowed = "numbers from 0" if size is None else f"embeddings for 0 to {size - 1}"
            hint = ": is this the model's own tokenizer?" if name == "input_ids" else ""
            raise InputError(f"{where} holds {int(wrong[0])} in {name}, and the model has {allowed}{hint}")

    def _check_device(self, value: Any, name: str) -> None:
        if isinstance(value, Tensor) and self.device is not None and value.device != self.device:
            raise InputError(
                f"{name} is on {value.device} and the model on {self.device}: move one of them, for example with "
                f".to({str(self.device)!r})"
            )

    def _too_long(self, length: int, where: str) -> InputError:
        return InputError(
            f"{where} has {length} tokens, and the model has positions for {self.max_positions}: pass truncate=True to "
            "cut it, split the text, or use a model with more positions"
        )


def _is_one_text(inputs: Mapping[str, Tensor], texts: tuple[str, ...]) -> bool:
    """Whether it is known that this is no pair: of token ids only what tells texts apart says so, if that is given."""
    types = inputs.get("token_type_ids")
    return len(texts) == 1 if texts else types is not None and bool((types == types[0]).all())


def _unless_in(token_id: Any, others: Iterable[Any]) -> int | None:
    return None if token_id in others else token_id


def _spans(
    encoding: Any, special: Sequence[bool], texts: tuple[str, ...], tokens: Sequence[str]
) -> tuple[Span | None, ...]:
    """Where the tokenizer says that its tokens are; a blank by itself has no width where it is no space of the text."""
    segments = encoding.sequence_ids(0) if hasattr(encoding, "sequence_ids") else [0] * len(special)
    spans: list[Span | None] = []
    for offset, segment, is_special, token in zip(encoding["offset_mapping"], segments, special, tokens, strict=True):
        if segment is None or is_special:
            spans.append(None)
            continue
        start, end = int(offset[0]), min(int(offset[1]), len(texts[segment]))
        if token == BLANK and not texts[segment][start:end].isspace():
            end = start
        spans.append((segment, start, end))
    return tuple(spans)


def _named(text: str) -> str:
    """The characters of a text by number, where they cannot be seen."""
    if any(char.isprintable() and not char.isspace() for char in text):
        return shown(text)
    chars = [f"U+{ord(char):04X}" for char in dict.fromkeys(text) if not char.isspace()]
    return ", ".join(chars[:5]) + (", ..." if len(chars) > 5 else "")
