"""``use_launches``: launch choices that were measured on a GPU, in place of those that are built in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import torch

from ...errors import BackendError, InputError
from ..registry import usable

if TYPE_CHECKING:
    from ...kernels.launch import Choices

FORMAT = "decompx-fast launch choices, version 1"


def use_launches(path: str | os.PathLike[str] | None, device: torch.device | str = "cuda") -> None:
    """Take the launch choices of the Triton kernels from a file that ``tools/tune.py`` wrote on such a GPU.

    It holds for every device of this process that is of the same architecture.

    Args:
        path: the file, or ``None`` to go back to the choices that are built in.
        device: the GPU that the choices are for.

    Raises:
        BackendError: if the Triton kernels cannot be used on the device, with the reason.
        InputError: if there is no such file, it is not such a file, or it was made on another GPU.
    """
    device = torch.device(device)
    can, reason = usable("triton", device)
    if not can:
        raise BackendError(f"launch choices are of the Triton kernels, which cannot be used on {device}: {reason}")
    from ...kernels import launch

    arch = launch.arch_of(device)
    if path is None:
        launch.adopt(arch, None)
        return
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError) as error:
        raise InputError(f"path={os.fspath(path)!r} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"path={os.fspath(path)!r} holds no launch choices: give a file that tools/tune.py wrote")
    if content.get("device") != device_name(device):
        raise InputError(
            f"path={os.fspath(path)!r} was measured on {content.get('device')!r}, and {device} is "
            f"{device_name(device)!r}: run tools/tune.py on it"
        )
    try:
        measured = from_json(content["choices"], launch.reasoned(arch))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"path={os.fspath(path)!r} is not complete ({error}): run tools/tune.py again") from error
    launch.adopt(arch, measured)


def device_name(device: torch.device) -> str:
    """What a file of choices is made for."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"


def to_json(choices: Choices) -> dict[str, Any]:
    """As JSON can hold it: the names of matrix choices are ``"half/many"``."""
    return {
        "rows": asdict(choices.rows),
        "matrix": {"/".join(key): asdict(choice) for key, choice in choices.matrix.items()},
    }


def from_json(content: Mapping[str, Any], like: Choices) -> Choices:
    """The inverse of :func:`to_json`; nothing may be missing that ``like`` has, and all are powers of two but stages.

    Raises:
        KeyError, ValueError: if something is missing or is no such number.
    """
    read = {"/".join(key): _numbers(content["matrix"]["/".join(key)], choice) for key, choice in like.matrix.items()}
    matrix = {key: type(choice)(**read["/".join(key)]) for key, choice in like.matrix.items()}
    return type(like)(type(like.rows)(**_numbers(content["rows"], like.rows)), matrix)


def _numbers(content: Mapping[str, Any], like: Any) -> dict[str, int]:
    found = {field.name: content[field.name] for field in fields(like)}
    for name, number in found.items():
        whole = isinstance(number, int) and not isinstance(number, bool) and number > 0
        if not whole or (name != "stages" and number & (number - 1)):
            raise ValueError(f"{name} is {number!r}")
    return found
