"""Install a wheel and explain a text with it, outside of the source tree, with one Python after another.

    python tools/check_wheel.py WHEEL [--python python3.10 python3.13 ...] [--oldest]
    python tools/check_wheel.py WHEEL --installed ENVIRONMENT/bin/python ...

The first makes an environment for each Python and installs the wheel with its extra ``demo`` from the package index,
with the newest releases that fit, or, with ``--oldest``, with the oldest that the wheel's metadata allow. The second
takes environments where its dependencies are, and installs the wheel alone.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

#: What each environment runs, in a folder that holds nothing else.
PROGRAM = """
import importlib.metadata, platform, sys
import torch, transformers
import decompx_fast
from decompx_fast import DecompX, Explanation, ops

assert decompx_fast.__file__.startswith(sys.prefix), decompx_fast.__file__
assert importlib.metadata.version("decompx-fast") == decompx_fast.__version__
compiled, why = ops.usable("native", "cpu")
assert compiled or "--pure" in sys.argv, why
explainer, text = DecompX.demo(), "The plot is thin, but the two leads are a joy to watch."
full = explainer(text)
assert full.completeness_error < 1e-5 and full.predicted_label == "POSITIVE"
assert full.words().top(1, "POSITIVE")[0].token == "joy"
same = [explainer(text, bias="bias_token", engine=engine).scores for engine in ("reference", "forward", "adjoint")]
assert max(float((one - same[0]).abs().max()) for one in same) < 1e-4
assert "<script" not in full.to_html()
full.save("one.safetensors")
assert (Explanation.load("one.safetensors").scores == full.scores).all()
print("Python", platform.python_version(), "PyTorch", torch.__version__, "transformers", transformers.__version__,
      "kernels", why if compiled else "none")
"""


def oldest(wheel: Path) -> list[str]:
    """Requirements of the oldest releases that a wheel's metadata allow."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    required = re.findall(r"^Requires-Dist: ([\w-]+)>=([\d.]+)(?:; (?!extra).*)?$", metadata, re.MULTILINE)
    return [f"{package}=={version}.*" for package, version in required]


def run(*command: str | Path, folder: Path) -> None:
    """Run a command outside of the tree; what it prints is shown.

    Raises:
        SystemExit: if it fails.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if subprocess.run([*map(str, command)], cwd=folder, env=environment | {"HF_HUB_OFFLINE": "1"}).returncode:
        raise SystemExit(f"failed: {' '.join(map(str, command))}")


def check(python: Path, folder: Path, *, pure: bool) -> None:
    """Explain a text, by the library and by the command."""
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    run(python, "-W", "ignore", "program.py", *(["--pure"] if pure else []), folder=folder)
    run(python.parent / "decompx-fast", "explain", "A joy to watch.", "--words", folder=folder)


def main() -> None:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="environments are made with these")
    parser.add_argument("--oldest", action="store_true", help="with the oldest dependencies that are allowed")
    parser.add_argument("--installed", nargs="+", type=Path, default=[], help="Pythons of environments that are there")
    given = parser.parse_args()
    wheel, pure = given.wheel.resolve(), given.wheel.name.endswith("-any.whl")
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for number, python in enumerate([] if given.installed else given.python):
            run(python, "-m", "venv", folder / str(number), folder=folder)
            own = folder / str(number) / "bin" / "python"
            run(own, *pip, f"{wheel}[demo]", *(oldest(wheel) if given.oldest else []), folder=folder)
            check(own, folder, pure=pure)
        for own in given.installed:
            own = Path(os.path.abspath(own))  # not resolved: a link says which environment it is of
            run(own, *pip, "--no-deps", "--force-reinstall", wheel, folder=folder)
            check(own, folder, pure=pure)


if __name__ == "__main__":
    main()
