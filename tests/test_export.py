"""Files: what is saved comes back, and nothing half-done is left."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

import pytest
import torch
from explanation_samples import sample, simple
from safetensors import safe_open
from safetensors.torch import save_file

from decompx_fast.errors import InputError, OutputError
from decompx_fast.result import file as export
from decompx_fast.result.explanation import Explanation
from decompx_fast.result.kinds import Site


def rich_explanation() -> Explanation:
    shared = torch.arange(24.0).reshape(2, 3, 4)
    return sample(
        ["\u6771\u4eac \U0001f600 don't", 'a "quote"\n'],
        bias_token=torch.tensor([0.5, -0.25], dtype=torch.float64),
        stages={"aggregated.2": shared[:, :, 1:3], "attention.0": shared, "attention.1": shared.half()},
        component_shares={"ffn.0": shared.reshape(12, 2)[:1].expand(13, 2)},
        bias_sites=(Site(0, "ln1", torch.tensor([0.5, 0.0])), Site(-1, "head.0", torch.tensor([0.0, -0.25]))),
        metadata={"model": "m", "notes": [1, None, {"x": 1.5}]},
    )


def assert_same(found: Explanation, expected: Explanation) -> None:
    for field in dataclasses.fields(Explanation):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(theirs, torch.Tensor):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs), field.name
        elif field.name in ("stages", "component_shares"):
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
            assert all(ours[name].dtype == theirs[name].dtype for name in theirs)
        elif field.name == "bias_sites" and theirs is not None:
            assert [(s.layer, s.place, s.value.tolist()) for s in ours] == [
                (s.layer, s.place, s.value.tolist()) for s in theirs
            ]
        else:
            assert ours == theirs, field.name


@pytest.mark.parametrize(
    "explanation",
    [
        rich_explanation(),
        sample("Good").words(),
        simple([1, 2], texts=(), spans=(None, None), problem_type="regression"),
        simple(torch.ones(2, 1).expand(2, 3)),
    ],
    ids=["everything", "words", "ids only", "expanded"],
)
def test_save_and_load_give_the_same(explanation: Explanation, tmp_path: Path) -> None:
    path = tmp_path / "explanation.safetensors"
    explanation.save(path)
    assert_same(Explanation.load(str(path)), explanation)
    assert os.listdir(tmp_path) == [path.name]


def test_save_writes_format_and_version(tmp_path: Path) -> None:
    simple([1]).save(tmp_path / "e")
    with safe_open(tmp_path / "e", framework="pt") as file:
        assert file.metadata()["format"] == "decompx_fast.result.explanation"
        assert file.metadata()["version"] == "1"
        assert json.loads(file.metadata()["explanation"])["tokens"] == ["a"]


def test_save_keeps_the_users_file_mode(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    simple([1]).save(tmp_path / "e")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "e")}
    assert len(modes) == 1
    (tmp_path / "e").chmod(0o640)
    simple([1, 2]).save(tmp_path / "e")
    assert stat.S_IMODE((tmp_path / "e").stat().st_mode) == 0o640


def test_save_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "e")
    simple([1]).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert len(Explanation.load(tmp_path / "real" / "e")) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), MemoryError()])
def test_interrupted_save_leaves_the_old_file(error: BaseException, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "e.safetensors"
    simple([1]).save(path)
    before = path.read_bytes()

    def interrupted(tensors: dict, name: str, metadata: dict) -> None:
        Path(name).write_bytes(b"half of ")
        raise error

    monkeypatch.setattr(export, "save_file", interrupted)
    expected = OutputError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as caught:
        simple([1, 2]).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]
    if expected is OutputError:
        assert str(path) in str(caught.value)
        assert "No space left" in str(caught.value)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_interrupt_at_the_end_leaves_the_old_file(step: str, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "e.safetensors"
    simple([1]).save(path)
    before = path.read_bytes()

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(export.os, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        simple([1, 2]).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_save_to_a_directory(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a directory: give a file in it") as caught:
        simple([1]).save(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_save_without_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "e"
    with pytest.raises(OutputError, match=r"no folder .*missing\. Create it") as caught:
        simple([1]).save(path)
    assert str(path) in str(caught.value)
    assert not os.listdir(tmp_path)


def test_save_where_nothing_may_be_written(tmp_path: Path, monkeypatch) -> None:
    def refused(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(export.os, "open", refused)
    with pytest.raises(OutputError, match="e cannot be written: Permission denied. Choose a path"):
        simple([1]).save(tmp_path / "e")


@pytest.mark.parametrize("name", ["x" * 300, "nul\0byte"])
def test_save_to_an_impossible_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        simple([1]).save(os.path.join(tmp_path, name))
    assert not os.listdir(tmp_path)


def test_save_never_replaces_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="not a regular file"):
        simple([1]).save(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_save_rejects_options_that_are_no_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="metadata must hold plain JSON values"):
        simple([1], metadata={"model": object()}).save(tmp_path / "e")
    assert not os.listdir(tmp_path)


def other_format(path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, path)


def newer_version(path: Path) -> None:
    save_file({}, path, metadata={"format": export.FORMAT, "version": "2", "explanation": "{}"})


def without_tensors(path: Path) -> None:
    save_file({}, path, metadata={"format": export.FORMAT, "version": "1", "explanation": "{}"})


def without_json(path: Path) -> None:
    save_file({}, path, metadata={"format": export.FORMAT, "version": "1", "explanation": "{"})


def cut_short(path: Path) -> None:
    simple([1]).save(path)
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (Path.mkdir, "is a directory"),
        (Path.touch, r"is empty \(0 bytes\)"),
        (lambda path: path.write_text("some text that is no such file"), "cannot be read as an explanation"),
        (cut_short, "cannot be read as an explanation"),
        (other_format, "holds no explanation"),
        (newer_version, "format version 2.*reads up to 1: update decompx_fast"),
        (without_tensors, "is damaged"),
        (without_json, "is damaged"),
    ],
)
def test_load_names_the_file_and_what_is_wrong(make, message: str, tmp_path: Path) -> None:
    path = tmp_path / "e.safetensors"
    make(path)
    with pytest.raises(InputError, match=message) as caught:
        Explanation.load(path)
    assert str(path) in str(caught.value)


def test_what_the_writer_refuses_is_no_fault_of_the_file(tmp_path) -> None:
    def refuse(_: str) -> None:
        raise InputError("the text is empty")

    with pytest.raises(InputError, match="^the text is empty$"):
        export.atomic_write(tmp_path / "x", refuse)
    assert list(tmp_path.iterdir()) == []
