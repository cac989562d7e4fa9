"""Masked language models: which token fits at a mask."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...errors import InputError, shown
from ...result.readings import Prediction
from ...result.tokens import readable_tokens
from ..encoding import Encoded
from .columns import Asked, Column, Direction, Outputs, Question, check_count, directions, index_of, with_own_names
from .places import name_of_token, resolve_places

#: So many pieces of a word are named.
_PIECES = 8


class FillMask:
    """What the model gives at each mask, or at other places.

    Args:
        tokenizer: finds the ids of tokens; without one, targets are ids.
        mask_id: of the mask; ``None`` where it is not known.
    """

    takes: tuple[str, ...] = ("targets", "at", "top_k")

    def __init__(self, tokenizer: Any, mask_id: int | None) -> None:
        self.tokenizer = tokenizer
        self.mask_id = mask_id

    def notice(self, question: Question) -> str | None:
        """Nothing."""
        return None

    def reads(self, encoded: Encoded, question: Question) -> Sequence[int]:
        """The masks, or the places that are named."""
        return self._positions(encoded, question.at)

    def keeps(self, question: Question) -> int | None:
        """The likeliest."""
        count = 1 if question.top_k is None else question.top_k
        check_count("top_k", count)
        return count

    def ask(self, encoded: Encoded, outputs: Outputs, question: Question) -> Asked:
        """Columns of the likeliest token, or of the ``top_k`` likeliest, or of ``targets``, at each place.

        Raises:
            InputError: if there is no mask and no ``at``, or for a target that is no single token.
        """
        count = self.keeps(question) or 1
        positions = self._positions(encoded, question.at)
        places = _place_names(encoded, positions, self._masks(encoded))
        best = outputs.best(positions, min(count, outputs.count))
        columns: list[Column] = []
        predictions: list[Prediction] = []
        for n, (position, place) in enumerate(zip(positions, places, strict=True)):
            found = best.outputs[n].tolist()
            names = self._own_names(found)
            likely = zip(names, best.probabilities[n].tolist(), found, strict=True)
            predictions += [Prediction(name, score, position, output, place) for name, score, output in likely]
            if question.targets is None:
                asked = [Direction(name, {output: 1.0}) for name, output in zip(names, found, strict=True)]
            else:
                token = partial(self._token, encoded=encoded, position=position, count=outputs.count)
                asked = directions(question.targets, token, self._name)
            columns += [one.at(position, place) for one in asked]
        return Asked(with_own_names(columns), predictions=tuple(predictions))

    def _masks(self, encoded: Encoded) -> list[int]:
        return [n for n, token in enumerate(encoded.inputs["input_ids"].tolist()) if token == self.mask_id]

    def _positions(self, encoded: Encoded, at: Any) -> list[int]:
        masks = self._masks(encoded)
        if at is not None:
            places = resolve_places(at, encoded, readable=masks)
            return list(dict.fromkeys(token for place in places for token in place.tokens))
        if masks:
            return masks
        written = getattr(self.tokenizer, "mask_token", None)
        way = f"write {written} where a word is to be filled in" if written else "give at=, as the mask is not known"
        cut = " (it may have been cut off with the end of the input)" if "truncated_from" in encoded.about else ""
        raise InputError(f"there is no mask in the input{cut}: {way}, or name tokens by at=")

    def _token(self, key: Any, encoded: Encoded, position: int, count: int) -> int:
        """The id of a token that is named by its text or its id."""
        if isinstance(key, str):
            return self._token_of_text(key, _after_space(encoded, position))
        index = index_of(key)
        if index is None:
            raise InputError(f"targets holds {shown(key)}: use a token's text or id, or a mapping of these to weights")
        if not 0 <= index < count:
            raise InputError(f"there is no token {index}: the vocabulary has the ids 0 to {count - 1}")
        return index

    def _token_of_text(self, text: str, after_space: bool) -> int:
        """A word as it would be read at the place, or a token exactly as the tokenizer writes it."""
        tokenizer = self.tokenizer
        if not hasattr(tokenizer, "tokenize") or not hasattr(tokenizer, "convert_tokens_to_ids"):
            raise InputError(f"targets holds {text!r}, and there is no tokenizer to find its id: give token ids")
        if not text.strip():
            raise InputError(f"targets holds {text!r}: use a token's text or id")
        read = f" {text}" if after_space and not text[0].isspace() else text
        pieces = list(tokenizer.tokenize(read))
        unknown = getattr(tokenizer, "unk_token", None)
        if len(pieces) == 1 and pieces[0] != unknown:
            return int(tokenizer.convert_tokens_to_ids(pieces[0]))
        if text in tokenizer.get_vocab():
            return int(tokenizer.convert_tokens_to_ids(text))
        if not pieces or unknown in pieces:
            raise InputError(
                f"the token {text!r} in targets is not in the vocabulary: use another word, or a token's id"
            )
        listed = ", ".join(map(repr, pieces[:_PIECES])) + (", ..." if len(pieces) > _PIECES else "")
        raise InputError(
            f"{text!r} in targets is {len(pieces)} tokens ({listed}), and a mask is one: name one of them exactly so, "
            "or another word"
        )

    def _names(self, ids: Sequence[int]) -> list[str]:
        """Tokens as they are read; ids where nobody knows."""
        if not hasattr(self.tokenizer, "convert_ids_to_tokens"):
            return [str(i) for i in ids]
        special = set(getattr(self.tokenizer, "all_special_ids", ()))
        tokens = [str(i if t is None else t) for i, t in zip(ids, self._tokens(ids), strict=True)]
        # One by one: the bytes of one are no part of the next.
        read = (readable_tokens([token], [i in special])[0] for token, i in zip(tokens, ids, strict=True))
        return [
            token if token.startswith("##") else name.strip() or token for token, name in zip(tokens, read, strict=True)
        ]

    def _tokens(self, ids: Sequence[int]) -> Sequence[str | None]:
        """As the tokenizer writes them; ``None`` for what only the model's padded vocabulary has."""
        return list(self.tokenizer.convert_ids_to_tokens(list(ids)))

    def _own_names(self, ids: Sequence[int]) -> list[str]:
        """The same; tokens that are read alike are named as the tokenizer writes them."""
        names = self._names(ids)
        alike = {name for name in names if names.count(name) > 1}
        written = map(str, self._tokens(ids)) if alike else names
        return [token if name in alike else name for name, token in zip(names, written, strict=True)]

    def _name(self, token_id: int) -> str:
        return self._names([token_id])[0]


def _place_names(encoded: Encoded, positions: Sequence[int], masks: Sequence[int]) -> list[str]:
    """Masks by their token, and by which of several they are; other tokens as they are read."""
    names = []
    for position in positions:
        if position not in masks:
            names.append(name_of_token(encoded, position))
        else:
            number = f" {masks.index(position) + 1}" if len(masks) > 1 else ""
            names.append(f"{encoded.tokens[position]}{number}")
    return names


def _after_space(encoded: Encoded, position: int) -> bool:
    """Whether a word at this place follows a space: so it is read, and so byte-level tokenizers tell it apart.

    Where the text is not known, a word does, unless it is the first.
    """
    span = encoded.spans[position]
    if span is None or not encoded.texts:
        return position > 0 and not encoded.special[position - 1]
    text = encoded.texts[span[0]]
    return text[span[1] : span[1] + 1].isspace() or text[max(span[1] - 1, 0) : span[1]].isspace()
