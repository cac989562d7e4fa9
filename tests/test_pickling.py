"""Explainers and results in other processes and threads: their numbers, and how large their pickles are."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import shutil
import tracemalloc
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import evaluation_samples
import pytest
import torch

from decompx_fast import DecompX, Explanation
from decompx_fast.errors import ModelLoadError

TEXT = "a sharp film, warm and not dull"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model")
    evaluation_samples.save_classifier(path)
    return path


def explained(explainer: DecompX) -> Explanation:
    torch.set_num_threads(1)
    return explainer.explain(TEXT)


def weights(explainer: DecompX) -> int:
    return sum(tensor.nbytes for tensor in explainer.model.state_dict().values())


def tensor_bytes() -> int:
    """Of all tensors that are alive and have memory, which those of a compiler have not."""
    kinds = (torch.Tensor, torch.nn.Parameter)
    storages = [one.untyped_storage() for one in gc.get_objects() if type(one) in kinds]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_explainer_and_its_results_pass_between_processes(folder, method):
    explainer = DecompX.from_pretrained(folder, bias="none")
    own = explained(explainer)
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        other = pool.submit(explained, explainer).result()
    assert torch.equal(own.scores, other.scores) and own.options == other.options and own.metadata == other.metadata


def test_an_explainer_is_pickled_by_the_folder_of_its_model(folder):
    explainer = DecompX.from_pretrained(folder, bias="cls", engine="forward", dtype="float64", batch_size=3)
    held = pickle.dumps(explainer)
    assert len(held) < 2000 < weights(explainer) / 10
    back = pickle.loads(held)
    assert back.model is not explainer.model
    assert (back.config, back.engine, back.dtype, back.batch_size, back.name) == (
        (explainer.config, explainer.engine, explainer.dtype, explainer.batch_size, explainer.name)
    )
    assert torch.equal(back.explain(TEXT).scores, explainer.explain(TEXT).scores)
    # Equal strings are written once where they are one object, which differs from process to process.
    assert len(pickle.dumps(back)) == pytest.approx(len(held), abs=32)


def test_equal_explainers_have_equal_pickles(folder):
    """By which ``datasets`` knows that what it has kept is what it would compute."""
    explainer = DecompX.from_pretrained(folder, bias="none")
    held = pickle.dumps(explainer)
    explainer.explain(TEXT)
    assert pickle.dumps(explainer) == held == pickle.dumps(DecompX.from_pretrained(folder, bias="none"))
    assert pickle.dumps(DecompX.from_pretrained(folder, bias="cls")) != held
    unloaded = [DecompX(explainer.model, explainer.tokenizer) for _ in range(2)]
    assert pickle.dumps(unloaded[0]) == pickle.dumps(unloaded[1])


def test_datasets_knows_equal_explainers_by_their_hashes(folder):
    """Also within a function that is mapped over a data set, before and after it was called, and in another process."""
    hashing = pytest.importorskip("datasets.fingerprint", reason="datasets is not installed")
    explainer = DecompX.from_pretrained(folder, bias="none")
    asked = partial(explained_with, explainer)
    held = hashing.Hasher.hash(asked)
    asked(TEXT)
    assert hashing.Hasher.hash(asked) == held
    assert hashing.Hasher.hash(partial(explained_with, pickle.loads(pickle.dumps(explainer)))) == held
    assert hashing.Hasher.hash(partial(explained_with, DecompX.from_pretrained(folder, bias="none"))) == held
    assert hashing.Hasher.hash(partial(explained_with, DecompX.from_pretrained(folder, bias="cls"))) != held
    _train(explainer)
    assert hashing.Hasher.hash(asked) != held


def explained_with(explainer: DecompX, text: str) -> Explanation:
    return explainer.explain(text)


@pytest.mark.parametrize("load", [DecompX.demo, DecompX.demo_encoder])
def test_embedded_models_are_pickled_by_their_names(load):
    explainer = load(bias="none")
    held = pickle.dumps(explainer)
    assert len(held) < 2000
    back = pickle.loads(held)
    assert (back.name, back.config) == (explainer.name, explainer.config)
    assert all(map(torch.equal, back.model.parameters(), explainer.model.parameters()))


def _train(explainer: DecompX) -> None:
    with torch.no_grad():
        explainer.model.classifier.weight += 1


def _replace(explainer: DecompX) -> None:
    explainer.model.classifier.weight = torch.nn.Parameter(explainer.model.classifier.weight + 1)


def _rename(explainer: DecompX) -> None:
    explainer.model.config.id2label = {0: "no", 1: "yes"}


def _widen(explainer: DecompX) -> None:
    explainer.model.double()


@pytest.mark.parametrize("change", [_train, _replace, _rename, _widen])
def test_a_model_that_was_changed_is_pickled_itself(folder, change):
    explainer = DecompX.from_pretrained(folder)
    change(explainer)
    held = pickle.dumps(explainer)
    assert len(held) > weights(explainer)
    back = pickle.loads(held)
    # The weights lie at other places of memory, aligned in another way, for which products round differently.
    torch.testing.assert_close(back.explain(TEXT).scores, explainer.explain(TEXT).scores, rtol=1e-4, atol=1e-6)
    assert back.labels == explainer.labels


def test_another_model_in_the_folder_is_not_taken_for_it(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "model")
    explainer = DecompX.from_pretrained(place)
    held = pickle.dumps(explainer)
    _train(explainer)
    explainer.model.save_pretrained(place)
    with pytest.raises(ModelLoadError, match="holds another model than when the explainer was pickled"):
        pickle.loads(held)
    explainer = DecompX.from_pretrained(place)
    explainer.model.classifier.weight.data += 1  # which PyTorch does not count
    with pytest.raises(ModelLoadError, match="holds another model"):
        pickle.loads(pickle.dumps(explainer))


def test_copies_share_or_do_not_share_the_model(folder):
    explainer = DecompX.from_pretrained(folder)
    assert copy.copy(explainer).model is explainer.model
    assert copy.deepcopy(explainer).model is not explainer.model


@pytest.mark.slow
def test_one_explainer_in_16_threads(folder):
    explainer = DecompX.from_pretrained(folder, bias="none")
    texts = [f"{TEXT} {'very ' * (n % 8)}good" for n in range(32)]
    alone = [explainer.explain(text) for text in texts]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(explainer.explain, texts))
        gc.collect()
        tracemalloc.start()
        before, tensors_before = tracemalloc.get_traced_memory()[0], tensor_bytes()
        for _ in range(4):
            found = list(pool.map(explainer.explain, texts))
        gc.collect()
        kept, tensors = tracemalloc.get_traced_memory()[0] - before, tensor_bytes() - tensors_before
        tracemalloc.stop()
    for one, other in zip(found, alone, strict=True):
        torch.testing.assert_close(one.scores, other.scores, rtol=0, atol=0)
    assert kept < 4 * len(pickle.dumps(found))  # the last results are alive, and nothing of those before
    assert tensors < 2 * len(pickle.dumps(found))  # whose memory Python does not trace
