"""The tokens of a vocabulary by name: which id a text has, and how an id is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import InputError, shown
from ...result.tokens import readable_tokens, visible_whitespace
from .columns import index_of

#: So many pieces of a word are named.
_PIECES = 8


class Vocabulary:
    """Finds tokens by their texts, and names them.

    Args:
        tokenizer: a Hugging Face tokenizer; without one, tokens are ids.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def token(self, key: Any, *, count: int, after_space: bool, place: str) -> int:
        """The id of a token that is named by its text or its id.

        Args:
            key: as the user names it.
            count: how many ids there are.
            after_space: whether a text without a space before it is read as one that has it.
            place: what the token is for, for messages.

        Raises:
            InputError: for what is no single token.
        """
        if isinstance(key, str):
            return self._token_of_text(key, after_space, place)
        index = index_of(key)
        if index is None:
            raise InputError(f"targets holds {shown(key)}: use a token's text or id, or a mapping of these to weights")
        if not 0 <= index < count:
            raise InputError(f"there is no token {index}: the vocabulary has the ids 0 to {count - 1}")
        return index

    def _token_of_text(self, text: str, after_space: bool, place: str) -> int:
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
            f"{text!r} in targets is {len(pieces)} tokens ({listed}), and {place} is one: name one of them exactly so, "
            "or another word"
        )

    def names(self, ids: Sequence[int]) -> list[str]:
        """Tokens as they are read; ids where nobody knows."""
        if not hasattr(self.tokenizer, "convert_ids_to_tokens"):
            return [str(i) for i in ids]
        special = set(getattr(self.tokenizer, "all_special_ids", ()))
        tokens = [str(i if t is None else t) for i, t in zip(ids, self._tokens(ids), strict=True)]
        # One by one: the bytes of one are no part of the next.
        read = (readable_tokens([token], [i in special])[0] for token, i in zip(tokens, ids, strict=True))
        return [
            token if token.startswith("##") else self._blank(i) or name.strip() or token
            for i, token, name in zip(ids, tokens, read, strict=True)
        ]

    def _blank(self, token_id: int) -> str:
        """A token of white space as signs that are seen; empty for any other."""
        text = self.tokenizer.decode([token_id]) if hasattr(self.tokenizer, "decode") else ""
        return visible_whitespace(text) if text.isspace() else ""

    def _tokens(self, ids: Sequence[int]) -> Sequence[str | None]:
        """As the tokenizer writes them; ``None`` for what only the model's padded vocabulary has."""
        return list(self.tokenizer.convert_ids_to_tokens(list(ids)))

    def own_names(self, ids: Sequence[int]) -> list[str]:
        """The same; tokens that are read alike are named as the tokenizer writes them."""
        names = self.names(ids)
        alike = {name for name in names if names.count(name) > 1}
        written = map(str, self._tokens(ids)) if alike else names
        return [token if name in alike else name for name, token in zip(names, written, strict=True)]

    def name(self, token_id: int) -> str:
        return self.names([token_id])[0]
