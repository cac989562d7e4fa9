"""What must hold between the fields of an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import torch

from ..errors import InputError
from .blocks import encoder_sources
from .kinds import EngineName, ProblemType, SourceUnit
from .readings import Answer, Entity, Prediction, read_all_back, read_back
from .words import Span

if TYPE_CHECKING:
    from .explanation import Explanation
    from .picture import Picture


def settle(explanation: Explanation) -> None:
    """Make the fields of a new explanation what they are documented to be, and check them against each other.

    Raises:
        InputError: if shapes, lengths, dtypes or spans do not fit together.
    """
    for name in ("tokens", "texts", "special", "targets", "target_ids", "labels"):
        value = getattr(explanation, name)
        if isinstance(value, str):
            raise InputError(f"{name} must be a tuple with one entry for each item, got the string {value!r}.")
        object.__setattr__(explanation, name, tuple(value))
    object.__setattr__(explanation, "spans", tuple(None if span is None else tuple(span) for span in explanation.spans))
    if explanation.stretches is not None:
        own = tuple(tuple(tuple(span) for span in of_one) for of_one in explanation.stretches)
        object.__setattr__(explanation, "stretches", own)
    if explanation.token_ids is not None:
        object.__setattr__(explanation, "token_ids", tuple(int(token_id) for token_id in explanation.token_ids))
    if explanation.bias_sites is not None:
        object.__setattr__(explanation, "bias_sites", tuple(explanation.bias_sites))
    object.__setattr__(explanation, "entities", read_all_back(Entity, explanation.entities))
    object.__setattr__(explanation, "predictions", read_all_back(Prediction, explanation.predictions))
    if explanation.answer is not None:
        object.__setattr__(explanation, "answer", read_back(Answer, explanation.answer))
    if explanation.word_ids is not None:
        object.__setattr__(explanation, "word_ids", tuple(explanation.word_ids))
    for name, allowed in (
        ("problem_type", ProblemType),
        ("source_unit", SourceUnit),
        ("engine", EngineName),
    ):
        check_choice(name, getattr(explanation, name), get_args(allowed))
    check_tensors(explanation)
    own_tensors(explanation)
    check_lengths(explanation)
    check_spans(explanation.spans, explanation.texts)
    for position, spans in enumerate(explanation.stretches or ()):
        check_spans(spans, explanation.texts, f"stretches[{position}]")
    check_picture(explanation.picture, len(explanation.tokens))


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise an InputError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")


def check_tensors(explanation: Explanation) -> None:
    """Raise an InputError unless every tensor is floating-point, on the CPU, of its shape; drop gradients."""
    classes, columns = len(explanation.labels), len(explanation.targets)
    shapes = {"target_logits": (columns,), "logits": (classes,), "scores": (len(explanation.tokens), columns)}
    for name in ("bias_token", "baseline_logits"):
        if getattr(explanation, name) is not None:
            shapes[name] = (columns,)
    for name, shape in shapes.items():
        value = getattr(explanation, name)
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or not value.is_floating_point():
            found = f"{value.dtype} on {value.device}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise InputError(f"{name} must be a floating-point tensor on the CPU, got {found}.")
        if tuple(value.shape) != shape:
            raise InputError(
                f"{name} must have the shape {list(shape)}, for {len(explanation.tokens)} tokens, {columns} "
                f"targets and {classes} classes, got {list(value.shape)}."
            )
        object.__setattr__(explanation, name, value.detach())
    if explanation.scores.dtype not in (torch.float32, torch.float64):
        raise InputError(f"scores must be float32 or float64, got {explanation.scores.dtype}: convert them first.")
    for name, value in explanation.component_shares.items():
        if tuple(value.shape) != shapes["scores"]:
            raise InputError(
                f"the component {name!r} must have the shape of scores, {list(shapes['scores'])}, got "
                f"{list(value.shape)}."
            )
    for site in explanation.bias_sites or ():
        if tuple(site.value.shape) != (columns,):
            raise InputError(
                f"the site {site.place!r} of layer {site.layer} must have the shape [{columns}], one value "
                f"for each target, got {list(site.value.shape)}."
            )


def own_tensors(explanation: Explanation) -> None:
    """Copy every tensor that is a part of a larger one, such as that of a batch, which would be kept and pickled with
    it."""
    for name in ("scores", "target_logits", "logits", "bias_token", "baseline_logits"):
        value = getattr(explanation, name)
        if value is not None:
            object.__setattr__(explanation, name, owned(value))
    for name in ("stages", "component_shares"):
        found = {key: owned(value) for key, value in getattr(explanation, name).items()}
        object.__setattr__(explanation, name, found)
    if explanation.bias_sites is not None:
        values = [owned(site.value) for site in explanation.bias_sites]
        sites = tuple(
            site if value is site.value else replace(site, value=value)
            for site, value in zip(explanation.bias_sites, values, strict=True)
        )
        object.__setattr__(explanation, "bias_sites", sites)


def owned(value: torch.Tensor) -> torch.Tensor:
    """The same without a gradient, in memory of its own: not in that of a batch, say."""
    value = value.detach() if value.requires_grad else value
    whole = value.untyped_storage().nbytes() == value.nbytes
    return value if whole else value.clone(memory_format=torch.contiguous_format)


def check_lengths(explanation: Explanation) -> None:
    """Raise an InputError unless there is one entry for each token, target and class."""
    sources, columns = len(explanation.tokens), len(explanation.targets)
    if not sources or not columns:
        raise InputError(f"an explanation has at least one token and one target, got {sources} and {columns}.")
    if not explanation.labels:
        raise InputError("labels must name at least one class, got none.")
    expected = {"spans": sources, "special": sources, "target_ids": columns}
    if explanation.token_ids is not None:
        expected["token_ids"] = sources
    if explanation.word_ids is not None:
        expected["word_ids"] = sources
    if explanation.stretches is not None:
        expected["stretches"] = sources
    for name, length in expected.items():
        found = len(getattr(explanation, name))
        if found != length:
            raise InputError(f"{name} must have {length} entries ({sources} tokens, {columns} targets), got {found}.")
    most = 2 if encoder_sources(explanation) is None else 4  # a decoder's are texts of their own
    if len(explanation.texts) > most:
        raise InputError(f"texts holds one text, or two of a pair, got {len(explanation.texts)}.")
    for index in explanation.target_ids:
        if index is not None and not 0 <= index < len(explanation.labels):
            raise InputError(f"target_ids must be None or from 0 to {len(explanation.labels) - 1}, got {index}.")


def check_picture(picture: Picture | None, sources: int) -> None:
    """Raise an InputError for patches that belong to no source."""
    if picture is not None:
        low, high = (int(x) for x in picture.groups.aminmax())
        if low < 0 or high >= sources:
            raise InputError(f"picture.groups must be sources from 0 to {sources - 1}, got {low} to {high}.")


def check_spans(spans: Sequence[Span | None], texts: Sequence[str], name: str = "spans") -> None:
    """Raise an InputError for a span that is not within its text; ``name`` is what messages call the spans."""
    for position, span in enumerate(spans):
        if span is None:
            continue
        if len(span) != 3 or not 0 <= span[0] < len(texts) or not 0 <= span[1] <= span[2] <= len(texts[span[0]]):
            lengths = ", ".join(str(len(text)) for text in texts) or "no text"
            within = f"within the texts (characters: {lengths})"
            raise InputError(f"{name}[{position}] must be (segment, start, end) {within}, got {span}.")
