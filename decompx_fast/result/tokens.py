"""Tokens as people read them: without the marks of their tokenizer, and bytes as the characters that they are."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

#: How SentencePiece writes a space.
BLANK = "\u2581"

#: How byte-level BPE writes a space and a line break.
_BYTE_SPACE, _BYTE_BREAK = "\u0120", "\u010a"


def _byte_characters() -> Iterator[tuple[str, int]]:
    """How byte-level BPE writes each byte: printable ones as themselves, the others from U+0100 on."""
    others = 0
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE:
            yield chr(byte), byte
        else:
            yield chr(0x100 + others), byte
            others += 1


#: The byte that a character of a byte-level token stands for.
BYTE_OF_CHAR = dict(_byte_characters())


#: How white space is shown that would not be seen.
_MARKS = {" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}


def visible_whitespace(text: str) -> str:
    """White space as signs, one for each character."""
    return "".join(_MARKS.get(char, _MARKS[" "]) for char in text) or "(empty)"


def readable_tokens(tokens: Sequence[str], special: Sequence[bool]) -> list[str]:
    """Each token as it would be in a text; special ones as they are, unless they are white space."""
    ordinary = [token for token, is_special in zip(tokens, special, strict=True) if not is_special]
    decoded = iter(_from_bytes(ordinary) or map(without_marks, ordinary))
    return [
        (_blanks(token) or token) if is_special else next(decoded)
        for token, is_special in zip(tokens, special, strict=True)
    ]


def _blanks(token: str) -> str:
    """The spaces and line breaks that a token is, if it is nothing else."""
    written = {_BYTE_SPACE: " ", _BYTE_BREAK: "\n", BLANK: " "}
    return "".join(written[char] for char in token) if all(char in written for char in token) else ""


def without_marks(token: str) -> str:
    """A token without what its tokenizer writes for "goes on" or "space before"; a space by itself is one."""
    if token.startswith("##") and len(token) > 2:
        return token[2:]
    if token == _BYTE_BREAK:
        return "\n"
    if token.startswith((_BYTE_SPACE, BLANK)):
        return token[1:] or " "
    return token


def _from_bytes(tokens: Sequence[str]) -> list[str] | None:
    """Tokens of byte-level BPE decoded; ``None`` if they are of another kind.

    They are of this kind if their bytes together are UTF-8 with characters beyond ASCII, and without controls other
    than a line break, which the letters of other alphabets would give. A token that is a part of a character is shown
    as that character, with which part.
    """
    if not all(char in BYTE_OF_CHAR for token in tokens for char in token):
        return None
    parts = [bytes(BYTE_OF_CHAR[char] for char in token) for token in tokens]
    try:
        text = b"".join(parts).decode("utf-8")
    except UnicodeDecodeError:
        return None
    if text.isascii() or any(unicodedata.category(char) == "Cc" and char != "\n" for char in text):
        return None
    owner = [place for place, char in enumerate(text) for _ in char.encode()]
    spans, stop = [], 0
    for part in parts:
        start, stop = stop, stop + len(part)
        spans.append((owner[start], owner[stop - 1] + 1) if part else (0, 0))
    total, seen = Counter(spans), Counter[tuple[int, int]]()
    readable = []
    for span in spans:
        seen[span] += 1
        word = text[slice(*span)]
        word = word if word.isspace() else word.removeprefix(" ")
        readable.append(word if total[span] == 1 else f"{word} ({seen[span]}/{total[span]})")
    return readable
