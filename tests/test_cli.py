"""The command line: what it prints and writes, exit codes, one line for each error."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys

import pytest

from decompx_fast.cli import main


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def fails(capsys, code: int, *arguments: str) -> str:
    """The one line that an error prints."""
    found, out, err = run(capsys, *arguments)
    assert found == code
    assert out == ""
    assert err.count("\n") == 1 and err.startswith("decompx-fast: ")
    assert "Traceback" not in err
    return err


def test_explain_prints_a_table_for_each_text(capsys, cli_folder):
    code, out, err = run(capsys, "explain", "a good film", "a bad film", "--model", cli_folder)
    assert (code, err) == (0, "")
    assert out.count("Predicted") == 2
    assert "good" in out and "bad" in out


def test_explain_fits_80_columns(capsys, cli_folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, "explain", "a good film, though long " * 3, "--model", cli_folder)
    assert max(map(len, out.splitlines())) <= 80


def test_explain_writes_json_that_adds_up(capsys, cli_folder, tmp_path):
    path = tmp_path / "out.json"
    file = tmp_path / "texts.txt"
    file.write_text("one text\n\nanother one, longer\n", encoding="utf-8")
    code, out, err = run(
        capsys, "explain", "first", "--file", str(file), "--model", cli_folder, "--json", str(path), "--quiet"
    )
    assert (code, out, err) == (0, "", "")
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert [row["texts"] for row in rows] == [["first"], ["one text"], ["another one, longer"]]
    for row in rows:
        for column, logit in enumerate(row["logits"]):
            assert sum(score[column] for score in row["scores"]) == pytest.approx(logit, abs=1e-4)


def test_explain_json_to_standard_output_is_json_alone(capsys, cli_folder):
    code, out, _ = run(capsys, "explain", "a good film", "--model", cli_folder, "--json", "-", "--words")
    assert code == 0
    assert json.loads(out)[0]["source_unit"] == "word"


def test_explain_writes_a_page_with_every_text(capsys, cli_folder, tmp_path):
    path = tmp_path / "page.html"
    code, _, err = run(capsys, "explain", "<q>bold</q>", "plain", "--model", cli_folder, "--html", str(path), "--quiet")
    assert (code, err) == (0, "")
    page = path.read_text(encoding="utf-8")
    assert "plain" in page and "<q>" not in page and "&lt;" in page


def test_explain_target_by_name_and_index_agree(capsys, cli_folder):
    by_index = run(capsys, "explain", "a film", "--model", cli_folder, "--target", "1", "--json", "-")[1]
    by_name = run(capsys, "explain", "a film", "--model", cli_folder, "--target", "LABEL_1", "--json", "-")[1]
    assert json.loads(by_index)[0]["scores"] == json.loads(by_name)[0]["scores"]
    assert json.loads(by_name)[0]["targets"] == ["LABEL_1"]


def test_explain_options_reach_the_method(capsys, cli_folder):
    out = run(
        capsys, "explain", "a film", "--model", cli_folder, "--bias", "none", "--variant", "released", "--json", "-"
    )[1]
    row = json.loads(out)[0]
    assert (row["options"]["bias"], row["options"]["variant"], row["engine"]) == ("none", "released", "adjoint")


def test_truncate_warns_on_standard_error(capsys, cli_folder):
    code, _, err = run(capsys, "explain", "word " * 600, "--model", cli_folder, "--truncate", "--quiet")
    assert code == 0
    assert err.startswith("decompx-fast: warning: ") and err.count("\n") == 1


def test_usage_errors_exit_with_2(capsys, cli_folder):
    assert "nothing to explain" in fails(capsys, 2, "explain")
    assert "'absdot'" in fails(capsys, 2, "explain", "a", "--bias", "x")
    assert "No such option" in fails(capsys, 2, "explain", "a", "--nope")
    assert "no such command" in fails(capsys, 2, "nope").lower()
    assert "engine='x'" in fails(capsys, 2, "explain", "a", "--model", cli_folder, "--engine", "x")
    assert "dtype='x'" in fails(capsys, 2, "explain", "a", "--model", cli_folder, "--dtype", "x")
    assert "sources='x'" in fails(capsys, 2, "explain", "a", "--model", cli_folder, "--sources", "x").replace("--", "")
    assert "'nope' is no device" in fails(capsys, 2, "explain", "a", "--model", cli_folder, "--device", "nope")
    for target in ("x", "2", "-1", "label_7"):
        assert "classes are 'LABEL_0'" in fails(capsys, 2, "explain", "a", "--model", cli_folder, "--target", target)


def test_wrong_models_exit_with_1(capsys, cli_folder, tmp_path):
    assert "no folder" in fails(capsys, 1, "explain", "a", "--model", str(tmp_path / "nowhere"))
    assert "config.json" in fails(capsys, 1, "explain", "a", "--model", str(tmp_path))
    assert "cannot be used here" in fails(capsys, 1, "explain", "a", "--model", cli_folder, "--device", "xla")


def test_wrong_files_exit_with_1(capsys, cli_folder, tmp_path):
    empty, latin = tmp_path / "empty.txt", tmp_path / "latin.txt"
    empty.write_bytes(b"")
    latin.write_bytes("gut\nschön\n".encode("latin-1"))
    assert "0 bytes" in fails(capsys, 1, "explain", "--file", str(empty), "--model", cli_folder)
    assert "not UTF-8 (line 2" in fails(capsys, 1, "explain", "--file", str(latin), "--model", cli_folder)
    assert "is a directory" in fails(capsys, 1, "explain", "--file", str(tmp_path), "--model", cli_folder)
    assert "No such file" in fails(capsys, 1, "explain", "--file", str(tmp_path / "none"), "--model", cli_folder)


def test_unwritable_output_is_refused_before_the_work(capsys, cli_folder, tmp_path):
    assert "no folder" in fails(
        capsys, 1, "explain", "a", "--model", cli_folder, "--html", str(tmp_path / "no" / "x.html")
    )
    for name in ("json", "jsonl", "html"):
        err = fails(capsys, 1, "explain", "a", "--model", cli_folder, f"--{name}", str(tmp_path))
        assert "is a directory" in err and f"explanations.{name}" in err


def test_an_error_leaves_the_old_file_and_what_is_done_beside_it(capsys, cli_folder, tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old", encoding="utf-8")
    options = ("--model", cli_folder, "--json", str(path), "--quiet")
    err = fails(capsys, 1, "explain", "fine", "word " * 600, *options)
    assert "text 2 has 602 tokens" in err and "--truncate" in err and "truncate=True" not in err
    assert err.endswith(f"; 1 of 2 inputs was done before, and kept in {tmp_path / 'out.partial.json'}\n")
    assert path.read_text(encoding="utf-8") == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.json", "out.partial.json"]
    assert [row["texts"] for row in json.loads((tmp_path / "out.partial.json").read_text())] == [["fine"]]
    assert run(capsys, "explain", "fine", *options)[0] == 0
    assert [file.name for file in tmp_path.iterdir()] == ["out.json"]


def test_an_error_at_the_first_input_writes_nothing(capsys, cli_folder, tmp_path):
    outputs = [f"--{name}={tmp_path / f'out.{name}'}" for name in ("json", "jsonl", "html")]
    fails(capsys, 1, "explain", "word " * 600, "--model", cli_folder, *outputs)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_is_one_line(capsys, cli_folder, monkeypatch):
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("decompx_fast.calls.job.linearize", interrupt)
    assert "interrupted" in fails(capsys, 1, "explain", "a", "--model", cli_folder)


def test_plan_prints_memory_operations_and_path(capsys, cli_folder):
    code, out, err = run(capsys, "plan", "--model", cli_folder, "--tokens", "40", "--dtype", "float32")
    assert (code, err) == (0, "")
    for word in ("path", "peak", "state", "GFLOP", "fits"):
        assert word in out
    state = 40 * 40 * 16 * 4  # the hidden size of the tiny model is 16
    assert f"  state             {math.ceil(state / 2**20)} MiB" in out


def test_plan_that_does_not_fit_says_what_to_do(capsys, cli_folder):
    code, out, err = run(capsys, "plan", "--model", cli_folder, "--tokens", "40", "--batch", "100000000")
    assert code == 1
    assert re.search(r"^fits +no$", out, re.MULTILINE)
    assert err.count("\n") == 1 and "--batch-size 1" in err


def test_messages_name_an_option_once(capsys, cli_folder):
    """Plans name the argument of Python and the option; the command line has the option alone."""
    _, _, err = run(capsys, "plan", "--model", cli_folder, "--tokens", "2000000")
    assert "at most 64 tokens: --truncate cuts them" in err
    _, _, err = run(capsys, "plan", "--model", cli_folder, "--tokens", "40", "--batch", "100000000")
    assert "inputs one at a time (--batch-size 1), " in err
    assert "batch_size=1" not in err and "--engine=" not in err and "--engine adjoint with" in err


def test_plan_of_more_tokens_than_the_model_has_positions_offers_no_memory_for_them(capsys, cli_folder):
    code, out, err = run(capsys, "plan", "--model", cli_folder, "--tokens", "2000000")
    assert code == 1
    assert err.count("\n") == 1 and "--truncate" in err
    assert re.search(r"the model has positions for \d+ tokens", err)
    assert "bfloat16" not in err + out and "GiB are free" not in err


def test_plan_advises_options_that_the_command_has(capsys, cli_folder):
    _, out, _ = run(capsys, "plan", "--model", cli_folder, "--tokens", "40", "--batch", "100000000")
    advised = set(re.findall(r"--[a-z-]+", out))
    assert {"--batch-size", "--engine"} <= advised
    _, help_, _ = run(capsys, "explain", "--help")
    assert {"--sources", "--workspace", "--dtype", "--truncate"} | advised <= set(re.findall(r"--[a-z-]+", help_))


def test_workspace_and_sources_reach_the_engine(capsys, cli_folder):
    text = "a joy. to watch it again!"
    one = run(
        capsys, "explain", text, "--model", cli_folder, "--json", "-", "--sources", "sentence", "--workspace", "1"
    )
    assert one[0] == 0, one
    assert json.loads(one[1])[0]["source_unit"] == "sentence"
    code, out, _ = run(capsys, "plan", "--model", cli_folder, "--tokens", "40", "--workspace", "7")
    assert code == 0 and "to fit in 7 MiB" in out
    code, out, _ = run(capsys, "plan", "--model", cli_folder, "--tokens", "40", "--engine", "adjoint", "--bias", "none")
    assert code == 0 and "forward passes" in out


def test_doctor_names_versions_devices_and_backends(capsys):
    code, out, err = run(capsys, "doctor")
    assert (code, err) == (0, "")
    for word in ("torch", "transformers", "triton", "cpu", "usable"):
        assert word in out


@pytest.mark.slow
def test_command_runs_as_a_program(cli_folder):
    command = [sys.executable, "-m", "decompx_fast", "explain", "a good film", "--model", cli_folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Predicted" in done.stdout
    assert done.stderr == ""
