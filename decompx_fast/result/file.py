"""An explanation as a dictionary, as a table, and as a file."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..errors import DecompXError, InputError, OutputError
from ..optional import import_optional
from .kinds import FOCUS
from .readings import plain

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

    from .explanation import Explanation

_MadeT = TypeVar("_MadeT")

FORMAT = "decompx_fast.result.explanation"
FORMAT_VERSION = 1

_TENSORS = ("scores", "target_logits", "logits", "bias_token", "baseline_logits")
_OPTIONAL = ("bias_token", "baseline_logits")  # of them
_SEPARATE = ("stages", "bias_sites", "component_shares", "picture")  # fields that hold tensors inside

#: What models give that answer at positions: written where it is there.
READINGS = ("entities", "answer", "predictions")

#: Fields that are left out where they are as they are by default.
UNLESS_SET = (*READINGS, "task", "word_ids", "picture", "baseline_logits", "stretches")


def to_dict(explanation: Explanation, *, details: bool = False) -> dict[str, Any]:
    """Everything as plain lists, strings and numbers; of ``stages`` only the shapes.

    Args:
        explanation: what to write.
        details: with ``bias_sites`` and ``component_shares``, which are many times longer than all the rest.

    Raises:
        InputError: if ``options`` or ``metadata`` hold something that JSON cannot.
    """
    data = _plain_fields(explanation)
    for name in _TENSORS:
        value = getattr(explanation, name)
        if value is not None or name not in UNLESS_SET:
            data[name] = None if value is None else value.tolist()
    probabilities = explanation.probabilities
    data["probabilities"] = None if probabilities is None else probabilities.tolist()
    predicted, label = explanation.predicted, explanation.predicted_label
    data["predicted"] = list(predicted) if isinstance(predicted, tuple) else predicted
    data["predicted_label"] = list(label) if isinstance(label, tuple) else label
    data["stages"] = {name: list(value.shape) for name, value in explanation.stages.items()}
    if explanation.picture is not None:
        data["picture"] = explanation.picture.to_dict()
    if details:
        data["bias_sites"] = explanation.bias_sites and [
            {"layer": site.layer, "place": site.place, "value": site.value.tolist()} for site in explanation.bias_sites
        ]
        data["component_shares"] = {name: value.tolist() for name, value in explanation.component_shares.items()}
    tensors = {name: getattr(explanation, name) for name in _TENSORS}
    data["dtypes"] = {name: _dtype_name(value) for name, value in tensors.items() if value is not None}
    return data


def _dtype_name(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def to_dataframe(explanation: Explanation) -> pd.DataFrame:
    """A row for each source: token, text, place, with ``sources="focus"`` whether it is a token that was kept, and a
    column ``score_<target>`` for each target.

    Raises:
        MissingPackageError: if pandas is not installed.
    """
    pandas = import_optional("pandas", "Explanation.to_dataframe()")
    index = pandas.RangeIndex(len(explanation), name="position")
    focus = explanation.metadata.get(FOCUS)
    kept = {} if focus is None else {"kept": [k in focus["sources"] for k in range(len(explanation))]}
    places = [span or (None, None, None) for span in explanation.spans]
    about = pandas.DataFrame(
        {
            "token": explanation.tokens,
            "text": [
                explanation.source_text(k) if has_text else None for k, has_text in enumerate(_with_text(explanation))
            ],
            "segment": pandas.array([place[0] for place in places], dtype="Int64"),
            "start": pandas.array([place[1] for place in places], dtype="Int64"),
            "end": pandas.array([place[2] for place in places], dtype="Int64"),
            "special": explanation.special,
            **kept,
        },
        index=index,
    )
    names = [f"score_{target}" for target in explanation.targets]
    return pandas.concat([about, pandas.DataFrame(explanation.scores.numpy(), index=index, columns=names)], axis=1)


def _with_text(explanation: Explanation) -> list[bool]:
    """Which sources are in the text, in one stretch or several."""
    several = explanation.stretches or ((),) * len(explanation)
    return [span is not None or bool(own) for span, own in zip(explanation.spans, several, strict=True)]


def save_explanation(explanation: Explanation, path: str | os.PathLike[str]) -> None:
    """Write one safetensors file, with all that is no tensor as JSON in its header.

    Raises:
        OutputError: if it cannot be written there.
        InputError: if ``options`` or ``metadata`` hold something that JSON cannot.
    """
    tensors = {name: getattr(explanation, name) for name in _TENSORS if getattr(explanation, name) is not None}
    tensors |= {f"stage/{name}": value for name, value in explanation.stages.items()}
    data = _plain_fields(explanation)
    tensors |= {f"component/{name}": value for name, value in explanation.component_shares.items()}
    if explanation.picture is not None:
        data["picture"] = list(explanation.picture.patch)
        tensors["picture/groups"] = explanation.picture.groups
        if explanation.picture.pixels is not None:
            tensors["picture/pixels"] = explanation.picture.pixels
    if explanation.bias_sites is not None:
        data["bias_sites"] = [[site.layer, site.place] for site in explanation.bias_sites]
        tensors |= {f"site/{i}": site.value for i, site in enumerate(explanation.bias_sites)}
    header = {"format": FORMAT, "version": str(FORMAT_VERSION), "explanation": json.dumps(data)}
    tensors = _with_own_memory(tensors)
    atomic_write(path, lambda temporary: save_file(tensors, temporary, metadata=header))


def load_explanation(path: str | os.PathLike[str]) -> Explanation:
    """Read what :func:`save_explanation` wrote.

    Raises:
        InputError: if there is no such file, or it is not such a file, or from a newer version.
    """
    return read_parts(path, FORMAT, FORMAT_VERSION, "Explanation", _from_parts)


def read_parts(
    path: str | os.PathLike[str],
    format_: str,
    version: int,
    kind: str,
    make: Callable[[dict[str, Any], dict[str, torch.Tensor]], _MadeT],
) -> _MadeT:
    """Read a safetensors file with JSON in its header.

    Args:
        path: of the file.
        format_, version: what the header must say; an older version will do.
        kind: the class whose ``save`` wrote it, for messages.
        make: makes the result of the JSON and the tensors.

    Raises:
        InputError: if there is no such file, or it is not such a file, or from a newer version.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        raise InputError(f"{name} is a directory: give the file that {kind}.save() wrote.")
    if not os.path.exists(name):
        raise InputError(f"{name} does not exist: give the file that {kind}.save() wrote.")
    if os.path.getsize(name) == 0:
        raise InputError(f"{name} is empty (0 bytes): save the explanation again.")
    try:
        with safe_open(name, framework="pt") as file:
            header = file.metadata() or {}
            _check_header(name, header, format_, version, kind)
            tensors = {key: file.get_tensor(key) for key in file.keys()}
    except (SafetensorError, OSError) as error:
        with open(name, "rb") as start:
            is_json = start.read(1) in (b"{", b"[")
        way = (
            "it looks like JSON, which decompx_fast.read_json(path) reads" if is_json else "save the explanation again"
        )
        raise InputError(f"{name} cannot be read as an explanation ({error}): {way}.") from error
    try:
        return make(json.loads(header["explanation"]), tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{name} is damaged: {error!r}. Save the explanation again.") from error


def atomic_write(path: str | os.PathLike[str], write: Callable[[str], object]) -> None:
    """Write a file as a whole or not at all: beside its place first, then renamed onto it.

    Args:
        path: where the file shall be; a link is followed.
        write: called with the path of a new, empty file in the same folder, which it fills.

    Raises:
        OutputError: if it cannot be written there. What was there before stays, after any error.
    """
    name = os.fspath(path)
    folder, temporary = "", ""
    try:
        place = os.path.realpath(name)
        folder = os.path.dirname(place)
        _check_place(name, place, folder)
        temporary = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = os.stat(place if os.path.exists(place) else temporary).st_mode
        write(temporary)
        os.chmod(temporary, stat.S_IMODE(mode))  # a writer that replaces the file may have set its own
        flush_to_disk(temporary)
        os.replace(temporary, place)
        temporary = ""
    except DecompXError:
        raise  # what the writer says is wrong with what it was to write, and not with the file
    except (OSError, SafetensorError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(
            f"{name} cannot be written: {reason}. Choose a path in a folder that exists, where you may write "
            f"and that has space left."
        ) from error
    finally:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)
    with suppress(OSError, AttributeError):  # the rename itself; not every system lets a folder be opened
        flush_to_disk(folder, os.O_RDONLY | os.O_DIRECTORY)


def check_place(path: str | os.PathLike[str], *, example: str = "explanation.safetensors", grows: bool = False) -> None:
    """Raise an OutputError if no file can be at ``path``; writes nothing.

    Args:
        path: where a file shall be.
        example: the name of such a file, to be suggested where ``path`` is a folder.
        grows: whether it is written to where it is, and not replaced: then it may be a pipe or a device.
    """
    name = os.fspath(path)
    place = os.path.realpath(name)
    folder = os.path.dirname(place)
    if grows and os.path.exists(name) and not os.path.isdir(name) and not os.path.isfile(name):
        if not os.access(name, os.W_OK):
            raise OutputError(f"{name} cannot be written: you may not write to it. Choose another path.")
        return
    _check_place(name, place, folder, example)
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{name} cannot be written: you may not write in {folder}. Choose another path.")


def _check_place(name: str, place: str, folder: str, example: str = "explanation.safetensors") -> None:
    if os.path.isdir(place):
        raise OutputError(f"{name} is a directory: give a file in it, as {Path(name) / example}.")
    if os.path.exists(place) and not os.path.isfile(place):
        raise OutputError(f"{name} is not a regular file, and replacing it would destroy it: choose another path.")
    if not os.path.isdir(folder):
        raise OutputError(f"{name} cannot be written: there is no folder {folder}. Create it, or choose another path.")


def flush_to_disk(path: str, flags: int = os.O_RDWR) -> None:
    """Wait until what was written to a file is on its disk."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _with_own_memory(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies where needed: safetensors takes no views, and no two tensors on the same memory."""
    own, seen = {}, set()
    for name, value in tensors.items():
        value = value.detach().cpu()
        storage = value.untyped_storage()
        is_view = not value.is_contiguous() or storage.nbytes() != value.nbytes
        if is_view or storage.data_ptr() in seen:
            value = value.clone(memory_format=torch.contiguous_format)
        seen.add(value.untyped_storage().data_ptr())
        own[name] = value
    return own


def _plain_fields(explanation: Explanation) -> dict[str, Any]:
    """The fields that hold no tensors, as JSON will give them back."""
    data = {}
    for field in dataclasses.fields(explanation):
        if field.name in _TENSORS or field.name in _SEPARATE:
            continue
        value = getattr(explanation, field.name)
        if field.name in UNLESS_SET and value == field.default:
            continue
        value = plain(value) if field.name in READINGS else value
        try:
            data[field.name] = json.loads(json.dumps(dict(value) if field.name in ("options", "metadata") else value))
        except (TypeError, ValueError) as error:
            raise InputError(f"{field.name} must hold plain JSON values only, got {value!r} ({error}).") from error
    return data


def _check_header(name: str, header: dict[str, str], format_: str, newest: int, kind: str) -> None:
    if header.get("format") != format_:
        what = "no explanation" if kind == "Explanation" else "no explanation of a pair"
        raise InputError(f"{name} is a safetensors file, but holds {what}: give one that {kind}.save() wrote.")
    version = header.get("version", "")
    if not version.isdigit():
        raise InputError(f"{name} is damaged: its format version is {version!r}. Save the explanation again.")
    if int(version) > newest:
        raise InputError(
            f"{name} has the format version {version}, but this version of decompx_fast reads up to {newest}: update "
            "decompx_fast."
        )


def _from_parts(data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Explanation:
    from .explanation import Explanation
    from .kinds import Site
    from .picture import Picture

    sites = data.pop("bias_sites", None)
    if sites is not None:
        sites = tuple(Site(layer, place, tensors[f"site/{i}"]) for i, (layer, place) in enumerate(sites))
    patch = data.pop("picture", None)
    if patch is not None:
        data["picture"] = Picture(tensors["picture/groups"], tuple(patch), tensors.get("picture/pixels"))
    own: dict[str, Any] = {name: tensors[name] for name in _TENSORS if name not in _OPTIONAL}
    return Explanation(
        **data,
        **own,
        bias_token=tensors.get("bias_token"),
        baseline_logits=tensors.get("baseline_logits"),
        bias_sites=sites,
        component_shares=_with_prefix(tensors, "component/"),
        stages=_with_prefix(tensors, "stage/"),
    )


def _with_prefix(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
