"""The results of a run, back from its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import InputError
from ..result.explanation import Explanation
from ..result.failure import Failure
from .parts import Parts


def load_results(folder: str | os.PathLike[str]) -> Iterator[Explanation | Failure]:
    """What a run of :func:`explain_dataset` found, in the order of its input; also while it is not complete.

    They are read part by part, so that memory does not grow with their number. ``metadata`` says of each its ``input``,
    the number of its row, and ``file``, ``line`` (or ``row``) and ``id``.

    Args:
        folder: of the run.

    Returns:
        Explanations, and a :class:`decompx_fast.Failure` for each row that could not be explained.

    Raises:
        InputError: if there is no such folder, or a part cannot be read.
    """
    path = Path(folder) / "run.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        format_, options = settings["output"], settings["options"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{os.fspath(folder)} is no folder of a bulk run: {path} cannot be read ({error!r})"
        ) from error
    return Parts(Path(folder) / "parts", format_, {}).outcomes(options)
