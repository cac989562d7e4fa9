"""The command ``decompx-fast serve``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--config", "config_file", metavar="FILE", help="Models, limits and all else, as TOML; see the README.")
@click.option("--model", metavar="PATH", help="One model: its folder or hub id. [default: the embedded demo model]")
@click.option("--task", metavar="TASK", help="Which head of --model to load. [default: the saved one]")
@click.option("--device", metavar="DEVICE", help="Where --model computes, such as cuda. [default: cpu]")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Processes of --model. [default: up to 4]")
@click.option("--host", metavar="ADDRESS", help="Where to listen. [default: 127.0.0.1, this machine alone]")
@click.option("--port", type=click.IntRange(0, 65_535), metavar="PORT", help="0: any. [default: 8000]")
@click.option(
    "--api-key-file", metavar="FILE", help="Holds the key that requests have to show; or set DECOMPX_FAST_API_KEY."
)
@click.option("--log-texts", is_flag=True, default=None, help="Let texts be in the log.")
def serve(config_file: str | None, model: str | None, **options: Any) -> None:
    """Explain over HTTP: POST /v1/explain, KServe's V1 and V2 protocols, and a page.

    \b
    Each model computes in processes of its own, one of which may end without
    the service. SIGTERM and Ctrl-C finish what is in flight; the log is on
    standard error.
    """
    from ..optional import import_optional

    for package in ("fastapi", "uvicorn", "prometheus_client"):
        import_optional(package, "decompx-fast serve", extra="serve")
    from ..serve import run
    from ..serve.settings import read_settings

    own = {name: options.pop(name) for name in ("task", "device", "workers")}
    if config_file is not None and (model is not None or any(value is not None for value in own.values())):
        raise click.UsageError(
            "--model, --task, --device and --workers are for one model: the file of --config has all"
        )
    if model is None and own["task"] is not None:
        raise click.UsageError("--task says which head of a model to load: name the model by --model PATH")
    models = None
    if config_file is None:
        about = {"path": model, **{name: value for name, value in own.items() if value is not None}}
        models = {_name(model): about}
    run(read_settings(config_file, models=models, **options))


def _name(model: str | None) -> str:
    """What requests call a model: the last part of its path, as far as a name may have it."""
    if model is None:
        return "demo"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).resolve().name).strip("-._")[:100] or "model"
