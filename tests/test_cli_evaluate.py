"""``decompx-fast evaluate``: what it prints and writes, and one line for each error."""

from __future__ import annotations

import os
import signal

import evaluation_samples
import pytest

from decompx_fast.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return evaluation_samples.save_classifier(tmp_path_factory.mktemp("model"))


@pytest.fixture
def data(tmp_path):
    return str(evaluation_samples.write_texts(tmp_path / "texts.csv", 20))


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["evaluate", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.slow
def test_evaluate_prints_the_table_that_it_writes(capsys, folder, data, tmp_path):
    out = tmp_path / "out"
    arguments = (
        "--data",
        data,
        "--model",
        folder,
        "--out",
        str(out),
        "--methods",
        "random, occlusion",
        "--limit",
        "12",
    )
    code, printed, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    table = printed.split("\n\n")[0]
    assert table in (out / "report.md").read_text(encoding="utf-8")
    assert table.count("\n") == 3 and "Leave-one-out" in table
    assert "report.md" in printed.splitlines()[-1]
    assert run(capsys, *arguments, "--quiet") == (0, "", "")


def test_evaluate_takes_a_seed_metrics_and_columns(capsys, folder, data, tmp_path):
    path = tmp_path / "other.tsv"
    path.write_text("words\tclass\nnot a dull film\tLABEL_1\na mess\tLABEL_0\n", encoding="utf-8")
    columns = ("--text-column", "words", "--label-column", "class")
    options = ("--methods", "random", "--metrics", "accuracy", "--seed", "7", "--out", str(tmp_path / "out"))
    code, printed, _ = run(capsys, "--data", str(path), "--model", folder, *columns, *options)
    assert code == 0
    assert printed.startswith("| Method | Accuracy ↓ |\n")
    assert "Seed (of ties between equal scores, of random scores, folds and bootstrap): 7." in (
        tmp_path / "out" / "report.md"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--methods", "nonsense"), 2, "unknown attribution method 'nonsense'"),
        (("--metrics", "nonsense"), 2, "unknown metric 'nonsense'"),
        (("--text-column", "nonsense"), 2, "--text-column='nonsense'"),
        (("--workers", "0"), 2, "--workers"),
        (("--model", "/no/such/folder"), 1, "there is no folder"),
    ],
)
def test_wrong_use_is_one_line(capsys, folder, data, tmp_path, arguments, code, message):
    options = ("--data", data, "--out", str(tmp_path / "out"), "--methods", "random", "--model", folder)
    found, printed, err = run(capsys, *options, *arguments)
    assert (found, printed) == (code, "")
    assert message in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_data_and_out_must_be_given(capsys, data):
    assert "--out" in run(capsys, "--data", data)[2]
    assert "--data" in run(capsys, "--out", "out")[2]


def test_other_settings_are_refused_in_one_line(capsys, folder, data, tmp_path):
    arguments = (
        "--data",
        data,
        "--model",
        folder,
        "--out",
        str(tmp_path / "out"),
        "--methods",
        "random",
        "--quiet",
        "--metrics",
        "aopc",
    )
    assert run(capsys, *arguments)[0] == 0
    code, _, err = run(capsys, *arguments, "--seed", "3")
    assert code == 1
    assert "seed: 0 there, 3 now" in err and err.count("\n") == 1


def test_labels_of_other_names_are_mapped(capsys, folder, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("text,label\nnot a dull film,pos\na mess,neg\n", encoding="utf-8")
    options = ("--data", str(path), "--model", folder, "--methods", "random", "--metrics", "accuracy")
    out = ("--out", str(tmp_path / "out"))
    code, _, err = run(capsys, *options, *out)
    assert code == 1 and "label 'pos'" in err and "say by --label-map" in err and err.count("\n") == 1
    found, _, err = run(capsys, *options, *out, "--label-map", "pos=LABEL_1", "--label-map", "neg=LABEL_0")
    assert (found, err) == (0, "")
    assert run(capsys, *options, *out, "--label-map", "pos")[0] == 2
    assert run(capsys, *options, *out, "--label-map", "pos=2")[0] == 2


def test_an_ended_run_says_where_it_goes_on(capsys, folder, data, tmp_path, monkeypatch):
    def end(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("decompx_fast.evaluation.work.Worker.compute", end)
    out = tmp_path / "out"
    code, printed, err = run(capsys, "--data", data, "--model", folder, "--methods", "random", "--out", str(out))
    assert (code, printed) == (1, "")
    assert err == (
        f"decompx-fast: ended by SIGTERM; what is finished is kept in {out}, where the same command goes on\n"
    )
