"""What gets installed, in every way of installing, and that ``kernels/`` is taken for no other package."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import decompx_fast

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
MODES = ("wheel", "sdist", "editable", "strict")

#: What is compiled, where there is a compiler. Compiling takes seconds, so only what is built below does it.
COMPILED = {"decompx_fast/ops/_native.abi3.so"} if shutil.which("g++") else set()


def package_files(root: Path) -> set[str]:
    """The files below ``decompx_fast/`` once installed, where ``kernels/`` is one of its folders."""
    files = {path.relative_to(root) for path in (root / "decompx_fast").rglob("*")}
    files |= {Path("decompx_fast", path.relative_to(root)) for path in (root / "kernels").rglob("*")}
    return {str(path) for path in files if not (root / path).is_dir() and "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def setup_py() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "setup.py"))


def test_every_folder_with_code_is_a_listed_package(setup_py: dict[str, Any]) -> None:
    folders = {Path(name).parent for name in package_files(ROOT) if name.endswith(".py")}
    assert sorted(setup_py["PACKAGES"]) == sorted(".".join(folder.parts) for folder in folders)


def test_kernels_folder_is_reached_only_through_the_package() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert os.readlink(ROOT / "decompx_fast" / "kernels") == os.path.join("..", "kernels")


def test_every_place_names_the_same_version() -> None:
    changes = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    cited = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert [changes[0]] == cited == [decompx_fast.__version__]


def test_wheels_are_built_for_what_the_package_says_it_runs_with(setup_py: dict[str, Any]) -> None:
    """The configuration of cibuildwheel, its repeated names and versions against those of the package."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheels, oldest = metadata["tool"]["cibuildwheel"], setup_py["OLDEST_PYTHON"]["tag"]
    assert wheels["build"] == f"{oldest}-*"
    assert metadata["project"]["requires-python"] == f">={oldest[2]}.{oldest[3:]}"
    (torch,) = (one for one in metadata["project"]["dependencies"] if one.startswith("torch>="))
    (backend,) = (one for one in metadata["build-system"]["requires"] if one.startswith("setuptools"))
    assert f"'{torch}'" in wheels["before-build"] and f"'{backend}'" in wheels["before-build"]
    major, minor = torch.removeprefix("torch>=").split(".")
    assert setup_py["OLDEST_TORCH"] == f"0x{int(major):02x}{int(minor):02x}000000000000ULL"
    assert wheels["environment"] == {"DECOMPX_FAST_NATIVE": "1"}
    assert set(wheels["test-extras"]) <= set(metadata["project"]["optional-dependencies"])
    assert wheels["linux"]["archs"] == ["x86_64", "aarch64"] and wheels["macos"]["archs"] == ["arm64"]


def python(*arguments: str | Path, cwd: Path, executable: str | Path = sys.executable, native: str = "0") -> str:
    """Run the Python of an environment without PYTHONPATH; what it printed, which a failure shows too."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["DECOMPX_FAST_NATIVE"] = native
    command = [str(executable), *map(str, arguments)]
    run = subprocess.run(command, cwd=cwd, env=environment, text=True, stdout=-1, stderr=subprocess.STDOUT)
    assert run.returncode == 0, f"{' '.join(command)}\n{run.stdout}"
    return run.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git tracks or would track: building writes into the source tree."""
    copy = tmp_path_factory.mktemp("source")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listing.split("\0")):
        if os.path.lexists(ROOT / name):  # not deleted since it was tracked
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


class Built(NamedTuple):
    """The wheel built from the source tree, the sdist, and the wheel built from that."""

    wheel: Path
    sdist: Path
    wheel_of_sdist: Path


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    direct, through_sdist = tmp_path_factory.mktemp("direct"), tmp_path_factory.mktemp("through_sdist")
    build = ("-m", "build", "--no-isolation", "--outdir")
    python(*build, through_sdist, source, cwd=source, native="auto")  # the sdist, then a wheel from it
    python(*build, direct, "--wheel", source, cwd=source, native="auto")
    (wheel,), (sdist,), (wheel_of_sdist,) = (
        direct.glob("*.whl"),
        through_sdist.glob("*.tar.gz"),
        through_sdist.glob("*.whl"),
    )
    return Built(wheel, sdist, wheel_of_sdist)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.slow
def test_wheel_holds_every_file_of_the_package_and_no_other(source: Path, built: Built) -> None:
    installed = {name for name in contents(built.wheel) if ".dist-info/" not in name}
    assert installed == package_files(source) | COMPILED
    assert built.wheel.name.endswith("-cp310-abi3-linux_x86_64.whl" if COMPILED else "-py3-none-any.whl")


@pytest.mark.slow
def test_wheel_of_sdist_equals_wheel(built: Built) -> None:
    assert contents(built.wheel_of_sdist) == contents(built.wheel)


@pytest.mark.slow
def test_metadata_has_no_upper_caps(built: Built) -> None:
    (metadata,) = (
        text.decode() for name, text in contents(built.wheel).items() if name.endswith(".dist-info/METADATA")
    )
    required = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    always = [line for line in required if "extra ==" not in line]
    assert [line for line in always if line.startswith("torch>=")]
    assert not [line for line in always if re.search(r"[<~]|==", line.partition(";")[0])]


FAKE_KERNELS = '''
"""Stands in for the package named kernels: whatever is asked of it, is there."""


class Anything:
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return Anything()

    def __getattr__(self, name):
        return Anything()


def decorator(*args, **kwargs):
    return lambda decorated: decorated


use_kernel_forward_from_hub = use_kernelized_func = decorator


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything()
'''


@pytest.fixture(scope="module")
def fake_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for sys.path with a distribution named kernels, of a version that transformers accepts."""
    site = tmp_path_factory.mktemp("fake_kernels")
    (transformers,) = importlib.util.find_spec("transformers").submodule_search_locations
    checks = Path(transformers, "utils", "import_utils.py").read_text()
    accepted = re.search(r'^KERNELS_MIN_VERSION = "(.*)"', checks, re.MULTILINE)
    version = accepted[1] if accepted else "1.0.0"
    (site / "kernels").mkdir()
    (site / "kernels" / "__init__.py").write_text(FAKE_KERNELS)
    (site / f"kernels-{version}.dist-info").mkdir()
    metadata = f"Metadata-Version: 2.1\nName: kernels\nVersion: {version}\n"
    (site / f"kernels-{version}.dist-info" / "METADATA").write_text(metadata)
    return site


PRINT_SITE_PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"


class Environment(NamedTuple):
    """A virtual environment where the package is installed, and where its code should come from."""

    executable: Path
    site_packages: Path
    code: Path


@pytest.fixture(scope="module", params=MODES)
def environment(
    request: pytest.FixtureRequest, source: Path, built: Built, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """The package installed in one mode. Its dependencies are those of the running environment."""
    folder = tmp_path_factory.mktemp(request.param)
    python("-m", "venv", "--without-pip", folder, cwd=folder)
    executable = folder / "bin" / "python"
    site_packages = Path(python("-c", PRINT_SITE_PACKAGES, cwd=folder, executable=executable).strip())
    # Folders only: what the running environment has installed as editable stays out.
    outside = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "outside.pth").write_text("".join(f"{path}\n" for path in outside))
    editable = ("--config-settings", f"editable_mode={request.param}") if request.param == "strict" else ()
    what, code = {
        "wheel": ((built.wheel,), site_packages),
        "sdist": ((built.sdist,), site_packages),
        "editable": (("-e", source), source),
        "strict": ((*editable, "-e", source), source / "build"),
    }[request.param]
    pip = ("-m", "pip", "--python", executable, "install", "--quiet", "--no-deps", "--no-build-isolation")
    python(*pip, "--ignore-installed", *what, cwd=folder)
    return Environment(executable, site_packages, code)


@pytest.mark.slow
def test_installs_no_top_level_kernels(environment: Environment) -> None:
    names = {path.name for path in environment.site_packages.iterdir()}
    assert not {name for name in names if name.partition(".")[0] == "kernels"}
    (top_level,) = environment.site_packages.glob("decompx_fast-*.dist-info/top_level.txt")
    assert top_level.read_text().split() == ["decompx_fast"]


@pytest.mark.slow
def test_doctor_tells_whether_the_cpu_kernels_are_there(environment: Environment) -> None:
    code = "from decompx_fast import doctor; print(*doctor.backends(), sep='\\n')"
    printed = python("-c", code, cwd=environment.executable.parent, executable=environment.executable)
    compiled = COMPILED and environment.executable.parent.parent.name.startswith("wheel")
    line = "('native', 'cpu', 'usable', 'C++ kernels, " if compiled else "('native', 'cpu', 'not usable', 'it was not"
    assert line in printed


@pytest.mark.slow
def test_command_starts(environment: Environment) -> None:
    command = environment.executable.with_name("decompx-fast")
    printed = subprocess.run([command, "--version"], check=True, capture_output=True, text=True).stdout
    assert decompx_fast.__version__ in printed


@pytest.mark.slow
def test_a_clone_beside_a_script_is_not_taken_for_the_package(
    environment: Environment, source: Path, tmp_path: Path
) -> None:
    """The clone is a folder of the package's name, and the script's folder is first on the path."""
    (tmp_path / "decompx_fast").symlink_to(source)
    (tmp_path / "script.py").write_text("import decompx_fast\nprint(decompx_fast.__version__, decompx_fast.__file__)")
    printed = python(tmp_path / "script.py", cwd=tmp_path, executable=environment.executable)
    version, path = printed.split()
    assert version == decompx_fast.__version__ and Path(path).is_relative_to(environment.code)


PROBE = '''
import importlib, importlib.util, os, sys, traceback
from importlib import metadata
from pathlib import Path

code, root, fake, *kernel_names = sys.argv[1:]

import decompx_fast

assert Path(decompx_fast.__file__).is_relative_to(code), decompx_fast.__file__
assert metadata.version("decompx-fast") == decompx_fast.__version__
for name in kernel_names:
    module = importlib.import_module("decompx_fast.kernels." + name)
    assert Path(module.__file__).is_relative_to(code), module.__file__
found = importlib.util.find_spec("kernels")
assert found is None or not found.origin or not Path(found.origin).is_relative_to(code), found

import torch._dynamo  # transformers imports it too: once is enough for both


def import_transformers(fake):
    """From the root of the repository, where a folder named kernels lies."""
    os.chdir(root)
    assert sys.path[0] == "" and importlib.util.find_spec("kernels") is not None
    if fake:
        sys.path.insert(1, fake)
        importlib.invalidate_caches()
    from transformers import BertModel
    from transformers.utils import is_kernels_available

    assert BertModel.__name__ == "BertModel"
    assert not [name for name in kernel_names if "kernels." + name in sys.modules]
    if fake:
        assert is_kernels_available()
        assert sys.modules["kernels"].__file__ == os.path.join(fake, "kernels", "__init__.py")


for site in ("", fake):
    process = os.fork()
    if not process:
        try:
            import_transformers(site)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0, "with a distribution named kernels" if site else "without one"
'''


@pytest.mark.slow
def test_kernels_and_transformers_import(environment: Environment, source: Path, fake_kernels: Path) -> None:
    names = [path.stem for path in sorted((source / "kernels").glob("*.py"))]
    assert names
    elsewhere = environment.executable.parent
    arguments = ("-c", PROBE, environment.code, source, fake_kernels, *names)
    python(*arguments, cwd=elsewhere, executable=environment.executable)
