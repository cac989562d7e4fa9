"""Masked language models: which token fits at a mask."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...errors import InputError
from ...result.readings import Prediction
from ..encoded import Encoded
from .columns import Asked, Column, Direction, Outputs, Question, check_count, directions, with_own_names
from .places import name_of_token, resolve_places
from .vocabulary import Vocabulary


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
        self.vocabulary = Vocabulary(tokenizer)

    def check(self, question: Question, count: int) -> None:
        """Refuse targets that are a token at no place, and a ``top_k`` that is no number.

        Raises:
            InputError: names the argument.
        """
        self.keeps(question)
        if question.targets is not None:
            directions(question.targets, partial(self._token_somewhere, count=count), self.vocabulary.name)

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

    def gives(self, encoded: Encoded, question: Question) -> Sequence[int] | None:
        """None."""
        return None

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
            names = self.vocabulary.own_names(found)
            likely = zip(names, best.probabilities[n].tolist(), found, strict=True)
            predictions += [Prediction(name, score, position, output, place) for name, score, output in likely]
            if question.targets is None:
                asked = [Direction(name, {output: 1.0}) for name, output in zip(names, found, strict=True)]
            else:
                token = partial(self._token, count=outputs.count, after_space=_after_space(encoded, position))
                asked = directions(question.targets, token, self.vocabulary.name)
            columns += [one.at(position, place) for one in asked]
        return Asked(with_own_names(columns), predictions=tuple(predictions))

    def _token(self, key: Any, *, count: int, after_space: bool) -> int:
        return self.vocabulary.token(key, count=count, after_space=after_space, place="a mask")

    def _token_somewhere(self, key: Any, *, count: int) -> int:
        """A word may be one token after a space and several without it, or the other way round."""
        try:
            return self._token(key, count=count, after_space=True)
        except InputError as error:
            try:
                return self._token(key, count=count, after_space=False)
            except InputError:
                raise error from None

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
