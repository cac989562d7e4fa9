"""Which backend an op takes, and the ops as custom ops of PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ops_cases import DEVICE, random
from torch.utils._python_dispatch import TorchDispatchMode

from decompx_fast import doctor, ops
from decompx_fast.errors import BackendError
from decompx_fast.ops import registry

ROOT = Path(__file__).parent.parent
X = (1, 2, 3, 8)


def arguments(dtype=torch.float32):
    """The arguments of every custom op, with all optional ones given, and without."""
    x, d = random(*X, dtype=dtype), 8
    vector, vectors = random(d), random(1, 2, d)
    alpha, p = random(1, 4, 2, 3, dtype=dtype), random(1, 3, 5, 2, 6, dtype=dtype)
    w = random(d, 5, dtype=dtype)
    factor, skip = random(1, 2), random(4, d)
    t = random(1, 2, d, d, dtype=dtype)
    return [
        ("bias_split_", (x, vector, random(*X, dtype=dtype, seed=2), "absdot", True)),
        ("bias_split_", (x, None, None, "none", False)),
        ("layernorm_", (x, random(1, 2, low=1), vector, vector, True, "dot")),
        ("layernorm_", (x, random(1, 2, low=1), None, None, False, "equal")),
        (
            "add_norm_",
            (x, random(*X, dtype=dtype, seed=2), vector, random(1, 2, low=1), vector, vector, True, True, "absdot"),
        ),
        ("add_norm_", (x, random(*X, dtype=dtype), None, random(1, 2, low=1), None, None, False, False, "equal")),
        ("activation_", (x, vectors, vector, vectors, "absdot")),
        ("activation_", (x, vectors, None, None, "cls")),
        ("mixing", (random(1, 2, 5, 4, 6, dtype=dtype), alpha, p, True, 2, 1, "ieee")),
        ("functional_dots", (random(1, 2, 3, 2), x, random(1, 2, 2, d))),
        ("position_operator", (t, random(1, 2, 5), w, w.T.contiguous(), factor, skip, "ieee")),
        ("position_apply", (random(*X, dtype=dtype), x, t, random(1, 2, 3, 2), random(1, 2, 2, d), "ieee")),
        ("position_apply", (random(*X, dtype=dtype), x, t, None, None, "ieee")),
    ]


@pytest.mark.parametrize(("name", "args"), arguments(), ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_opcheck(name, args, backend):
    # Includes: only what the schema says is written to, and a fake that agrees.
    given = ("w_in,w_out", args[2:4]) if name == "position_operator" else ()  # what the user gave, before it was folded
    torch.library.opcheck(getattr(torch.ops.decompx_fast, name).default, (*args, backend, *given))


def test_whoever_listens_to_operators_sees_one_that_else_is_called_as_it_is():
    seen = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x, bias = random(*X), random(8)
    before = x._version
    heard, plain = x.clone(), ops.bias_split_(x, bias)
    assert x._version == before + 1  # as by any operator that writes
    with Listening():
        ops.bias_split_(heard, bias)
    assert "decompx_fast.bias_split_.default" in seen
    assert torch.equal(heard, plain)


def test_tensors_without_numbers_keep_their_shape():
    x = random(*X).to("meta")
    assert ops.bias_split_(x, random(8).to("meta")) is x


def test_profiler_names_the_op():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        ops.bias_split_(random(*X), random(8), backend="torch")
    assert "decompx_fast::bias_split_" in {event.key for event in seen.key_averages()}


def test_tensors_of_inference_mode_have_no_version_to_count():
    with torch.inference_mode():
        x = random(*X)
        ops.bias_split_(x, random(8))
    assert x.is_inference()


def layer(x, alpha, scale, weight, bias, slope, w_in, w_out):
    """All public ops after one another."""
    values = x.unflatten(-1, (2, 4))
    z = ops.mixing(alpha, values, causal=True).flatten(-2)
    ops.bias_split_(z, bias, residual=x, share_after_residual=True)
    ops.layernorm_(z, scale, weight, bias)
    hidden = z @ w_in
    ops.activation_(hidden, slope, None, intercept=slope, rule="equal")
    t = ops.position_operator(slope, w_in, w_out, norm_in=ops.FrozenNorm(scale, weight), norm_out=ops.FrozenNorm(scale))
    out = ops.position_apply(
        z, t, ops.functional_dots(z, slope[:, :, None, :8]), bias[None, None, None].expand(1, 2, 1, 8)
    )
    return out + hidden @ w_out


def layer_inputs():
    alpha = random(1, 4, 2, 2, low=0)[:, :2]
    w = random(8, 12)
    return random(*X), alpha, random(1, 2, low=1), random(8), random(8), random(1, 2, 12), w, w.T.contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_ops_compile_without_graph_breaks(backend, dynamic):
    inputs = layer_inputs()
    expected = layer(*(t.clone() for t in inputs))
    compiled = torch.compile(layer, fullgraph=True, backend=backend, dynamic=dynamic)
    torch.testing.assert_close(compiled(*inputs), expected)


def test_auto_takes_triton_on_gpus_and_torch_elsewhere():
    limits = {"native": "not asked for"}  # where it was compiled, it comes before plain PyTorch: see test_native.py
    cpu = registry.select("mixing", "auto", torch.device("cpu"), limits=limits)
    assert cpu is registry.select("mixing", "torch", torch.device("cpu"))
    if torch.cuda.is_available():
        assert registry.select("mixing", "auto", DEVICE) is registry.select("mixing", "triton", DEVICE)


def test_auto_steps_aside_where_a_backend_cannot(monkeypatch):
    monkeypatch.setattr(registry, "_backends", dict(registry._backends))
    monkeypatch.setattr(registry, "_implementations", dict(registry._implementations))
    calls = []
    registry.add_backend("other", lambda device: (device.type == "cpu", "for CPUs"), auto_on=("cpu",))
    registry.implements("mixing", "other")(lambda *args, **options: calls.append("other"))
    cpu = torch.device("cpu")
    registry.select("mixing", "auto", cpu)(torch.zeros(1))
    assert calls == ["other"]
    torch_mixing = registry.select("mixing", "torch", cpu)
    limits = {"other": "not today", "native": "nor this"}
    assert registry.select("mixing", "auto", cpu, limits=limits) is torch_mixing
    assert registry.select("layernorm_", "auto", cpu) is not registry.select("mixing", "auto", cpu)
    assert ops.backend_names()[:3] == ("auto", "torch", "triton") and ops.backend_names()[-1] == "other"
    with pytest.raises(BackendError, match="layernorm_: backend='other' cannot be used on cpu: it has no layernorm_"):
        registry.select("layernorm_", "other", cpu)
    with pytest.raises(BackendError, match="mixing: backend='other' cannot be used on meta: for CPUs"):
        registry.select("mixing", "other", torch.device("meta"))
    with pytest.raises(BackendError, match="cannot be used on cpu: not today"):
        registry.select("mixing", "other", cpu, limits={"other": "not today"})


@pytest.mark.parametrize("rule", ["norm", "abssim"])
def test_rules_without_a_kernel_take_torch_unless_triton_is_named(rule):
    x, bias = random(*X), random(8)
    slope, scale = random(1, 2, 8), random(1, 2, low=1)
    for op, args in (
        (ops.bias_split_, (bias,)),
        (ops.layernorm_, (scale, None, bias)),
        (ops.activation_, (slope, bias)),
    ):
        named = op(x.clone(), *args, rule=rule, backend="torch")
        assert torch.equal(op(x.clone(), *args, rule=rule), named)
        with pytest.raises(
            BackendError, match=f"its kernels share by absdot, dot, equal, cls, none, and rule is '{rule}'"
        ):
            op(x.clone(), *args, rule=rule, backend="triton")


def test_float64_takes_torch_unless_triton_is_named():
    x = random(*X).double()
    ops.bias_split_(x, random(8))
    with pytest.raises(BackendError, match="its kernels take float32, bfloat16 and float16, and the state is float64"):
        ops.bias_split_(x, random(8), backend="triton")


def test_unknown_backend_is_refused():
    with pytest.raises(BackendError, match="backend='cuda-graphs' .* no such backend; known are torch, triton"):
        ops.functional_dots(random(*X), random(1, 2, 1, 8), backend="cuda-graphs")


IN_A_NEW_PROCESS = """
import sys, torch
from decompx_fast import ops
assert "triton" not in sys.modules and "transformers" not in sys.modules
x = torch.zeros(1, 1, 2, 3)
ops.bias_split_(x, torch.ones(3))
print(ops.usable("triton", "cpu"))
try:
    ops.bias_split_(x, torch.ones(3), backend="triton")
except ops.registry.BackendError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("interpreted", ["0", "1"])
def test_triton_is_usable_on_the_cpu_only_in_the_interpreter(interpreted):
    environment = {"TRITON_INTERPRET": interpreted, "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        [sys.executable, "-c", IN_A_NEW_PROCESS], capture_output=True, text=True, env=environment, cwd=ROOT, check=True
    )
    if interpreted == "1":
        assert run.stdout == "(True, 'TRITON_INTERPRET=1: kernels are interpreted')\n"
    else:
        reason = "its kernels need a CUDA or ROCm device (or TRITON_INTERPRET=1), and this is cpu"
        said = f"bias_split_: backend='triton' cannot be used on cpu: {reason}."
        assert run.stdout == f"(False, '{reason}')\n{said} Use backend='auto', or one that can be used\n"


@pytest.mark.parametrize(
    ("triton", "numpy", "can"),
    [("3.6.0", "2.3.5", True), ("3.6.0", "2.4.0", False), ("3.6.1", "3.0.0", False), ("3.7.0", "2.5.5", True)],
)
def test_the_interpreter_needs_a_numpy_that_it_knows(monkeypatch, triton, numpy, can):
    """Triton 3.6 calls ``int`` on an array of shape [1], a TypeError from NumPy 2.4 on; 3.7.0 squeezes it before."""
    monkeypatch.setattr(registry.metadata, "version", {"triton": triton, "numpy": numpy}.__getitem__)
    monkeypatch.setattr(registry, "INTERPRETED", True)
    for cached in (registry._installed_triton, registry._interpreter):
        cached.cache_clear()
    try:
        usable, reason = ops.usable("triton", "cpu")
    finally:
        for cached in (registry._installed_triton, registry._interpreter):
            cached.cache_clear()
    assert usable is can
    expected = f"the interpreter of triton {triton} fails with numpy {numpy}: install numpy<2.4, or triton>=3.7"
    assert can or reason == f"TRITON_INTERPRET=1, and {expected}"


@pytest.mark.parametrize(("version", "can"), [("3.5.1", False), ("3.6.0", True), ("3.10.0+git1", True)])
def test_old_triton_is_not_usable(monkeypatch, version, can):
    registry._installed_triton.cache_clear()
    monkeypatch.setattr(registry.metadata, "version", {"triton": version, "numpy": "2.3.5"}.__getitem__)
    try:
        usable, reason = ops.usable("triton", DEVICE)
    finally:
        registry._installed_triton.cache_clear()
    assert usable is can
    assert can or reason == f"triton {version} is installed, and 3.6 is the oldest supported"


@pytest.mark.parametrize(
    ("cc", "programs", "headers", "reason"),
    [
        (None, ["gcc"], True, None),
        (None, ["clang"], True, None),
        ("mycc", ["mycc"], True, None),
        (None, [], True, "there is no C compiler: install gcc or clang, or set CC to the path of one"),
        ("mycc", ["gcc"], True, "CC='mycc' is no program that can be run: set CC to the path of a C compiler"),
        # All of CC is the program's name to Triton, which starts it without a shell.
        ("gcc -m64", ["gcc"], True, "CC='gcc -m64' is no program that can be run"),
        ("", ["gcc"], True, "CC='' is no program that can be run"),
        (None, ["gcc"], False, "Python.h is missing: install Python's headers"),
    ],
)
def test_triton_without_a_c_compiler_says_so_before_it_fails(monkeypatch, tmp_path, cc, programs, headers, reason):
    monkeypatch.setattr(registry, "INTERPRETED", False)
    monkeypatch.setattr(registry, "_installed_triton", lambda: (True, "triton 3.9.0"))
    monkeypatch.setattr(registry, "_capable", lambda index: (True, "compute capability 9.0"))
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    if headers:
        (tmp_path / "Python.h").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(registry.sysconfig, "get_paths", lambda **_: {"include": str(tmp_path)})
    monkeypatch.delenv("CC", raising=False)
    if cc is not None:
        monkeypatch.setenv("CC", cc)
    registry._c_compiler.cache_clear()
    try:
        can, said = ops.usable("triton", "cuda:0")
        row = dict(doctor.versions())["C compiler"]
        if reason is None:
            assert (can, said) == (True, "compute capability 9.0") and row == str(tmp_path / programs[0])
        else:
            assert not can and reason in said and reason in row
            assert said.startswith("Triton compiles what starts its kernels, and ")
    finally:
        registry._c_compiler.cache_clear()
