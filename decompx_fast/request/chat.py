"""A chat as a prompt: its messages as the tokenizer's template writes them, which is how the model was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import InputError, shown
from ..result.words import Span


class Chat(NamedTuple):
    """The tokens of a chat.

    Attributes:
        ids: of all tokens.
        special: whether a token is the template's and of no message.
        spans: where tokens are in ``text``; ``None`` where that is not known.
        text: the messages, each on lines of its own; empty where nobody knows which tokens are theirs.
    """

    ids: list[int]
    special: tuple[bool, ...] | None
    spans: tuple[Span | None, ...] | None
    text: str


def is_chat(item: Any) -> bool:
    """Whether this is one list of messages."""
    return (
        isinstance(item, list)
        and len(item) > 0
        and all(isinstance(one, Mapping) and {"role", "content"} <= one.keys() for one in item)
    )


def read_chat(tokenizer: Any, messages: Sequence[Mapping[str, Any]], where: str) -> Chat:
    """The tokens of a chat, up to where the model goes on: a new turn of its own, or the last message if that is its.

    Raises:
        InputError: for content that is no text, and for a tokenizer without a template or that refuses the messages.
    """
    for message in messages:
        if not isinstance(message["content"], str):
            raise InputError(f"{where} has a message whose content is {shown(message['content'])}: give texts")
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"{where} is a list of messages, and the tokenizer ({type(tokenizer).__name__}) has no chat_template: "
            "give the prompt as one text"
        )
    goes_on = messages[-1]["role"] == "assistant"
    form = {"add_generation_prompt": not goes_on, "continue_final_message": goes_on}
    try:
        found = tokenizer.apply_chat_template(list(messages), tokenize=True, return_dict=True, **form)
        written = str(tokenizer.apply_chat_template(list(messages), tokenize=False, **form))
    except Exception as error:
        raise InputError(f"the chat template of the tokenizer failed on {where}: {error}") from error
    ids = [int(one) for one in found["input_ids"]]
    if not getattr(tokenizer, "is_fast", False):
        return Chat(ids, None, None, "")
    again = tokenizer(written, add_special_tokens=False, return_offsets_mapping=True)
    parts = _contents(written, [str(message["content"]) for message in messages])
    if list(again["input_ids"]) != ids or parts is None:
        return Chat(ids, None, None, "")
    spans = [_span(start, end, parts) for start, end in again["offset_mapping"]]
    text = "\n".join(written[start:end] for start, end in parts)
    return Chat(ids, tuple(span is None for span in spans), tuple(spans), text)


def _contents(written: str, contents: Sequence[str]) -> list[tuple[int, int]] | None:
    """Where each message is in what the template wrote, in their order; ``None`` if one is not there as it is."""
    found, cursor = [], 0
    for content in contents:
        core = content.strip()  # templates leave blanks at the ends out
        start = written.find(core, cursor)
        if start < 0:
            return None
        cursor = start + len(core)
        found.append((start, cursor))
    return found


def _span(start: int, end: int, parts: Sequence[tuple[int, int]]) -> Span | None:
    """A stretch of what the template wrote as one of the joined messages; ``None`` if it is of none."""
    base = 0
    for first, last in parts:
        if start < last and first < end:
            return 0, base + max(start, first) - first, base + min(end, last) - first
        base += last - first + 1
    return None
