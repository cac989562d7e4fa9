"""Explanations back from JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any

import torch

from ..errors import InputError, shown
from .explanation import Explanation
from .failure import Failure
from .file import UNLESS_SET
from .kinds import Site
from .pair import PairExplanation
from .pair_file import KIND as PAIR
from .pair_file import from_dict as pair_from_dict
from .picture import Picture

#: Fields that hold one tensor, and those that may be missing.
_TENSORS = ("scores", "target_logits", "logits", "bias_token", "baseline_logits")
_OPTIONAL = ("token_ids", "bias_token", "source_unit", "metadata", "score_error", *UNLESS_SET)

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


def from_dict(data: Mapping[str, Any]) -> Explanation:
    """The explanation of which ``to_dict`` made this; its ``stages`` are not in it, and are left out.

    Args:
        data: as it was, or as JSON gives it back. Without ``dtypes``, tensors are float64.

    Raises:
        InputError: if a part is missing or does not fit the others.
    """
    if not isinstance(data, Mapping):
        raise InputError(f"an explanation is read from a dictionary, got {shown(data)}: give what to_dict() made")
    plain = [
        f.name for f in dataclasses.fields(Explanation) if f.name not in ("stages", "bias_sites", "component_shares")
    ]
    missing = [name for name in plain if name not in data and name not in _OPTIONAL]
    if missing:
        raise InputError(f"this holds no explanation: {', '.join(missing)} missing. Give what to_dict() made")
    fields: dict[str, Any] = {name: data[name] for name in plain if name in data}
    try:
        dtypes = {name: _DTYPES[dtype] for name, dtype in (data.get("dtypes") or {}).items()}
        width = len(data["targets"])
        for name in _TENSORS:
            dtype = dtypes.get(name, dtypes.get("scores", torch.float64))
            value = fields.get(name)
            fields[name] = None if value is None else torch.tensor(value, dtype=dtype, device="cpu")
        fields["scores"] = fields["scores"].reshape(-1, width)
        dtype = fields["scores"].dtype
        if fields.get("picture") is not None:
            fields["picture"] = Picture.from_dict(fields["picture"])
        shares = data.get("component_shares") or {}
        sites = data.get("bias_sites")
        return Explanation(
            **fields,
            component_shares={name: torch.tensor(value, dtype=dtype, device="cpu") for name, value in shares.items()},
            bias_sites=None
            if sites is None
            else tuple(
                Site(s["layer"], s["place"], torch.tensor(s["value"], dtype=dtype, device="cpu")) for s in sites
            ),
        )
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"this explanation is damaged: {error!r}. Give what to_dict() made") from error


def read_json(path: str | os.PathLike[str]) -> list[Explanation | PairExplanation | Failure]:
    """Everything in a file of JSON: one explanation (of a text or a pair), an array of them, or JSON Lines.

    Failures stand in their places.

    Raises:
        InputError: if there is no such file, or something else is in it, with the line.
    """
    name = os.fspath(path)
    try:
        with open(name, encoding="utf-8-sig") as stream:
            return list(_read(stream, name))
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 (byte {error.start}): give a file that JSON was written to") from error


def _read(stream: IO[str], name: str) -> Iterator[Explanation | PairExplanation | Failure]:
    text = stream.read()
    if not text.strip():
        raise InputError(f"{name} is empty: there is no explanation in it")
    try:
        whole = json.loads(text)
    except ValueError:
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    else:
        lines = []
        for n, data in enumerate(whole if isinstance(whole, list) else [whole]):
            yield _item(data, f"{name}, entry {n}")
    for n, line in lines:
        try:
            data = json.loads(line)
        except ValueError as error:
            raise InputError(f"{name} is no JSON (line {n}: {error})") from error
        yield _item(data, f"{name}, line {n}")


def _item(data: Any, where: str) -> Explanation | PairExplanation | Failure:
    """An explanation, or what stands in the place of one."""
    try:
        if isinstance(data, Mapping) and data.keys() >= {"input", "error", "error_type"}:
            return Failure(int(data["input"]), str(data["error"]), str(data["error_type"]))
        if isinstance(data, Mapping) and data.get("kind") == PAIR:
            return pair_from_dict(data)
        return from_dict(data)
    except (InputError, TypeError, ValueError) as error:
        raise InputError(f"{where}: {error}") from error
