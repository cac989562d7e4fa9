"""The command line, ``decompx-fast``: ``explain``, ``bulk``, ``similarity``, ``summarize``, ``evaluate`` and others.

Exit codes: 0 for success; 2 for a wrong use of the command, which is an option, or a value of one (an engine, a class
of the model, a column of the file), that does not exist; 1 for everything else: a model, a file or a text that cannot
be used, a device that is not there, an interrupt and a signal that ends the program. An error is one line on standard
error.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args

import click

from . import __version__
from .commands.bulk import bulk
from .commands.evaluate import evaluate
from .commands.options import BASELINE_HELP, BASELINES, CHECKS, FOCUS, STEPS, STORAGES, WORKSPACE, path_options
from .commands.process import (
    OUTPUT_ERRORS,
    Ended,
    Session,
    ended_by_signals,
    open_standard_streams,
    pass_session,
    silence_output,
)
from .commands.ranks import all_processes, is_first, launched, own_device
from .commands.serve import serve
from .commands.similarity import similarity
from .commands.summarize import summarize
from .config import BiasRule, Variant
from .errors import DecompXError, OptionError
from .request.tables import FORMATS, STANDARD_INPUT

if TYPE_CHECKING:
    from .explainer import DecompX

PROGRAM = "decompx-fast"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Explain what each token contributed to a model's decision (DecompX)."""


@cli.command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--model", metavar="PATH", help="A classifier's folder or hub id. [default: the embedded demo model]")
@click.option(
    "--audio", "sounds", multiple=True, metavar="FILE", help="A WAV file, for a --model that reads them; repeatable."
)
@click.option(
    "--image", "images", multiple=True, metavar="FILE", help="A picture, for a --model that reads them; repeatable."
)
@click.option("--pair", "pairs", multiple=True, metavar="TEXT", help="A second text of each TEXT, or several of one.")
@click.option(
    "--file",
    "file",
    metavar="FILE",
    help="Also explain each row of a CSV, TSV, JSONL or Parquet file, or each line of a text; '-' for standard input.",
)
@click.option(
    "--format", "format_", type=click.Choice(FORMATS), help="What FILE is. [default: by its ending, or else text]"
)
@click.option("--text-column", metavar="NAME", help="The column of the texts. [default: text, or sentence]")
@click.option("--pair-column", metavar="NAME", help="The second text of each pair.")
@click.option("--id-column", metavar="NAME", help="What names a row in the results, besides its line.")
@click.option("--task", metavar="TASK", help="Which head to load, as token-classification. [default: the saved one]")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="CLASS",
    help="A class or label by name or index, 'start' or 'end' of an answer, a token at a mask; repeatable.",
)
@click.option(
    "--difference", nargs=2, metavar="CLASS CLASS", help="What speaks more for one target than for another, in tables."
)
@click.option(
    "--at",
    multiple=True,
    metavar="PLACE",
    help="Of models that answer at positions: a token's index, START:END or TEXT:START:END in characters, word:N, "
    "all, or a string that occurs once; repeatable.",
)
@click.option(
    "--top-k", type=click.IntRange(min=1), metavar="N", help="So many of the likeliest labels or tokens at each place."
)
@click.option("--ignore-label", "ignore_labels", multiple=True, metavar="LABEL", help="Of words left out. [default: O]")
@click.option(
    "--max-answer-tokens", type=click.IntRange(min=1), metavar="N", help="Of question answering. [default: 15]"
)
@click.option(
    "--max-seq-len",
    type=click.IntRange(min=1),
    metavar="N",
    help="Of question answering: read a context in windows of N tokens. [default: as many as the model has positions]",
)
@click.option("--doc-stride", type=click.IntRange(min=0), metavar="N", help="Tokens that two windows share.")
@click.option("--continuation", metavar="TEXT", help="Of a language model: what follows the text, to be explained.")
@click.option(
    "--generate", type=click.IntRange(min=1), metavar="N", help="Let a language model write up to N tokens, explained."
)
@click.option("--contrast", type=click.Choice(("mean",)), help="Of a language model: less the mean of the vocabulary.")
@click.option("--answer", type=click.Choice(("tokens", "sum", "both")), help="Each token of an output, or their sum.")
@click.option("--bias", type=click.Choice(get_args(BiasRule)), help="How biases are shared. [default: absdot]")
@click.option("--variant", type=click.Choice(get_args(Variant)), help="[default: paper]")
@click.option("--engine", metavar="ENGINE", help="Which engine computes. [default: the fastest that can answer]")
@click.option(
    "--dtype", metavar="DTYPE", help="Precision of the decomposition, such as float64. [default: the model's]"
)
@click.option("--device", metavar="DEVICE", help="Where to compute, such as cuda. [default: cpu]")
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Texts computed together. [default: fits]")
@click.option(
    "--sources",
    metavar="UNIT",
    help="What a source is: token, word, sentence, or focus; of pictures patch, or ROWSxCOLUMNS of blocks. "
    "[default: token]",
)
@FOCUS
@click.option("--workspace", "workspace_bytes", type=WORKSPACE, metavar="MIB", help="Memory beside the state, in MiB.")
@click.option("--storage", type=click.Choice(STORAGES), help="Where the state is. [default: memory]")
@click.option("--folder", metavar="DIR", help="Of --storage disk. [default: the system's for temporary files]")
@click.option(
    "--check", type=click.Choice(CHECKS), help="'thorough' measures how wrong scores are. [default: standard]"
)
@path_options
@click.option("--truncate", is_flag=True, help="Cut texts that are too long for the model, with a warning.")
@click.option("--words", is_flag=True, help="Merge the tokens of each word.")
@click.option("--layers", is_flag=True, help="With maps of token to token, layer by layer, in tables and the page.")
@click.option("--html", metavar="OUT", help="Write a page that shows the explanations.")
@click.option("--json", "json_", metavar="OUT", help="Write a JSON array of explanations; '-' for standard output.")
@click.option("--jsonl", metavar="OUT", help="Write a JSON object on each line, as each is done; '-' as above.")
@click.option(
    "--details", is_flag=True, help="With what biases add at each place, and what components carry, in the JSON."
)
@click.option(
    "--on-error",
    type=click.Choice(("raise", "skip")),
    default="raise",
    show_default=True,
    help="End at the first text that cannot be explained, or put its error in its place and go on.",
)
@click.option("--quiet", is_flag=True, help="Print no tables.")
@pass_session
def explain(
    session: Session,
    texts: tuple[str, ...],
    model: str | None,
    images: tuple[str, ...],
    sounds: tuple[str, ...],
    pairs: tuple[str, ...],
    file: str | None,
    format_: str | None,
    text_column: str | None,
    pair_column: str | None,
    id_column: str | None,
    task: str | None,
    targets: tuple[str, ...],
    difference: tuple[str, str] | None,
    at: tuple[str, ...],
    ignore_labels: tuple[str, ...],
    words: bool,
    layers: bool,
    html: str | None,
    json_: str | None,
    jsonl: str | None,
    details: bool,
    on_error: str,
    quiet: bool,
    **options: Any,
) -> None:
    """Explain each TEXT, and each row of a file.

    \b
    Prints for every text which tokens pushed the model to its answer, and by how
    much: a class, a label of a word, an answer, what fits at a mask, what comes
    next. The scores add up to the model's value. With --jsonl, what is done
    is kept however the run ends; the other files are complete, or beside their
    place as .partial. --task generate without --model is the embedded language
    model. Started by torchrun, its processes explain together.
    """
    say: Callable[[str], object] = _say
    if not texts and file is None and not images and not sounds:
        raise click.UsageError("there is nothing to explain: give a TEXT, --file, --image or --audio FILE")
    if images and (texts or sounds or file is not None or model is None):
        raise click.UsageError("--image is for a --model that reads pictures, and goes with no texts")
    if sounds and (texts or file is not None or model is None):
        raise click.UsageError("--audio is for a --model that reads sounds, and goes with no texts")
    if difference is not None and (targets or difference[0] == difference[1]):
        raise click.UsageError("--difference names two different targets itself: leave --target out")
    if layers and (words or options["steps"] is not None):
        raise click.UsageError("--layers are of the tokens of one text: leave --words and --steps out")
    from .commands.explain import Outputs, Source, explain_all, run
    from .commands.outputs import Tables
    from .commands.values import paired, places

    columns = {"text": text_column, "pair": pair_column, "id": id_column}
    kind = "picture" if images else "sound" if sounds else "text"
    source = Source(paired(texts, pairs) or images or sounds, file, format_, columns, kind=kind)
    source.check()
    outputs, skip = Outputs.named(html, json_, jsonl, details=details), on_error == "skip"
    if launched() and file == STANDARD_INPUT:
        raise click.UsageError("--file - is standard input, which only one of several processes can read: name a file")
    if is_first():
        outputs.check(file)
    else:
        outputs, quiet, say = Outputs(None, None, None), True, _say_nothing
    total = source.count(skip=skip)
    device = own_device(options.pop("device"))
    group = click.get_current_context().with_resource(all_processes(device))
    explainer = _load(model, device, task, group)
    source.check_model(explainer)
    if options.get("continuation") is not None and (file is not None or len(texts) != 1):
        raise click.UsageError("--continuation is what follows one text: give one TEXT and no --file")
    asked = {"at": places(at), "ignore_labels": [*ignore_labels]}
    asked["targets"] = [_class(target, explainer.labels) for target in difference or targets]
    wanted = _arguments(options, layers=layers) | {name: value or None for name, value in asked.items()}
    results = explain_all(explainer, source, skip=skip, words=words, options=wanted, phrase=_in_options)
    tables = None
    if not quiet and not outputs.to_screen:
        tables = Tables(difference=wanted["targets"] if difference else None, layers=layers)
    run(results, outputs, tables=tables, say=say, keep=session.keep, total=total)


def _arguments(options: Mapping[str, Any], *, layers: bool) -> dict[str, Any]:
    """Those of ``explain_iter`` that options of the command line say."""
    from .commands.values import blocks

    found = {name: value for name, value in options.items() if value is not None}
    if "sources" in found:
        found["sources"] = blocks(found["sources"])
    if "continuation" in found:
        found["continuation"] = [found["continuation"]]
    return found | ({"stages": ("encoder",), "stage_output": "norm"} if layers else {})


@cli.command()
@click.option("--model", metavar="PATH", help="A classifier's folder or hub id. [default: the embedded demo model]")
@click.option("--tokens", type=click.IntRange(min=1), required=True, metavar="N", help="Tokens of an input.")
@click.option("--sources", type=click.IntRange(min=1), metavar="K", help="Groups of tokens. [default: each token]")
@click.option(
    "--focus", type=click.IntRange(min=1), metavar="N", help="As with explain --sources focus --focus N. [default: no]"
)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, metavar="B", help="Inputs at once.")
@click.option("--bias", type=click.Choice(get_args(BiasRule)), help="How biases are shared. [default: absdot]")
@click.option("--engine", metavar="ENGINE", help="forward or adjoint. [default: the one that would be taken]")
@click.option("--workspace", "workspace_bytes", type=WORKSPACE, metavar="MIB", help="Memory beside the state, in MiB.")
@click.option("--storage", type=click.Choice(STORAGES), help="Where the state is. [default: memory]")
@click.option("--folder", metavar="DIR", help="Of --storage disk. [default: the system's for temporary files]")
@click.option("--dtype", metavar="DTYPE", help="Precision of the decomposition, such as bfloat16.")
@click.option("--device", metavar="DEVICE", help="Where to compute, such as cuda. [default: cpu]")
@click.option("--ranks", type=click.IntRange(min=1), metavar="R", help="Processes that share the work. [default: 1]")
@click.option("--path", metavar="PATH", help="direct or operator. [default: the one with fewer operations]")
@click.option("--steps", type=STEPS, metavar="N", help="Of scores along paths, as for explain.")
@click.option("--baseline", type=click.Choice(BASELINES), help=BASELINE_HELP)
def plan(model: str | None, tokens: int, device: str | None, **options: Any) -> None:
    """Print what an explanation of N tokens needs: memory, operations, path, and what to do if it does not fit.

    Exit code 1 if it does not fit.
    """
    explainer = _load(model, device)
    wanted = {name: value for name, value in options.items() if value is not None}
    found = explainer.plan(tokens, **wanted)
    click.echo(str(found))
    found.check()


@cli.command()
def doctor() -> None:
    """Print versions, devices, and which backends can be used and why not."""
    from .doctor import report

    report()


cli.add_command(bulk)
cli.add_command(evaluate)
cli.add_command(serve)
cli.add_command(similarity)
cli.add_command(summarize)


def _load(model: str | None, device: str | None, task: str | None = None, group: Any = None) -> DecompX:
    from .explainer import DecompX
    from .request.tasks import check_task

    if model is None and task in ("generate", "text-generation", "causal-lm"):
        return DecompX.demo_lm(device=device, group=group)
    if model is None and task is not None:
        check_task(task)
        raise click.UsageError("--task says which head of a model to load: name the model by --model PATH")
    if model is None:
        return DecompX.demo(device=device, group=group)
    return DecompX.from_pretrained(model, device=device, task=task, group=group)


def _class(target: str, labels: tuple[str, ...]) -> str | int:
    """A class's name, or its index where no class has that name; of a vocabulary, which has no labels, a token."""
    return int(target) if labels and target.isdecimal() and target not in labels else target


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    session = Session()
    said = list(sys.argv[1:] if arguments is None else arguments)
    open_standard_streams()
    warnings.showwarning = _show_warning
    try:
        with ended_by_signals():
            # What click's own main does, less its handling of errors.
            with cli.make_context(PROGRAM, said, obj=session) as context:
                cli.invoke(context)
            sys.stdout.flush()
        return 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return 2
    except click.ClickException as error:
        return _fail(error.format_message(), 2)
    except OptionError as error:
        return _fail(_in_options(str(error)), 2, session)
    except (DecompXError, MemoryError) as error:
        return _fail(_in_options(str(error)) or "not enough memory", 1, session)
    except Ended as error:
        return _fail(f"ended by {error.name}", 1, session)
    except (KeyboardInterrupt, click.exceptions.Abort):
        return _fail("interrupted", 1, session)
    except BrokenPipeError:
        silence_output()
        return 1
    except OSError as error:
        if error.errno not in OUTPUT_ERRORS:
            return _fail_unexpected(error)
        silence_output()
        return _fail(f"standard output cannot be written: {error.strerror}", 1, session)
    except Exception as error:
        return _fail_unexpected(error)


def _in_options(message: str) -> str:
    """A message that names arguments of Python, with the options of the commands in their places; where it gives both,
    as ``truncate=True (--truncate)``, with the options alone."""
    message = re.sub(r"\b\w+=\S+ \((--[^()]*)\)", r"\1", message)
    message = re.sub(r"\(\w+=[^(),]*, (--[^()]*)\)", r"(\1)", message)
    for command in cli.commands.values():
        for option in command.params:
            if not isinstance(option, click.Option) or not option.name or not option.opts[0].startswith("--"):
                continue
            name, long = re.escape(option.name), option.opts[0]
            if option.is_flag:
                message = re.sub(rf"\b{name}=True\b", long, message)
            message = re.sub(rf"(?<![-\w]){name}=(?=[\s;,)]|$)", long, message)
            message = re.sub(rf"(?<![-\w]){name}=(?=\S)", f"{long}=", message)
            if "_" in option.name.strip("_"):
                message = re.sub(rf"(?<![-\w]){name}\b", long, message)
    return message


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, UserWarning):
        _say(f"warning: {_in_options(str(message))}")


def _say_nothing(message: str) -> None:
    """Another process says it."""


def _say(message: str) -> None:
    click.echo(f"{PROGRAM}: {_one_line(_in_options(message))}", err=True)


def _fail(message: str, code: int, session: Session | None = None) -> int:
    kept = f"; {session.kept}" if session is not None and session.kept else ""
    click.echo(f"{PROGRAM}: {_one_line(message)}{_one_line(kept)}", err=True)
    return code


def _fail_unexpected(error: Exception) -> int:
    if os.environ.get("DECOMPX_FAST_TRACEBACK"):
        raise error
    hint = "set DECOMPX_FAST_TRACEBACK=1 to see where"
    return _fail(f"unexpected {type(error).__name__}: {error} ({hint})", 1)


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


if __name__ == "__main__":
    sys.exit(main())
