"""A state on disk: the same numbers as in memory, few pages of it there at once, and no file left, whatever happens."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
import shard_cases
import synthetic
import torch

from decompx_fast import DecompX
from decompx_fast.cli import main
from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference, storage
from decompx_fast.engines.forward import plan as planning
from decompx_fast.engines.forward import propagation
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.forward.costs import Blocks
from decompx_fast.engines.forward.plan import ModelShape, plan
from decompx_fast.engines.forward.propagation import Propagation
from decompx_fast.engines.storage import Disk
from decompx_fast.errors import OptionError, PlanError

BERT_BASE = ModelShape(layers=12, d=768, f=3072, heads=12, kv_heads=12, head_size=64)
#: Every rule once, and every form of a layer, of what else is asked, and of a state beside the stream.
NAMES = [
    name
    for name in shard_cases.cases()
    if name.startswith(("absdot-", "bias_token-")) or name.endswith(("-direct", "-groups", "-language-model"))
]


@pytest.mark.parametrize("workspace_bytes", [None, 1])
@pytest.mark.parametrize("name", NAMES)
def test_answer_is_that_of_a_state_in_memory(name, workspace_bytes, tmp_path):
    case = shard_cases.cases()[name]
    options = case.options | {"workspace_bytes": workspace_bytes}
    linearization = case.make()
    ours = forward.attribute(linearization, case.config, storage="disk", folder=str(tmp_path), **options)
    if "positions" in options:  # vectors of these only the forward engine keeps
        theirs = forward.attribute(linearization, case.config, **options)
    else:
        asked = {key: options.get(key) for key in ("sources", "terms")}
        theirs = reference.attribute(linearization, case.config, **asked)
    limit = 1e-6 if "dot" in (case.config.bias, case.config.bias_token_split) else 1e-10
    assert (ours.scores - theirs.scores).abs().max() <= limit * theirs.scores.abs().max()
    assert ours.stages.keys() == theirs.stages.keys()
    for stage in ours.stages:
        assert (ours.stages[stage] - theirs.stages[stage]).abs().max() <= limit * theirs.stages[stage].abs().max()


def mapped_kib() -> int:
    """How much of files of states is in memory now, as mapped by this process."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = "decompx-fast-" in line or "(deleted)" in line
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="what is mapped is told by Linux")
def test_a_block_at_a_time_is_in_memory(monkeypatch, tmp_path):
    in_turn, most, before = Disk._in_turn, [], mapped_kib()  # other tests of this process may have left some

    def watched(self, blocks, parts):
        for one in in_turn(self, blocks, parts):
            yield one
            most.append(mapped_kib() - before)

    monkeypatch.setattr(Disk, "_in_turn", watched)
    # Rows of 256 KiB: of each, Linux maps 64 KiB beside what is looked at.
    linearization = synthetic.hugging_face(n=32, d=2048, f=16, heads=4, dtype=torch.float32)
    options = {"path": "direct", "workspace_bytes": 1}
    expected = forward.attribute(linearization, DecompXConfig(), **options).scores
    found = forward.attribute(linearization, DecompXConfig(), storage="disk", folder=str(tmp_path), **options).scores
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)  # its blocks are smaller
    state_kib = 32 * 32 * 2048 * 4 >> 10
    assert 0 < max(most) < 0.6 * state_kib
    assert mapped_kib() <= before


def test_looks_at_a_state_in_half_precision_go_block_by_block(monkeypatch, tmp_path):
    looked_at = []

    def watched(name, look, at=0):
        return lambda *given: (looked_at.append((name, tuple(given[at].shape[:-2]))), look(*given))[1]

    monkeypatch.setattr(propagation, "largest_vectors", watched("largest_vectors", propagation.largest_vectors))
    watch = propagation.RangeWatch
    monkeypatch.setattr(watch, "state", watched("state", watch.state, at=1))
    linearization, options = synthetic.hugging_face(n=8, layers=3), {"dtype": torch.float16, "path": "direct"}
    expected = forward.attribute(linearization, DecompXConfig(), **options).expected_error
    looked_at.clear()
    monkeypatch.setattr(planning, "choose_blocks", lambda *_: (1 << 30, Blocks(2, 8, 2, 2)))
    found = forward.attribute(linearization, DecompXConfig(), storage="disk", folder=str(tmp_path), **options)
    torch.testing.assert_close(found.expected_error, expected, rtol=1e-3, atol=0)
    whole = [name for name, _ in looked_at].count("largest_vectors")
    assert whole == 2 * len(linearization.embedding) * 4 and {shape for _, shape in looked_at} <= {(2,), (1,)}


@pytest.fixture
def on_disk(monkeypatch, tmp_path):
    """A storage, a state of 32 MiB in rows of 512 KiB of which nothing is in memory, and what has been read since."""
    make, files = storage.tempfile.TemporaryFile, []

    def kept(**where):
        file = make(**where)
        files.append(os.dup(file.fileno()))
        return file

    def read_bytes() -> int:
        return int(re.search(r"^read_bytes: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)[1])

    if not Path("/proc/self/io").exists():
        pytest.skip("what is read is told by Linux")
    monkeypatch.setattr(storage.tempfile, "TemporaryFile", kept)
    ours = Disk(str(tmp_path))
    state = ours.zeros(torch.zeros(0), 1, 64, 64, 2048)
    for rows in ours.by_rows(8, state):
        state[0, rows] = torch.arange(64.0)[rows, None, None]
    os.fsync(files[0])
    os.posix_fadvise(files[0], 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(files[0])
    before = read_bytes()
    state[0, 0, 0, 0].item()
    if read_bytes() == before:
        pytest.skip("tmp_path is not on a disk that tells what is read of it")
    return ours, state, lambda: read_bytes() - before


def test_a_block_of_sources_is_all_that_is_read(on_disk):
    ours, state, read = on_disk
    blocks = ours.by_sources(4, state)
    assert [float(state[0, :, next(blocks)].sum()) for _ in range(2)] == 2 * [4 * 2048 * 64 * 63 / 2]
    blocks.close()
    assert 2 * 64 * 4 * 8192 <= read() <= 3 * 64 * (4 * 8192 + 4096)  # two blocks, and the next; perhaps a page more


def test_nothing_is_read_around_what_is_looked_at_without_a_block(on_disk):
    _, state, read = on_disk
    own = torch.arange(64)
    state[0, own, own] += 1  # as an embedding is added
    assert 64 * 8192 - 4096 <= read() <= 64 * (8192 + 4096)


@pytest.mark.parametrize("path", ["direct", "operator"])
@pytest.mark.parametrize("rule", ["absdot", "dot", "cls"])
def test_a_layer_reads_and_writes_the_state_twice(monkeypatch, rule, path, tmp_path):
    passes = []

    def counted(name, of):
        return lambda *given: (passes.append(name), of(*given))[1]

    for name in ("by_sources", "by_rows"):
        monkeypatch.setattr(Disk, name, counted(name, getattr(Disk, name)))
    linearization = synthetic.hugging_face(n=7, layers=4)
    options = {"path": path, "workspace_bytes": 1, "storage": "disk", "folder": str(tmp_path)}
    forward.attribute(linearization, DecompXConfig(bias=rule), **options)
    assert passes == 3 * ["by_sources", "by_rows"] + ["by_sources"]  # of the last layer a row alone


def test_no_file_is_left_or_seen(monkeypatch, tmp_path):
    seen = []

    def failing(self, layer):
        seen.extend(os.listdir(tmp_path))
        if layer.index == 1:
            raise RuntimeError("in the middle")
        apply(self, layer)

    apply = Propagation.apply
    monkeypatch.setattr(Propagation, "apply", failing)
    with pytest.raises(RuntimeError, match="in the middle"):
        forward.attribute(synthetic.hugging_face(), DecompXConfig(), storage="disk", folder=str(tmp_path))
    assert not seen and not os.listdir(tmp_path)  # so a process that is killed leaves none either


def test_a_full_disk_is_told_before_and_when_it_fills(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    options = {"storage": "disk", "folder": str(tmp_path)}
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(PlanError, match=re.escape(f"needs 1 MiB for a state in {tmp_path}, where ")) as caught:
        forward.attribute(synthetic.hugging_face(), DecompXConfig(), **options)
    assert "No space left on device" in str(caught.value) and "name another folder" in str(caught.value)
    monkeypatch.setattr(planning, "room_in", lambda folder: 1000)
    with pytest.raises(PlanError, match=r"storage='disk' needs 1 MiB in .*, where 1 MiB are free: name another folder"):
        forward.attribute(synthetic.hugging_face(n=40), DecompXConfig(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storage": "tape"}, "storage='tape': use one of 'memory', 'disk'"),
        ({"folder": "/tmp"}, "folder='/tmp' is for a state on disk: give storage='disk' too"),
        ({"storage": "disk", "folder": 3}, "folder=3: give a folder's path as a string"),
        ({"storage": "disk", "folder": "/nowhere"}, "folder='/nowhere' is no folder that can be written to"),
        ({"storage": "disk", "engine": "reference"}, "storage='disk' is not in the reference engine"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    explainer = DecompX(shard_cases.test_families.classifier("bert"))
    with pytest.raises(OptionError, match=re.escape(message)):
        explainer.explain([1, 5, 2], **{"engine": "forward"} | options)


def test_a_folder_in_memory_and_a_device_are_refused(monkeypatch, tmp_path):
    with pytest.raises(OptionError, match="storage='disk' is for a model on the CPU, and this one is on cuda"):
        storage.storage_of("disk", None, torch.device("cuda"))
    monkeypatch.setattr(storage, "_file_system", lambda folder: "tmpfs")
    with pytest.raises(OptionError, match=r"is in memory itself \(tmpfs\)"):
        storage.storage_of("disk", str(tmp_path), torch.device("cpu"))


@pytest.mark.skipif(not Path("/proc/self/mounts").exists(), reason="file systems are told by Linux")
def test_file_systems_are_told():
    assert storage._file_system("/proc") == "proc"
    assert storage._file_system("/proc/self/../self") == "proc"


def test_plan_refuses_with_the_disk_and_more_devices_among_the_ways_out():
    refused = plan(BERT_BASE, 2048, available=4 << 30)
    ways = " ".join(refused.ways_out)
    assert not refused.fits
    assert re.search(
        r"\d+ devices or machines, each with as much memory \(torchrun --nproc-per-node \d+, group=\)", ways
    )
    assert re.search(r"storage='disk' \(--storage disk\), .* and a file of 12.0 GiB in ", ways)
    on_disk = plan(BERT_BASE, 2048, available=4 << 30, storage="disk", folder=os.getcwd())
    assert on_disk.fits and on_disk.peak_bytes < 2 << 30
    assert "on disk" in str(on_disk) and "12.0 GiB" in str(on_disk)


def test_plan_of_ranks_divides_the_state_and_counts_what_is_exchanged():
    whole, parts = plan(BERT_BASE, 512), plan(BERT_BASE, 512, ranks=4, ranks_here=2, available=1 << 40)
    assert parts.state_bytes == whole.state_bytes // 4
    assert parts.available_bytes == 1 << 39
    assert whole.exchanged_bytes == 0
    sums = 16 * (11 * 5 * 512 + 5 + 2)
    assert parts.exchanged_bytes == 2 * 3 * sums // 4 + 3 * 128 * 2 * 4
    assert "ranks" in str(parts) and "128 of 512 sources each" in str(parts)
    ragged = plan(BERT_BASE, 10, config=DecompXConfig(bias="bias_token"), ranks=4)
    assert ragged.costs.k == 3 and ragged.costs.total == 11


def test_command_line_plans_and_explains_on_disk(capsys, model, tmp_path):
    assert main(["plan", "--model", model, "--tokens", "9", "--storage", "disk", "--folder", str(tmp_path)]) == 0
    assert f"in {tmp_path}" in capsys.readouterr().out
    assert main(["plan", "--model", model, "--tokens", "9", "--ranks", "3"]) == 0
    assert "3 of 9 sources each" in capsys.readouterr().out
    asked = ["explain", "good film", "--model", model, "--storage", "disk", "--folder", str(tmp_path)]
    assert main(asked) == 0
    assert "Complete" in capsys.readouterr().out
    assert main([*asked[:-1], str(tmp_path / "none")]) == 2
    assert "--folder" in capsys.readouterr().err
