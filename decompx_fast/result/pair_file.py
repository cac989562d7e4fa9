"""A pair's explanation as a dictionary, as a table, and as a file."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from ..errors import InputError, shown
from ..optional import import_optional
from .file import atomic_write, read_parts
from .pair import PairExplanation, PairSide
from .picture import Picture

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

FORMAT = "decompx_fast.result.pair"
FORMAT_VERSION = 2  # from 2 on, a side may have a picture

#: What ``to_dict`` says it is, so that a file of several kinds can be read.
KIND = "pair"

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def to_dict(pair: PairExplanation) -> dict[str, Any]:
    """Everything as plain lists, strings and numbers.

    Raises:
        InputError: if ``options`` or ``metadata`` hold something that JSON cannot.
    """
    dtype = str(pair.scores.dtype).removeprefix("torch.")
    return {"kind": KIND, **_plain(pair), "scores": pair.scores.tolist(), "total": pair.total, "dtype": dtype}


def from_dict(data: Mapping[str, Any]) -> PairExplanation:
    """The explanation of which :func:`to_dict` made this.

    Raises:
        InputError: if a part is missing or does not fit the others.
    """
    if not isinstance(data, Mapping) or data.get("kind") != KIND:
        raise InputError(f"this is no explanation of a pair: {shown(data)}. Give what to_dict() made")
    try:
        scores = torch.tensor(data["scores"], dtype=_DTYPES[data.get("dtype", "float64")], device="cpu")
        return _from_parts(data, scores.reshape(len(data["a"]["tokens"]), -1))
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"this explanation is damaged: {error!r}. Give what to_dict() made") from error


def to_dataframe(pair: PairExplanation) -> pd.DataFrame:
    """A row for each pair of sources.

    Raises:
        MissingPackageError: if pandas is not installed.
    """
    pandas = import_optional("pandas", "PairExplanation.to_dataframe()")
    k, m = pair.scores.shape
    columns: dict[str, Any] = {}
    for name, side, repeat in (("a", pair.a, lambda row: [x for x in row for _ in range(m)]), ("b", pair.b, None)):
        texts = [None if span is None else side.source_text(n) for n, span in enumerate(side.spans)]
        for field, values in (
            ("position", range(len(side))),
            ("token", side.tokens),
            ("text", texts),
            ("special", side.special),
        ):
            columns[f"{field}_{name}"] = list(values) * k if repeat is None else repeat(values)
    return pandas.DataFrame({**columns, "score": pair.scores.flatten().numpy()})


def save_pair(pair: PairExplanation, path: str | os.PathLike[str]) -> None:
    """Write one safetensors file, with all that is no tensor as JSON in its header.

    Raises:
        OutputError: if it cannot be written there.
        InputError: if ``options`` or ``metadata`` hold something that JSON cannot.
    """
    header = {"format": FORMAT, "version": str(FORMAT_VERSION), "explanation": json.dumps(_plain(pair))}
    tensors = {"scores": pair.scores.contiguous()}
    atomic_write(path, lambda temporary: save_file(tensors, temporary, metadata=header))


def load_pair(path: str | os.PathLike[str]) -> PairExplanation:
    """Read what :func:`save_pair` wrote.

    Raises:
        InputError: if there is no such file, or it is not such a file, or from a newer version.
    """
    return read_parts(
        path, FORMAT, FORMAT_VERSION, "PairExplanation", lambda data, tensors: _from_parts(data, tensors["scores"])
    )


def _plain(pair: PairExplanation) -> dict[str, Any]:
    """All but the scores, as JSON will give it back."""
    data: dict[str, Any] = {name: _plain_side(getattr(pair, name)) for name in ("a", "b")}
    for field in dataclasses.fields(pair):
        if field.name in ("a", "b", "scores"):
            continue
        value = getattr(pair, field.name)
        try:
            data[field.name] = json.loads(json.dumps(dict(value) if isinstance(value, Mapping) else value))
        except (TypeError, ValueError) as error:
            raise InputError(f"{field.name} must hold plain JSON values only, got {value!r} ({error}).") from error
    return json.loads(json.dumps(data))


def _plain_side(side: PairSide) -> dict[str, Any]:
    data = dataclasses.asdict(dataclasses.replace(side, picture=None))
    del data["picture"]
    return data if side.picture is None else {**data, "picture": side.picture.to_dict()}


def _side(data: Mapping[str, Any]) -> PairSide:
    picture = data.get("picture")
    return PairSide(**{**data, "picture": None if picture is None else Picture.from_dict(picture)})


def _from_parts(data: Mapping[str, Any], scores: torch.Tensor) -> PairExplanation:
    fields = {field.name: data[field.name] for field in dataclasses.fields(PairExplanation) if field.name in data}
    fields |= {name: _side(data[name]) for name in ("a", "b")}
    return PairExplanation(**{**fields, "scores": scores})
