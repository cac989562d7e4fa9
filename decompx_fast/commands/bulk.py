"""The command ``decompx-fast bulk``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from ..config import BiasRule, Variant
from ..request.tables import FORMATS
from .options import CHECKS, FOCUS, WORKSPACE, path_options


@click.command()
@click.argument("data", nargs=-1, required=True, metavar="DATA...")
@click.option(
    "--out", required=True, metavar="DIR", help="The folder of the results; a run that was ended there goes on."
)
@click.option("--model", metavar="PATH", help="A model's folder or hub id. [default: the embedded demo model]")
@click.option("--format", type=click.Choice(FORMATS), help="What the files are. [default: by their endings, or text]")
@click.option("--text-column", metavar="NAME", help="The column of the texts. [default: text, or sentence]")
@click.option("--pair-column", metavar="NAME", help="The second text of each pair.")
@click.option("--id-column", metavar="NAME", help="What names a row in the results, besides its file and line.")
@click.option("--output", type=click.Choice(("parquet", "jsonl")), default="parquet", show_default=True)
@click.option(
    "--on-error",
    type=click.Choice(("skip", "stop")),
    default="skip",
    show_default=True,
    help="Write a row that cannot be explained with its error, or end the run there.",
)
@click.option("--retry-errors", is_flag=True, help="Also explain rows again for which there is an error.")
@click.option(
    "--workers", type=click.IntRange(min=0), metavar="N", help="[default: one a GPU, or a core but 4 at most]"
)
@click.option(
    "--ray",
    is_flag=False,
    flag_value="",
    metavar="[ADDRESS]",
    help="Explain on a cluster of Ray, at an address, or the one that runs here, or a new one.",
)
@click.option("--rows-of-a-part", type=click.IntRange(min=1), default=1024, show_default=True, metavar="N")
@click.option("--words", is_flag=True, help="Merge the tokens of each word.")
@click.option("--task", metavar="TASK", help="Which head to load, as token-classification. [default: the saved one]")
@click.option("--target", "targets", multiple=True, metavar="CLASS", help="As for explain; repeatable.")
@click.option("--at", multiple=True, metavar="PLACE", help="As for explain; repeatable.")
@click.option("--top-k", type=click.IntRange(min=1), metavar="N", help="As for explain.")
@click.option("--ignore-label", "ignore_labels", multiple=True, metavar="LABEL", help="As for explain; repeatable.")
@click.option("--max-answer-tokens", type=click.IntRange(min=1), metavar="N", help="As for explain.")
@click.option("--max-seq-len", type=click.IntRange(min=1), metavar="N", help="As for explain.")
@click.option("--doc-stride", type=click.IntRange(min=0), metavar="N", help="As for explain.")
@click.option("--generate", type=click.IntRange(min=1), metavar="N", help="As for explain.")
@click.option("--contrast", type=click.Choice(("mean",)), help="As for explain.")
@click.option("--answer", type=click.Choice(("tokens", "sum", "both")), help="As for explain.")
@click.option("--bias", type=click.Choice(get_args(BiasRule)), help="How biases are shared. [default: absdot]")
@click.option("--variant", type=click.Choice(get_args(Variant)), help="[default: paper]")
@click.option("--engine", metavar="ENGINE", help="Which engine computes. [default: the fastest that can answer]")
@click.option("--dtype", metavar="DTYPE", help="Precision of the decomposition. [default: the model's]")
@click.option("--device", metavar="DEVICE", help="Where to compute. [default: all GPUs, or the CPU]")
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Texts computed together. [default: fits]")
@click.option("--sources", metavar="UNIT", help="What a source is: token, word, sentence or focus. [default: token]")
@FOCUS
@click.option("--workspace", "workspace_bytes", type=WORKSPACE, metavar="MIB", help="As for explain.")
@click.option("--check", type=click.Choice(CHECKS), help="As for explain.")
@path_options
@click.option("--truncate", is_flag=True, default=None, help="Cut texts that are too long for the model.")
@click.option("--quiet", is_flag=True, help="Say nothing of how far it is.")
@click.pass_obj
def bulk(
    session: Any,
    data: tuple[str, ...],
    out: str,
    model: str | None,
    targets: tuple[str, ...],
    at: tuple[str, ...],
    ignore_labels: tuple[str, ...],
    quiet: bool,
    ray: str | None,
    **options: Any,
) -> None:
    """Explain all rows of DATA: files, folders, patterns (CSV, TSV, JSONL, Parquet, text); '-': standard input.

    \b
    Writes parts of Parquet (or JSON Lines) to DIR/parts. However the run ends,
    what is done is kept, and the same command goes on from there; the data may
    have grown meanwhile. Ctrl-C finishes what was begun; a second one does not.
    Exit code 0: every row has a result or its error; 1: the run ended before;
    2: wrong usage.
    """
    from ..bulk import explain_dataset
    from .values import blocks, places

    if model is None and options["task"] is not None:
        raise click.UsageError("--task says which head of a model to load: name the model by --model PATH")
    options["targets"] = list(targets) or None
    options["at"], options["ignore_labels"] = places(at) or None, list(ignore_labels) or None
    options["sources"] = options["sources"] and blocks(options["sources"])
    try:
        found = explain_dataset(
            list(data), model, out=out, progress=False if quiet else None, ray=ray if ray != "" else True, **options
        )
    except BaseException:
        if any(Path(out, "parts").glob("part-*")):
            session.keep(f"what is done is kept in {out}, where the same command goes on")
        raise
    if not quiet:
        errors = f", {found.errors:,} of them with an error" if found.errors else ""
        replaced = f"; worker processes that ended and were replaced: {found.workers_replaced}"
        click.echo(
            f"{found.rows:,} rows are done in {out}{errors} ({found.explained:,} in this run)"
            + (replaced if found.workers_replaced else "")
        )
