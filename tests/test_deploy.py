"""What deploy/ names exists: commands, options, files and extras; and its commands work outside a container."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from serving import served

from decompx_fast import cli
from decompx_fast.serve.settings import Limits, ModelSettings, Settings, read_settings

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Each instruction and what follows it, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", dockerfile)
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


DOCKERFILE = instructions((DEPLOY / "Dockerfile").read_text())


def parsed(arguments: list[str]) -> dict:
    """The options of ``decompx-fast serve`` as its command reads them; fails for one that does not exist."""
    return cli.cli.commands["serve"].make_context("serve", list(arguments)).params


def test_files_that_the_image_is_made_of_exist_and_are_let_through():
    copied = [rest.split()[:-1] for word, rest in DOCKERFILE if word == "COPY" and not rest.startswith("--from")]
    names = {name for group in copied for name in group}
    assert {"decompx_fast", "kernels", "csrc", "setup.py"} <= names
    assert all((ROOT / name).exists() for name in names)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert {f"!{name}" for name in names} <= set(ignored) and ignored[0] == "**"


def test_extras_and_constraints_that_the_image_installs_exist():
    extras = next(rest for word, rest in DOCKERFILE if word == "ARG" and rest.startswith("EXTRAS="))
    declared = (ROOT / "pyproject.toml").read_text()
    for extra in extras.partition("=")[2].split(","):
        assert re.search(rf"^{extra} = \[", declared, re.M), extra
    assert all("-c constraints.txt" in rest for word, rest in DOCKERFILE if word == "RUN" and "pip install" in rest)


def test_what_the_image_runs_is_the_command():
    program, command, *arguments = json.loads(next(rest for word, rest in DOCKERFILE if word == "ENTRYPOINT"))
    assert (program, command) == ("decompx-fast", "serve")
    assert parsed(arguments)["host"] == "0.0.0.0" and parsed(arguments)["port"] == 8000
    assert ("EXPOSE", "8000") in DOCKERFILE and any(word == "USER" for word, _ in DOCKERFILE)
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for one in service.values():
        options = parsed([*arguments, *one["command"]])
        assert options["config_file"] == "/etc/decompx/serve.toml" and options["api_key_file"] == "/run/secrets/api_key"
        assert one["ports"] == ["127.0.0.1:8000:8000"]
        assert (ROOT / one["build"]["dockerfile"]).exists() and one["read_only"]
        arguments_of_build = {rest.partition("=")[0] for word, rest in DOCKERFILE if word == "ARG"}
        assert set(one["build"].get("args", {})) <= arguments_of_build


def test_health_check_of_the_image_tells_whether_the_service_is_ready():
    command = next(rest for word, rest in DOCKERFILE if word == "HEALTHCHECK").partition("CMD ")[2]
    with served() as client:
        program, *arguments = json.loads(command.replace("127.0.0.1:8000", f"127.0.0.1:{client.base_url.port}"))
        assert program == "python"
        assert subprocess.run([sys.executable, *arguments], capture_output=True).returncode == 0
        port = client.base_url.port
    gone = [one.replace("127.0.0.1:8000", f"127.0.0.1:{port}") for one in json.loads(command)[1:]]
    assert subprocess.run([sys.executable, *gone], capture_output=True).returncode != 0


def test_unit_runs_the_command_and_systemd_accepts_it(tmp_path):
    text = (DEPLOY / "decompx-fast.service").read_text()
    program, command, *arguments = re.search(r"^ExecStart=(.*)$", text, re.M)[1].split()
    assert (Path(program).name, command) == ("decompx-fast", "serve")
    assert parsed(arguments)["api_key_file"] == "%d/key"
    stop = int(re.search(r"^TimeoutStopSec=(\d+)$", text, re.M)[1])
    assert stop > Limits().shutdown_s  # it may finish what is in flight
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here; the rest of the unit was checked")
    here = tmp_path / "decompx-fast.service"
    here.write_text(text.replace(program, sys.executable))
    found = subprocess.run(["systemd-analyze", "verify", str(here)], capture_output=True, text=True)
    assert found.returncode == 0 and str(here) not in found.stderr, found.stderr


def test_example_of_settings_has_every_part_and_the_defaults(monkeypatch):
    monkeypatch.delenv("DECOMPX_FAST_API_KEY", raising=False)
    path = DEPLOY / "serve.toml"
    found = read_settings(path)
    assert found.limits == Limits() and (found.host, found.port) == ("127.0.0.1", 8000)
    text = path.read_text()
    names = {*Settings.model_fields, *Limits.model_fields, *ModelSettings.model_fields} - {"api_key"}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)] == []
