"""What every benchmark shares: the device, its two ceilings measured in the same run, and how a figure is recorded."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from timing import ROTATION_BYTES, median_seconds, synchronize
from timing import rotating as rotating

from decompx_fast.ops.backends import products
from decompx_fast.ops.backends.product_choices import WAYS, has_onednn

#: Where a round takes more seconds than this, the ceilings are measured before each.
LONG_S = 1.0

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return request.config.getoption("--device")


def matmul_flops_per_s(device: str, dtype: torch.dtype) -> float:
    """The ceiling of arithmetic: a square product so large that nothing else counts, in the fastest way there is, be it
    chosen or not. Measured anew beside each benchmark, since clocks and neighbours change."""
    n = 8192 if device == "cuda" else 2048
    a, b, out = (torch.randn(n, n, device=device).to(dtype) for _ in range(3))

    def seconds(way: str) -> float:
        with products.forced_way(way):
            return median_seconds(lambda: products.multiply(a, b, out=out), device)

    chosen = products.way(dtype, "large")
    ways = {chosen, "onednn"} if device == "cpu" and dtype in WAYS["onednn"] and has_onednn() else {chosen}
    return 2 * n**3 / min(map(seconds, ways))


def copy_bytes_per_s(device: str) -> float:
    """The ceiling of memory: a copy larger than any cache; it reads and writes."""
    n_bytes = ROTATION_BYTES[device]
    source = torch.randn(n_bytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * n_bytes / median_seconds(lambda: target.copy_(source), device)


class Recorder:
    """Runs something under pytest-benchmark and notes what it costs at the least, and what the machine could do."""

    def __init__(self, benchmark, device: str) -> None:
        self.benchmark = benchmark
        self.device = device

    def write(self, path: str) -> None:
        """Append what was measured to a file of JSON lines, so that it stays if a later benchmark never ends."""
        measured = self.benchmark.stats
        if measured is None or not measured.stats.data:
            return
        stats = {name: getattr(measured.stats, name) for name in ("median", "iqr", "rounds")}
        row = {"name": self.benchmark.name, "extra_info": self.benchmark.extra_info, "stats": stats}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def __call__(
        self,
        run: Callable[[], object],
        *,
        flops: float,
        bytes_: float,
        dtype: torch.dtype,
        rounds: int = 7,
        warmup: int = 1,
        setup: Callable[[], None] | None = None,
        **about: object,
    ) -> object:
        """Time ``run``.

        Args:
            run: does the work once.
            flops: the operations that any way of doing it takes; multiply and add are two.
            bytes_: the bytes that any way of doing it moves from and to memory.
            dtype: decides the ceiling of arithmetic.
            setup: run before each round, untimed.
            about: shape and names, for the report.
        """

        def finished() -> object:
            result = run()
            synchronize(self.device)
            return result

        def ceilings() -> tuple[float, float]:
            return matmul_flops_per_s(self.device, dtype), copy_bytes_per_s(self.device)

        measured = [ceilings()]
        is_long = flops > LONG_S * measured[0][0]

        def before_a_round() -> None:
            if is_long:
                measured.append(ceilings())
            if setup is not None:
                setup()

        result = self.benchmark.pedantic(
            finished, setup=before_a_round, rounds=rounds, warmup_rounds=warmup, iterations=1
        )
        measured.append(ceilings())
        peak_flops, peak_bytes = (statistics.mean(rates) for rates in zip(*measured, strict=True))
        floor_s = max(flops / peak_flops, bytes_ / peak_bytes)
        self.benchmark.extra_info.update(
            {
                "flops": flops,
                "bytes": bytes_,
                "dtype": str(dtype).removeprefix("torch."),
                "matmul_flops_per_s": peak_flops,
                "copy_bytes_per_s": peak_bytes,
                "floor_s": floor_s,
                "bound_by": "arithmetic" if flops / peak_flops > bytes_ / peak_bytes else "memory",
                **about,
            }
        )
        return result


@pytest.fixture
def record(benchmark, device: str) -> Iterator[Recorder]:
    recorder = Recorder(benchmark, device)
    yield recorder
    rows = os.environ.get("DECOMPX_FAST_BENCH_ROWS")
    if rows:
        recorder.write(rows)
