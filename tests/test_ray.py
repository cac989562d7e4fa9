"""Explanations by a cluster of Ray: two nodes on this machine, with one worker each."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import evaluation_samples
import numpy as np
import pyarrow.parquet
import pytest
import torch
from deadly import deadly
from test_bulk import N_TEXTS, OPTIONS, ROOT, ROWS, rows_of, write_rows
from test_readme import python_blocks

from decompx_fast import DecompX
from decompx_fast.bulk import explain_dataset, load_results
from decompx_fast.cli import main
from decompx_fast.errors import BackendError, InputError, ModelLoadError, OptionError
from decompx_fast.ray import Explainer, explanation_of

if find_spec("ray") is None:  # and imported by the tests alone that use it: that takes seconds
    pytest.skip("Ray is not installed: pip install 'decompx-fast[ray]'", allow_module_level=True)

pytestmark = pytest.mark.slow

ON_RAY = {**OPTIONS, "workers": None, "ray": True}

OBJECTS_BYTES = 100 << 20  # of each node; by default a third of the memory


@pytest.fixture(scope="module")
def cluster():
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests"), *sys.path]))
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # workers that give way to all others never start on a busy machine
        node = {"num_cpus": 1, "object_store_memory": OBJECTS_BYTES}
        found = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        found.add_node(**node)
        ray.init(address=found.address, logging_level="error", log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield found
        ray.shutdown()
        found.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return evaluation_samples.save_classifier(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return evaluation_samples.write_texts(tmp_path_factory.mktemp("data") / "texts.csv", N_TEXTS)


@pytest.fixture(scope="module")
def whole(model, data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "out"
    explain_dataset(data, model, out=out, **OPTIONS)
    return out


def names(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "parts").iterdir())


class Placed(Explainer):
    """Says where it has run."""

    def __call__(self, batch):
        import ray

        table = super().__call__(batch)
        return table.append_column("node", [[ray.get_runtime_context().get_node_id()] * table.num_rows])


def test_a_dataset_gets_its_columns_on_both_nodes(cluster, model):
    import ray

    texts = [f"{'a very ' * (n % 9)}good film" for n in range(64)]
    vectors = np.arange(128.0).reshape(64, 2)
    # Blocks that are there: tasks that made them would wait for the two CPUs, which the actors have.
    items = [{"text": text, "n": n, "v": vectors[n]} for n, text in enumerate(texts)]
    rows = ray.data.from_items(items, override_num_blocks=8)
    rows.context.wait_for_min_actors_s = 600  # or else the first explains all before the other has loaded the model
    asked = {"model": model, "bias": "none"}
    two = ray.data.ActorPoolStrategy(size=2)
    explained = rows.map_batches(Placed, fn_constructor_kwargs=asked, batch_size=8, compute=two)
    found = sorted(explained.take_all(), key=lambda row: row["n"])
    assert [row["text"] for row in found] == texts and len({row["node"] for row in found}) == 2
    assert np.array_equal(np.stack([row["v"] for row in found]), vectors)
    own = DecompX.from_pretrained(model).explain(texts, bias="none")
    for row, one in zip(found, own, strict=True):
        torch.testing.assert_close(explanation_of(row).scores, one.scores, rtol=1e-4, atol=1e-6)


def test_a_run_goes_on_with_and_without_a_cluster(cluster, model, data, whole, tmp_path, capsys):
    out = shutil.copytree(whole, tmp_path / "out")
    for part in sorted((out / "parts").iterdir())[2:]:
        part.unlink()
    asked = ["--model", model, "--bias", "none", "--rows-of-a-part", str(ROWS), "--ray", cluster.address]
    assert main(["bulk", str(data), "--out", str(out), *asked]) == 0
    assert f"{N_TEXTS} rows are done" in (said := capsys.readouterr().out) and f"({N_TEXTS - 2 * ROWS} in" in said
    assert rows_of(out) == rows_of(whole) and names(out) == names(whole)
    for part in sorted((out / "parts").iterdir())[2:5]:
        part.unlink()
    assert explain_dataset(data, model, out=out, **OPTIONS).explained == 3 * ROWS
    assert rows_of(out) == rows_of(whole)


def test_a_worker_that_is_killed_in_the_middle_costs_no_row(cluster, model, data, whole, tmp_path):
    explainer = deadly(model, "hero", tmp_path / "once")
    found = explain_dataset(data, explainer, out=tmp_path / "out", **ON_RAY)
    assert (tmp_path / "once").exists() and (found.rows, found.errors) == (N_TEXTS, 0)
    assert names(tmp_path / "out") == names(whole)
    for one, other in zip(load_results(tmp_path / "out"), load_results(whole), strict=True):
        # A model that is pickled with its hook has its weights at other places of memory, and so rounds differently.
        torch.testing.assert_close(one.scores, other.scores, rtol=1e-4, atol=1e-6)


def test_a_row_that_kills_its_worker_again_and_again_is_marked(cluster, model, tmp_path):
    texts = ["good film", "dull film", "a mess of a film", "", "warm film"]
    file, out = write_rows(tmp_path / "a.jsonl", texts), tmp_path / "out"
    found = explain_dataset(file, deadly(model, "mess"), out=out, **ON_RAY)
    assert (found.rows, found.errors) == (5, 2)
    results = list(load_results(out))
    assert [one.ok for one in results] == [True, True, False, False, True]
    assert [one.error_type for one in results[2:4]] == ["WorkerEnded", "InputError"]


def test_errors_are_those_of_a_run_without_a_cluster(cluster, model, tmp_path):
    file = write_rows(tmp_path / "a.jsonl", ["good film"] * 20 + ["good " * 90] + ["dull"])
    out = tmp_path / "out"
    with pytest.raises(InputError, match="line 21 of .* tokens"):
        explain_dataset(file, model, out=out, on_error="stop", **ON_RAY)
    assert explain_dataset(file, model, out=out, **OPTIONS).errors == 1
    found = explain_dataset(file, model, out=out, retry_errors=True, **ON_RAY)
    assert (found.rows, found.explained, found.errors) == (22, 1, 1)
    with pytest.raises(ModelLoadError):
        explain_dataset(file, tmp_path / "nothing", out=tmp_path / "other", **ON_RAY)
    with pytest.raises(OptionError, match="workers=0"):
        explain_dataset(file, model, out=out, **{**ON_RAY, "workers": 0})


def test_the_example_of_the_readme(cluster, model, tmp_path, capsys):
    (block,) = (one for one in python_blocks() if "map_batches(" in one)
    reviews = pyarrow.table({"review": ["good film", "dull film", ""], "stars": [5, 1, 2]})
    pyarrow.parquet.write_table(reviews, tmp_path / "a.parquet")
    for there, here in (("path/to/model", model), ("reviews/", str(tmp_path)), ("size=8", "size=1")):
        assert there in block
        block = block.replace(there, here)
    exec(block, {})
    said = capsys.readouterr().out
    assert said.count("Explanation(") == 2 and said.count("Failure(") == 1


def test_a_cluster_that_is_not_there_is_told(monkeypatch, model, tmp_path):
    import ray

    def fails(**arguments):
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fails)
    file = write_rows(tmp_path / "a.jsonl", ["good film"])
    with pytest.raises(BackendError, match=r"ray='10.0.0.1:1'.*nobody answers"):
        explain_dataset(file, model, out=tmp_path / "out", **{**ON_RAY, "ray": "10.0.0.1:1"})
