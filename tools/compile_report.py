"""Renders what ``compile_gate.py`` and ``nvcc_gate.py`` measured as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")
CUDA_ARCHS = ("sm_80", "sm_90a", "sm_100", "sm_120")


def summary(rows: list[dict[str, Any]]) -> str:
    """One line on all rows."""
    if not rows:
        return "nothing compiled"
    return (
        f"{len(rows)} compiled, at most {max(row['registers'] for row in rows)} registers and "
        f"{max(row['shared_bytes'] for row in rows) / 1024:.0f} KB of shared memory, "
        f"{sum(bool(row['spill_bytes'] or row['spill_instructions']) for row in rows)} with spills"
    )


def to_json(sections: dict[str, dict[str, Any]]) -> str:
    """The results as JSON with a line per row, so that differences can be read."""
    texts = []
    for version in in_order(sections):
        rows = ",\n".join(json.dumps(row, sort_keys=True) for row in sections[version]["rows"])
        torch_version = json.dumps(sections[version]["torch"])
        texts.append(f'{json.dumps(version)}: {{"torch": {torch_version}, "rows": [\n{rows}\n]}}')
    return "{" + ",\n".join(texts) + "}\n"


def in_order(versions: Iterable[str]) -> list[str]:
    """The newest first."""
    return sorted(versions, key=lambda version: [int(n) for n in version.split(".")[:2]], reverse=True)


def render(sections: dict[str, dict[str, Any]]) -> str:
    """A table per Triton version: a row per case and dtype, a column per architecture."""
    lines = ["# What the Triton kernels compile to", ""]
    lines += [
        "Made by `python tools/compile_gate.py` from `compile.json`. Each cell: registers per thread, KB of shared",
        "memory, matrix instructions in the code.",
        "",
    ]
    for version in in_order(sections):
        section = sections[version]
        lines += [f"## Triton {version}, PyTorch {section['torch']}", "", f"{summary(section['rows'])}.", ""]
        lines += ["| kernel | dtype | " + " | ".join(ARCHS) + " |", "| --- | --- |" + " --- |" * len(ARCHS)]
        cells = {(row["case"], row["dtype"], row["arch"]): _cell(row) for row in section["rows"]}
        for case, dtype in dict.fromkeys((row["case"], row["dtype"]) for row in section["rows"]):
            found = " | ".join(cells.get((case, dtype, arch), "") for arch in ARCHS)
            lines.append(f"| {case} | {dtype} | {found} |")
        lines.append("")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    matrix = " ".join(f"{count} {name}" for name, count in row["matrix"].items()) or "-"
    spills = f", spills {row['spill_bytes']} B" if row["spill_bytes"] or row["spill_instructions"] else ""
    return f"{row['registers']}, {row['shared_bytes'] / 1024:.0f}, {matrix}{spills}"


def cuda_to_json(result: dict[str, Any]) -> str:
    """The results of ``nvcc_gate.py`` with a line per row."""
    rows = ",\n".join(json.dumps(row, sort_keys=True) for row in result["rows"])
    return f'{{"nvcc": {json.dumps(result["nvcc"])}, "rows": [\n{rows}\n]}}\n'


def render_cuda(result: dict[str, Any]) -> str:
    """A table of the CUDA kernels: a row per kernel and dtype, a column per architecture."""
    lines = ["# What the CUDA kernels compile to", ""]
    lines += [
        f"Made by `python tools/nvcc_gate.py` from `compile_cuda.json`, with nvcc {result['nvcc']}. Each cell:",
        "registers per thread, tensor-core instructions in the code. Shared memory is asked for at launch: see",
        "`csrc/cuda/row_launch.cuh` and `mixing.cu`.",
        "",
        "| kernel | dtype | " + " | ".join(CUDA_ARCHS) + " |",
        "| --- | --- |" + " --- |" * len(CUDA_ARCHS),
    ]
    cells = {(row["case"], row["dtype"], row["arch"]): _cuda_cell(row) for row in result["rows"]}
    for case, dtype in dict.fromkeys((row["case"], row["dtype"]) for row in result["rows"]):
        found = " | ".join(cells.get((case, dtype, arch), "") for arch in CUDA_ARCHS)
        lines.append(f"| {case} | {dtype} | {found} |")
    return "\n".join([*lines, ""])


def _cuda_cell(row: dict[str, Any]) -> str:
    spills = f", spills {row['spill_bytes']} B" if row["spill_bytes"] or row["stack_bytes"] else ""
    return f"{row['registers']}, {row['matrix'] or '-'}{spills}"
