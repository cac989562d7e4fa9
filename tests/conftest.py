"""What every test runs under: no model hub, Triton's interpreter where no GPU is, repeatable examples."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported, which reads it once

import hypothesis
import pytest
import torch
from browsing import browser  # noqa: F401  (a fixture of tests of pages)

HAS_GPU = torch.cuda.is_available()

if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before a kernel is decorated, which reads it once

if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other

# An example may compile a kernel or load a model, so its time says nothing.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


#: So many cases of each test are run with ``--quick``.
QUICK_CASES = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help=f"no tests that are marked slow, and of each other test at most {QUICK_CASES} cases, always the same ones",
    )


def quick(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests of ``--quick``: cases are drawn by the name of the test, so that neighbours differ in what they leave
    out, and every process draws the same."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    drawn = [random.Random(name).sample(of_test, min(QUICK_CASES, len(of_test))) for name, of_test in cases.items()]
    kept = {item.nodeid for of_test in drawn for item in of_test}
    return [item for item in items if item.nodeid in kept]


def slow_files_first(items: list[pytest.Item]) -> None:
    """Where processes take files in turn, none is left alone with a long one at the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes, which all come to the same order
        slow_files_first(items)
    if config.getoption("quick"):
        kept = quick(items)
        chosen = {*kept}
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept
    if HAS_GPU:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU, and torch sees none"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    n_gpu_tests = sum("gpu" in getattr(report, "keywords", ()) for report in skipped)
    if n_gpu_tests and not HAS_GPU:
        tests = "GPU test" if n_gpu_tests == 1 else "GPU tests"
        terminalreporter.write_line(f"{n_gpu_tests} {tests} not run: no GPU here")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of golden files and sample data."""
    return Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a small classifier and its tokenizer, for runs that load it themselves."""
    import evaluation_samples

    return evaluation_samples.save_classifier(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def cli_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny classifier that reads 64 tokens, and its tokenizer."""
    import cli_explain

    return cli_explain.save_classifier(tmp_path_factory.mktemp("model"))


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str], cli_folder: str) -> Callable[..., tuple[int, str, str]]:
    """Run ``decompx-fast explain``; exit code, standard output, standard error."""
    from decompx_fast.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["explain", "--model", cli_folder, *map(str, arguments)])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def bert() -> Any:
    """An explainer of three classes with BERT's tokenizer, of 64 positions."""
    import explainers

    return explainers.bert(64)


@pytest.fixture(scope="module")
def roberta() -> Any:
    """An explainer of two classes with a byte-level tokenizer, of 64 positions."""
    import explainers

    return explainers.roberta(64)


@pytest.fixture(scope="module")
def bare() -> Any:
    """An explainer without a tokenizer, for token ids."""
    import explainers

    return explainers.bare()
