"""Loading a classifier and its tokenizer with transformers, quietly, with one clear error for each that can fail."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import ModelLoadError
from .registry import find_family


def load_pretrained(path_or_id: str | os.PathLike[str], *, half: bool = False) -> tuple[nn.Module, Any]:
    """A sequence classifier and its tokenizer, from a folder or by the id of a model hub.

    Args:
        path_or_id: a folder that ``save_pretrained`` wrote, or a hub id.
        half: keep weights that are stored in float16 or bfloat16 so, instead of widening them to float32.

    Returns:
        ``(model, tokenizer)``; the model in eval mode.

    Raises:
        ModelLoadError: if there is no such model, if it has no classifier or no tokenizer, or cannot be read.
        UnsupportedModelError: if its architecture is not supported.
    """
    if not isinstance(path_or_id, (str, os.PathLike)):
        kind = type(path_or_id).__name__
        raise ModelLoadError(f"a model is loaded by the path of its folder, or by its id, not from a {kind}")
    name = os.fsdecode(path_or_id)
    _check_place(name)
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    with _quiet():
        try:
            # Weights of a wrong shape are let through here, to be named below.
            model, info = AutoModelForSequenceClassification.from_pretrained(
                name, dtype="auto", output_loading_info=True, ignore_mismatched_sizes=True, trust_remote_code=False
            )
        except Exception as error:
            place = "" if Path(name).is_dir() else "there is no folder of that name, and as the id of a model: "
            raise ModelLoadError(f"no classifier could be loaded from {name!r}: {place}{_first_line(error)}") from error
        find_family(model)
        _check_weights(name, info)
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            _check_vocabulary(tokenizer)
        except Exception as error:
            raise ModelLoadError(
                f"the model {name!r} was loaded, but not its tokenizer ({_first_line(error)}): save the tokenizer in "
                "the same folder, or load both yourself and use DecompX(model, tokenizer)"
            ) from error
    if not half and model.dtype in (torch.float16, torch.bfloat16):
        model = model.float()
    return model.eval(), tokenizer


def _check_place(name: str) -> None:
    path = Path(name)
    if not name:
        raise ModelLoadError("the model's path is empty: give a folder, or the id of a model")
    if path.is_file():
        raise ModelLoadError(f"{name!r} is a file: give the folder that holds config.json and the weights")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelLoadError(f"the folder {name!r} has no config.json: give one that save_pretrained wrote")
    elif path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelLoadError(f"there is no folder {name!r}: check the path")


def _check_weights(name: str, info: Mapping[str, Any]) -> None:
    """Refuse a model some of whose weights were not loaded, and are random."""
    wrong = sorted(info["mismatched_keys"])
    if wrong:
        key, found, expected = wrong[0]
        raise ModelLoadError(
            f"the weights of {name!r} do not fit its config.json: {key} is {list(found)}, and the configuration "
            f"expects {list(expected)}"
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelLoadError(
            f"{name!r} is no trained classifier: it has no weights for {', '.join(missing[:4])}, which would be "
            "random. Use a model fine-tuned for sequence classification"
        )


def _check_vocabulary(tokenizer: Any) -> None:
    """Refuse a tokenizer without a word: transformers makes one up where the files are missing."""
    special = set(tokenizer.all_special_tokens)
    if all(token in special for token in tokenizer.get_vocab()):
        raise ModelLoadError("its vocabulary is missing")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no warnings from transformers; its settings restored afterwards."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
