"""A state on disk against the same in memory: numbers, seconds, memory, and bytes read and written against the floor.

    python bench/out_of_core.py --part disk --tokens 2048 --layers 3 --folder /a/disk/with/room
    python bench/out_of_core.py --part memory --tokens 2048 --layers 3 --folder /a/disk/with/room

BERT-base's shape with random weights, random ids, two classes, AbsDot, float32, each run in a process of its own, which
leaves its scores in the folder for the other. In the first layer the state is written, read and written; in the last it
is read; between them each layer reads and writes it twice: that is the floor. What the system still has of the file in
memory is not read again, so with enough memory the disk reads less. ``--group`` names a control group (version 1 or 2)
whose limit of memory holds for the run on disk: then the system's cache of the file is within that limit too. Writes
``bench/results/out-of-core.json`` and its page.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import torch
from bulk import RESULTS, machine, resident_mb

from decompx_fast.errors import counted

SEED = 0
PARTS = ("disk", "memory")


def make_explainer(tokens: int, layers: int) -> Any:
    """BERT-base's shape, of so many layers."""
    from transformers import BertConfig, BertForSequenceClassification

    from decompx_fast import DecompX

    torch.manual_seed(SEED)
    config = BertConfig(max_position_embeddings=tokens, num_hidden_layers=layers, vocab_size=1000)
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():  # as they begin, all biases are zero
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(std=0.02)
    return DecompX(model)


def disk_bytes() -> tuple[int, int]:
    """What this process has had read from disks, and written to them."""
    found = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(found["read_bytes"]), int(found["write_bytes"])


def one(asked: argparse.Namespace, storage: str, connection: Any) -> None:
    """One explanation, in this process."""
    if asked.group and storage == "disk":
        Path(asked.group, "cgroup.procs").write_text(str(os.getpid()))
    explainer = make_explainer(asked.tokens, asked.layers)
    ids = torch.randint(1000, (asked.tokens,), generator=torch.Generator().manual_seed(SEED)).tolist()
    options: dict[str, Any] = {"engine": "forward", "path": asked.path, "workspace_bytes": asked.workspace << 20}
    if storage == "disk":
        options |= {"storage": "disk", "folder": asked.folder}
    explainer.explain(ids[:16], **options)
    loaded, before = resident_mb(os.getpid(), "VmRSS"), disk_bytes()
    start = time.perf_counter()
    found = explainer.explain(ids, **options)
    seconds = time.perf_counter() - start
    read, written = (now - then for now, then in zip(disk_bytes(), before, strict=True))
    error = found.completeness_error
    memory = {"loaded_mb": loaded, "peak_mb": resident_mb(os.getpid())}
    connection.send((found.scores, {"seconds": seconds, **memory, "read": read, "written": written, "error": error}))


def measure(asked: argparse.Namespace, storage: str) -> tuple[torch.Tensor, dict[str, Any]]:
    """The same in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=one, args=(asked, storage, there))
    process.start()
    there.close()
    found: tuple[torch.Tensor, dict[str, Any]] = here.recv()
    process.join()
    return found


def limit_mb(group: str | None) -> float | None:
    """What a control group leaves its processes."""
    names = ("memory.limit_in_bytes", "memory.max")
    files = [Path(group, name) for name in names] if group else []
    return next((int(file.read_text()) / 2**20 for file in files if file.exists()), None)


def page(runs: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = ["# A state on disk", ""]
    for run in runs:
        gib, layers = run["state_bytes"] / 2**30, run["layers"]
        floor = {"read": (2 * layers - 2) * gib, "written": (2 * layers - 2) * gib}
        limit = f", in a control group of {run['limit_mb']:,.0f} MiB" if run.get("limit_mb") else ""
        lines += [
            f"`python bench/out_of_core.py --tokens {run['tokens']} --layers {layers} --workspace {run['workspace']}`: "
            f"{run['machine']}, {counted(run['threads'], 'thread')}, PyTorch {run['torch']}. A state of {gib:.1f} GiB."
            + (
                f" Largest difference of a score: {run['difference']:.1e} of the largest."
                if "difference" in run
                else ""
            ),
            "",
            "| state | s | process before | process at most | read from the disk | floor | written | floor "
            "| completeness error |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for name in filter(run.__contains__, PARTS):
            one, is_disk = run[name], name == "disk"
            moved = (
                f"{one[what] / 2**30:.1f} GiB | {floor[what]:.1f} GiB" if is_disk else " | "
                for what in ("read", "written")
            )
            lines.append(
                f"| {name}{limit if is_disk else ''} | {one['seconds']:.0f} | {one['loaded_mb']:,.0f} MiB "
                f"| {one['peak_mb']:,.0f} MiB | {' | '.join(moved)} | {one['error']:.1e} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--workspace", type=int, default=768, help="MiB")
    parser.add_argument("--path", default="auto")
    parser.add_argument("--folder", default=".", help="of the file")
    parser.add_argument("--group", help="a control group for the run on disk")
    asked = parser.parse_args()
    scores, measured = measure(asked, asked.part)
    print(json.dumps(measured), flush=True)
    name = f"scores-{asked.tokens}-{asked.layers}-{{}}.pt"
    torch.save(scores, Path(asked.folder, name.format(asked.part)))
    key = {"tokens": asked.tokens, "layers": asked.layers, "workspace": asked.workspace}
    file = RESULTS / "out-of-core.json"
    runs = json.loads(file.read_text())["runs"] if file.exists() else []
    run = next((one for one in runs if key.items() <= one.items()), None)
    if run is None:
        runs.append(run := {**key, "state_bytes": asked.tokens**2 * 768 * 4})
    run |= {**machine(), "threads": torch.get_num_threads(), asked.part: measured}
    if asked.part == "disk":
        run["limit_mb"] = limit_mb(asked.group)
    files = [Path(asked.folder, name.format(part)) for part in PARTS]
    if all(map(Path.exists, files)):
        on_disk, in_memory = map(torch.load, files)
        run["difference"] = ((on_disk - in_memory).abs().max() / in_memory.abs().max()).item()
    file.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    (RESULTS / "out-of-core.md").write_text(page(runs))
    print((RESULTS / "out-of-core.md").read_text())


if __name__ == "__main__":
    main()
