"""Measured launch choices: what the tuner picks, what it writes, and what a file must be for the kernels to use it."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ops_cases import DEVICE

from decompx_fast import ops
from decompx_fast.errors import InputError
from decompx_fast.kernels import launch
from decompx_fast.ops.backends import launches

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import tune

ARCH = launch.arch_of(torch.device(DEVICE))


@pytest.fixture
def file(tmp_path):
    """A file of choices that differ from those built in, and a way to change what it holds."""
    built_in = launch.reasoned(ARCH)
    few = replace(built_in.matrix["ieee", "few"], block_m=32, block_n=32)
    choices = launch.Choices(launch.RowChoice(8 << 10, 2, 4), {**built_in.matrix, ("ieee", "few"): few})
    content = {
        "format": launches.FORMAT,
        "device": launches.device_name(torch.device(DEVICE)),
        "choices": launches.to_json(choices),
    }
    path = tmp_path / "launches.json"

    def write(**changes):
        path.write_text(json.dumps(content | changes))
        return path

    write.choices = choices
    yield write
    launch.adopt(ARCH, None)


def test_choices_in_a_file_are_those_the_kernels_are_launched_with(file):
    before = launch.row_tile(512, 768, 2, ARCH), launch.matrix_tile("ieee", "few", ARCH)
    ops.use_launches(file(), DEVICE)
    assert launch.choices(ARCH) == file.choices
    assert launch.row_tile(512, 768, 2, ARCH) != before[0]
    assert launch.matrix_tile("ieee", "few", ARCH).block_m == 32
    ops.use_launches(None, DEVICE)
    assert (launch.row_tile(512, 768, 2, ARCH), launch.matrix_tile("ieee", "few", ARCH)) == before


def test_kernels_are_right_under_other_choices(file):
    torch.manual_seed(0)
    alpha, p = torch.rand(1, 2, 7, 7, device=DEVICE), torch.randn(1, 7, 5, 2, 8, device=DEVICE)
    x, scale = torch.randn(1, 7, 5, 24, device=DEVICE), torch.rand(1, 7, device=DEVICE) + 0.5
    expected = torch.einsum("bhij,bjkhv->bikhv", alpha, p), ops.layernorm_(x.clone(), scale, backend="torch")
    ops.use_launches(file(), DEVICE)
    torch.testing.assert_close(ops.mixing(alpha, p, backend="triton"), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ops.layernorm_(x, scale, backend="triton"), expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "another"}, "holds no launch choices"),
        ({"device": "some other GPU"}, "measured on 'some other GPU'"),
        ({"choices": {"rows": {}, "matrix": {}}}, "is not complete"),
        ({"choices": None}, "is not complete"),
    ],
)
def test_files_that_are_not_for_this_device_are_refused(file, changes, message):
    with pytest.raises(InputError, match=message):
        ops.use_launches(file(**changes), DEVICE)
    assert launch.choices(ARCH) == launch.reasoned(ARCH)


@pytest.mark.parametrize("number", [0, -4, 48, 1.5, True, None, "4"])
def test_numbers_that_no_kernel_could_be_launched_with_are_refused(file, number):
    choices = launches.to_json(file.choices)
    choices["matrix"]["half/many"]["block_m"] = number
    with pytest.raises(InputError, match="block_m"):
        ops.use_launches(file(choices=choices), DEVICE)


def test_a_file_that_is_not_there_or_no_json_is_refused(tmp_path):
    (tmp_path / "broken.json").write_text("{")
    for name in ("missing.json", "broken.json"):
        with pytest.raises(InputError, match=name):
            ops.use_launches(tmp_path / name, DEVICE)


def test_the_fastest_candidate_is_taken_and_the_first_of_equals():
    assert tune.fastest("abcd", {"a": math.inf, "b": 2.0, "c": 1.0, "d": 1.0}.get) == ("c", 1.0)
    with pytest.raises(RuntimeError, match="none of the candidates"):
        tune.fastest("ab", lambda _: math.inf)


@pytest.mark.slow
def test_the_tuner_calls_every_kind_of_kernel_and_leaves_the_choices_as_they_were(monkeypatch):
    """Two candidates of each sort on small tensors: what is timed is noise here, what is called is not."""
    monkeypatch.setattr(tune, "D", 48)
    monkeypatch.setattr(tune, "F", 64)
    monkeypatch.setattr(tune, "HEADS", 2)
    monkeypatch.setattr(tune, "ROW_CANDIDATES", tune.ROW_CANDIDATES[:1])
    monkeypatch.setattr(tune, "MATRIX_CANDIDATES", tune.MATRIX_CANDIDATES[:1])
    monkeypatch.setattr(tune, "rotating", lambda make, _: iter(lambda: make(), None))
    monkeypatch.setattr(tune, "median_seconds", lambda call, _: call().sum().item() * 0 + 1.0)
    chosen = tune.tune(DEVICE, 8)
    assert chosen == launch.reasoned(ARCH)  # all are equally fast, and the built-in ones come first
    assert launch.choices(ARCH) == launch.reasoned(ARCH)
