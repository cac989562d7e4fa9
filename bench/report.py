"""From a pytest-benchmark run to ``bench/results/DEVICE.json``, a table and plots.

    python bench/report.py RUN.json [--out bench/results]
    python bench/report.py ROWS.jsonl       # what the benchmarks wrote one by one (DECOMPX_FAST_BENCH_ROWS)

Nothing in the table or in the plots is typed by hand: both are made of the JSON that is written beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
from collections import defaultdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from decompx_fast.ops import usable
from decompx_fast.ops.backends import product_choices, products

HERE = Path(__file__).resolve().parent
PACKAGES = ("torch", "triton", "transformers")

Row = dict[str, Any]


def device_name(cuda: bool) -> str:
    if cuda:
        return torch.cuda.get_device_name()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {torch.get_num_threads()} threads"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return done.stdout.strip() or None


def rows_of(run: dict[str, Any]) -> list[Row]:
    """One row per benchmark: medians and spread in seconds, floors and ceilings as they were recorded."""
    rows = []
    for entry in run["benchmarks"]:
        info, stats = entry["extra_info"], entry["stats"]
        if "floor_s" not in info:
            continue
        rows.append(
            {
                "name": entry["name"],
                **info,
                "median_s": stats["median"],
                "iqr_s": stats["iqr"],
                "rounds": stats["rounds"],
                "achieved_over_possible": info["floor_s"] / stats["median"],
            }
        )
    return rows


def read(path: Path) -> dict[str, Any]:
    """A run as pytest-benchmark wrote it, or the lines that the benchmarks wrote as they ended."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".jsonl":
        return json.loads(text)
    return {"benchmarks": [json.loads(line) for line in text.splitlines()]}


def collect(run: dict[str, Any], cuda: bool) -> dict[str, Any]:
    return {
        "device": device_name(cuda),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
        "commit": commit(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_products": {kind: products.way(torch.float32, kind) for kind in product_choices.KINDS},
        "cpu_kernels": usable("native", "cpu")[1],
        "time": run.get("datetime"),
        "rows": rows_of(run),
    }


def kernels_table(rows: list[Row]) -> list[str]:
    lines = [
        "| op | dtype | shape | median ms | GFLOP/s | GB/s | bound by | of the ceiling |",
        "| --- | --- | --- | ---: | ---: | ---: | --- | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row['op']} | {row['dtype']} | {row['shape']} | {1e3 * row['median_s']:.2f} | "
            f"{row['flops'] / row['median_s'] / 1e9:.0f} | {row['bytes'] / row['median_s'] / 1e9:.1f} | "
            f"{row['bound_by']} | {row['achieved_over_possible']:.0%} |"
        )
    return lines


def explain_table(rows: list[Row]) -> list[str]:
    lines = [
        "| model | engine | dtype | N | median s | spread (IQR) s | peak MiB | floor s | of the ceiling |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in sorted(rows, key=lambda row: (row["shape"], row["positions"], row["engine"], row["dtype"])):
        lines.append(
            f"| {row['shape']} | {row['engine']} | {row['dtype']} | {row['positions']} | {row['median_s']:.3f} | "
            f"{row['iqr_s']:.3f} | {row['peak_bytes'] / 2**20:.0f} | {row['floor_s']:.3f} | "
            f"{row['achieved_over_possible']:.0%} |"
        )
    return lines


def turns_table(rows: list[Row]) -> list[str]:
    lines = [
        "| model | layers | dtype | N | turns | released pattern s | this s | times faster, by the median (by turn) |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        ratios = [released / own for released, own in zip(row["released_s"], row["own_s"], strict=True)]
        released = statistics.median(row["released_s"])
        by_turn = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(
            f"| {row['shape']} | {row['layers']} | {row['dtype']} | {row['positions']} | {len(ratios)} | "
            f"{released:.2f} | {row['median_s']:.2f} | {released / row['median_s']:.2f} ({by_turn}) |"
        )
    return lines


def sentences_table(rows: list[Row]) -> list[str]:
    lines = [
        "| model | dtype | sentences | tokens each | sentences/s | median s | floor s | of the ceiling |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row['shape']} | {row['dtype']} | {row['sentences']} | {row['tokens'] / row['sentences']:.0f} | "
            f"{row['sentences'] / row['median_s']:.1f} | {row['median_s']:.3f} | {row['floor_s']:.3f} | "
            f"{row['achieved_over_possible']:.0%} |"
        )
    return lines


def span(rates: list[float]) -> str:
    """The median, and between what it lay."""
    return f"{statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})"


def markdown(result: dict[str, Any]) -> str:
    kernels = [row for row in result["rows"] if "op" in row]
    whole = [row for row in result["rows"] if "engine" in row]
    turns = [row for row in result["rows"] if "released_s" in row]
    sentences = [row for row in result["rows"] if "sentences" in row]
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items() if value)
    lines = [f"# {result['device']}", "", f"Python {result['python']}, {versions}; commit {result['commit']}.", ""]
    for dtype in sorted({row["dtype"] for row in result["rows"]}):
        rates = [row["matmul_flops_per_s"] / 1e9 for row in result["rows"] if row["dtype"] == dtype]
        lines.append(f"Ceiling of arithmetic, {dtype}: {span(rates)} GFLOP/s (a large product, beside each benchmark).")
    rates = [row["copy_bytes_per_s"] / 1e9 for row in result["rows"]]
    lines.append(f"Ceiling of memory: {span(rates)} GB/s (a large copy, beside each benchmark).")
    lines += ["", "## Ops", "", *kernels_table(kernels)] if kernels else []
    lines += ["", "## Whole explanations", "", *explain_table(whole)] if whole else []
    lines += ["", "## Against the released pattern, taking turns", "", *turns_table(turns)] if turns else []
    lines += ["", "## Sentences", "", *sentences_table(sentences)] if sentences else []
    return "\n".join(lines) + "\n"


def plot_scaling(rows: list[Row], path: Path) -> None:
    """Time and memory over the length, log-log, one line per engine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shapes = sorted({row["shape"] for row in rows})
    figure, axes = pyplot.subplots(2, len(shapes), figsize=(6 * len(shapes), 8), squeeze=False)
    for column, shape in enumerate(shapes):
        series: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            if row["shape"] == shape:
                series[row["engine"] + ("" if row["dtype"] == "float32" else f", {row['dtype']}")].append(row)
        for name, found in sorted(series.items()):
            found.sort(key=lambda row: row["positions"])
            x = [row["positions"] for row in found]
            axes[0][column].plot(x, [row["median_s"] for row in found], marker="o", label=name)
            axes[1][column].plot(x, [max(row["peak_bytes"], 2**20) / 2**20 for row in found], marker="o", label=name)
        for axis, label in ((axes[0][column], "median seconds"), (axes[1][column], "peak MiB above the model")):
            axis.set(xscale="log", yscale="log", xlabel="tokens N", ylabel=label, title=shape)
            axis.set_xticks(sorted({row["positions"] for row in rows}))
            axis.get_xaxis().set_major_formatter(matplotlib.ticker.ScalarFormatter())
            axis.minorticks_off()
            axis.grid(True, alpha=0.3)
            axis.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plot_roofline(rows: list[Row], path: Path) -> None:
    """Achieved arithmetic over intensity, under the two ceilings of each dtype."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in rows if row["flops"] and row["bytes"]]
    figure, axis = pyplot.subplots(figsize=(8, 5.5))
    intensities = [0.1, 1e4]
    for dtype in sorted({row["dtype"] for row in rows}):
        peak = statistics.median(row["matmul_flops_per_s"] for row in rows if row["dtype"] == dtype)
        copy = statistics.median(row["copy_bytes_per_s"] for row in rows if row["dtype"] == dtype)
        ridge = peak / copy
        axis.plot(
            [intensities[0], ridge, intensities[1]], [intensities[0] * copy / 1e9, peak / 1e9, peak / 1e9], label=dtype
        )
        for row in rows:
            if row["dtype"] == dtype:
                intensity = row["flops"] / row["bytes"]
                axis.scatter(intensity, row["flops"] / row["median_s"] / 1e9, s=18, color="black")
                axis.annotate(row["op"], (intensity, row["flops"] / row["median_s"] / 1e9), fontsize=7)
    axis.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="GFLOP/s", title="Ops under the ceilings")
    axis.grid(True, alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="what pytest --benchmark-json or the benchmarks wrote")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-plots", action="store_true", help="tables only, which need no matplotlib")
    arguments = parser.parse_args()
    result = collect(read(arguments.run), arguments.device == "cuda")
    arguments.out.mkdir(parents=True, exist_ok=True)
    stem = arguments.out / slug(result["device"])
    text = markdown(result)
    for path, content in (
        (stem.with_suffix(".json"), json.dumps(result, indent=1) + "\n"),
        (stem.with_suffix(".md"), text),
    ):
        beside = path.with_suffix(path.suffix + ".part")
        beside.write_text(content, encoding="utf-8")
        os.replace(beside, path)
    whole = [row for row in result["rows"] if "engine" in row]
    kernels = [row for row in result["rows"] if "op" in row]
    if whole and not arguments.no_plots:
        plot_scaling(whole, stem.with_name(stem.name + "-scaling.png"))
    if kernels and not arguments.no_plots:
        plot_roofline(kernels, stem.with_name(stem.name + "-roofline.png"))
    print(text)


if __name__ == "__main__":
    main()
