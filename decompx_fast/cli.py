"""The command line: ``decompx-fast explain``, ``plan``, ``evaluate`` and ``doctor``.

Exit codes: 0 for success, 2 for a wrong use of the command, 1 for everything else. An error is one line on standard
error.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, get_args

import click

from . import __version__
from .config import BiasRule, Variant
from .errors import DecompXError, InputError, OptionError

if TYPE_CHECKING:
    from .engines.plan import Plan
    from .explainer import DecompX
    from .explanation import Explanation

PROGRAM = "decompx-fast"

#: As :data:`decompx_fast.dispatch.CHECKS`, which cannot be read without torch.
CHECKS = ("standard", "thorough")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Explain what each token contributed to a classifier's decision (DecompX)."""


@cli.command()
@click.argument("texts", nargs=-1, metavar="TEXT...")
@click.option("--model", metavar="PATH", help="A classifier's folder or hub id. [default: the embedded demo model]")
@click.option("--file", "file", metavar="FILE", help="Also explain each line of a UTF-8 file; '-' for standard input.")
@click.option("--target", "targets", multiple=True, metavar="CLASS", help="A class by name or index; repeatable.")
@click.option("--bias", type=click.Choice(get_args(BiasRule)), help="How biases are shared. [default: absdot]")
@click.option("--variant", type=click.Choice(get_args(Variant)), help="[default: paper]")
@click.option("--engine", metavar="ENGINE", help="Which engine computes. [default: the fastest that can answer]")
@click.option(
    "--dtype", metavar="DTYPE", help="Precision of the decomposition, such as float64. [default: the model's]"
)
@click.option("--device", metavar="DEVICE", help="Where to compute, such as cuda. [default: cpu]")
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Texts computed together. [default: fits]")
@click.option(
    "--check", type=click.Choice(CHECKS), help="'thorough' measures how wrong scores are. [default: standard]"
)
@click.option("--truncate", is_flag=True, help="Cut texts that are too long for the model, with a warning.")
@click.option("--words", is_flag=True, help="Merge the tokens of each word.")
@click.option("--html", metavar="OUT", help="Write a page that shows the explanations.")
@click.option("--json", "json_", metavar="OUT", help="Write a JSON array of explanations; '-' for standard output.")
@click.option("--quiet", is_flag=True, help="Print no tables.")
def explain(
    texts: tuple[str, ...],
    model: str | None,
    file: str | None,
    targets: tuple[str, ...],
    words: bool,
    html: str | None,
    json_: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Explain each TEXT, and each line of a file.

    \b
    Prints for every text which tokens pushed the model to its answer, and by how much. The scores add up to the
    logit of the class.
    """
    if not texts and file is None:
        raise click.UsageError("there is nothing to explain: give a TEXT, or --file FILE")
    for path in (html, None if json_ == "-" else json_):
        _check_writable(path)
    lines = [] if file is None else _read_lines(file)
    explainer = _load(model, options.pop("device"))
    wanted = {name: value for name, value in options.items() if value is not None}
    wanted["targets"] = [_class(target, explainer.labels) for target in targets] or None
    explanations = explainer.explain_iter([*texts, *lines], **wanted)
    if words:
        explanations = (explanation.words() for explanation in explanations)
    _deliver(explanations, html, json_, show=not quiet and json_ != "-")


@cli.command()
@click.option("--model", metavar="PATH", help="A classifier's folder or hub id. [default: the embedded demo model]")
@click.option("--tokens", type=click.IntRange(min=1), required=True, metavar="N", help="Tokens of an input.")
@click.option("--sources", type=click.IntRange(min=1), metavar="K", help="Groups of tokens. [default: each token]")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, metavar="B", help="Inputs at once.")
@click.option("--bias", type=click.Choice(get_args(BiasRule)), help="How biases are shared. [default: absdot]")
@click.option("--dtype", metavar="DTYPE", help="Precision of the decomposition, such as bfloat16.")
@click.option("--device", metavar="DEVICE", help="Where to compute, such as cuda. [default: cpu]")
@click.option("--path", metavar="PATH", help="direct or operator. [default: the one with fewer operations]")
def plan(model: str | None, tokens: int, device: str | None, **options: Any) -> None:
    """Print what the forward engine needs for N tokens: memory, operations, path, and what to do if it does not fit.

    Exit code 1 if it does not fit.
    """
    explainer = _load(model, device)
    wanted = {name: value for name, value in options.items() if value is not None}
    found = explainer.plan(tokens, **wanted)
    for line in describe_plan(found):
        click.echo(line)
    found.check()


@cli.command()
@click.option("--data", required=True, metavar="FILE", help="CSV, TSV, JSONL or Parquet; 'snippets': movie reviews.")
@click.option("--out", required=True, metavar="DIR", help="Where results go; a run that was ended there goes on.")
@click.option(
    "--model", default="demo", metavar="PATH", help="A classifier's folder or hub id. [default: the demo model]"
)
@click.option("--methods", default="all", show_default=True, metavar="NAMES", help="Methods, with commas between.")
@click.option("--metrics", default="all", show_default=True, metavar="NAMES", help="Metrics, with commas between.")
@click.option("--text-column", metavar="NAME", help="[default: text, or sentence]")
@click.option("--pair-column", metavar="NAME", help="The second text of each pair.")
@click.option("--label-column", metavar="NAME", help="Classes by name or index. [default: label]")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Evaluate the first N texts only.")
@click.option("--truncate", is_flag=True, help="Cut texts that are too long for the model, with a warning.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Of random draws.")
@click.option("--device", metavar="DEVICE", help="Where to compute, such as cuda. [default: cpu]")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Processes.")
@click.option("--quiet", is_flag=True, help="Print no table and no progress.")
def evaluate(data: str, out: str, quiet: bool, **options: Any) -> None:
    """Measure how faithful attribution methods are to a model.

    \b
    Masks or removes the tokens that a method finds important, and looks at what
    the model says then. Writes report.md, summary.json, results.parquet and
    curves (PNG, SVG) to DIR. A killed run goes on where it was.
    """
    from .evaluation import evaluate as run_evaluation

    found = run_evaluation(data, out=out, progress=False if quiet else None, **options)
    if not quiet:
        click.echo(found.table())
        click.echo(f"More in {found.folder / 'report.md'}")


@cli.command()
def doctor() -> None:
    """Print versions, devices, and which backends can be used and why not."""
    from .doctor import report

    report()


def describe_plan(plan: Plan) -> Iterator[str]:
    """A plan in a few lines."""
    mib = 2**20
    yield f"path          {plan.path}"
    yield f"peak          {plan.peak_bytes / mib:,.0f} MiB beside the model"
    yield f"  state       {plan.state_bytes / mib:,.0f} MiB"
    yield f"  workspace   {plan.workspace_bytes / mib:,.0f} MiB"
    if plan.available_bytes is not None:
        yield f"free          {plan.available_bytes / mib:,.0f} MiB on {plan.device}"
    yield f"operations    {plan.total_flops / 1e9:,.1f} GFLOP"
    for name, flops in plan.flops.items():
        yield f"  {name:<11} {flops / 1e9:,.1f}"
    yield f"fits          {'yes' if plan.fits else 'no'}"
    for way in plan.ways_out:
        yield f"needs less    {way}"


def _load(model: str | None, device: str | None) -> DecompX:
    from .explainer import DecompX

    return DecompX.demo(device=device) if model is None else DecompX.from_pretrained(model, device=device)


def _class(target: str, labels: tuple[str, ...]) -> str | int:
    """A class's name, or its index where no class has that name."""
    return int(target) if target.isdecimal() and target not in labels else target


def _read_lines(path: str) -> list[str]:
    """The lines of a UTF-8 file that are not blank."""
    name = "standard input" if path == "-" else path
    if path != "-" and os.path.isdir(path):
        raise InputError(f"{path} is a directory: give a text file with one text per line")
    try:
        if path == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as stream:
                data = stream.read()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(f"{name} is not UTF-8 (line {line}, byte {error.start}): convert it first") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{name} is empty ({len(data)} bytes): it needs one text per line")
    return lines


def _check_writable(path: str | None) -> None:
    """Refuse a place that cannot be written before the work is done rather than after."""
    from .export import check_place

    if path is not None:
        check_place(path)


def _deliver(explanations: Iterable[Explanation], html: str | None, json_: str | None, *, show: bool) -> None:
    """Print each explanation as it is done; files appear once all are."""
    from .export import atomic_write
    from .render import render_page

    kept: list[Explanation] = []

    def each() -> Iterator[Explanation]:
        for n, explanation in enumerate(explanations):
            if show:
                if n:
                    click.echo()
                explanation.show()
            if html is not None:
                kept.append(explanation)
            yield explanation

    if json_ == "-":
        _write_array(each(), sys.stdout)
    elif json_ is not None:
        atomic_write(json_, _with_stream(lambda stream: _write_array(each(), stream)))
    else:
        for _ in each():
            pass
    if html is not None:
        page = render_page(kept)
        atomic_write(html, _with_stream(lambda stream: stream.write(page)))


def _with_stream(write: Callable[[IO[str]], object]) -> Callable[[str], None]:
    def write_path(path: str) -> None:
        with open(path, "w", encoding="utf-8") as stream:
            write(stream)

    return write_path


def _write_array(explanations: Iterable[Explanation], stream: IO[str]) -> None:
    """A JSON array, one element per line, written as the elements come."""
    separator = "[\n"
    for explanation in explanations:
        stream.write(separator + json.dumps(explanation.to_dict(), ensure_ascii=False))
        separator = ",\n"
    stream.write("\n]\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    warnings.showwarning = _show_warning
    try:
        # What click's own main does, less its handling of errors.
        with cli.make_context(PROGRAM, list(sys.argv[1:] if arguments is None else arguments)) as context:
            cli.invoke(context)
        return 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return 2
    except click.ClickException as error:
        return _fail(error.format_message(), 2)
    except OptionError as error:
        return _fail(str(error), 2)
    except (DecompXError, MemoryError) as error:
        return _fail(str(error) or "not enough memory", 1)
    except (KeyboardInterrupt, click.exceptions.Abort):
        return _fail("interrupted", 1)
    except BrokenPipeError:
        # The reader has gone; Python would complain once more when it flushes standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("DECOMPX_FAST_TRACEBACK"):
            raise
        hint = "set DECOMPX_FAST_TRACEBACK=1 to see where"
        return _fail(f"unexpected {type(error).__name__}: {error} ({hint})", 1)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, UserWarning):
        click.echo(f"{PROGRAM}: warning: {_one_line(message)}", err=True)


def _fail(message: str, code: int) -> int:
    click.echo(f"{PROGRAM}: {_one_line(message)}", err=True)
    return code


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


if __name__ == "__main__":
    sys.exit(main())
