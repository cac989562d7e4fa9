"""``decompx-fast similarity``: a query, and what makes each passage alike to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import click

from .config import BiasRule

if TYPE_CHECKING:
    from .explainer import DecompX
    from .outputs import Result


@click.command()
@click.argument("query")
@click.argument("passages", nargs=-1, required=True, metavar="PASSAGE...")
@click.option(
    "--model", metavar="PATH", help="A folder of sentence-transformers, or an encoder's. [default: the embedded one]"
)
@click.option("--pooling", metavar="NAME", help="Of an encoder whose folder does not say it: mean, cls or lasttoken.")
@click.option("--measure", type=click.Choice(("cos", "dot")), default="cos", show_default=True)
@click.option(
    "--side",
    type=click.Choice(("both", "query", "passage")),
    default="both",
    show_default=True,
    help="Whose tokens are told apart: of one side alone, against all of the other, it is cheaper.",
)
@click.option("--bias", type=click.Choice(get_args(BiasRule)), help="How biases are shared. [default: absdot]")
@click.option("--engine", metavar="ENGINE", help="Which engine computes. [default: the one that costs less]")
@click.option("--dtype", metavar="DTYPE", help="Precision, such as float64. [default: the model's]")
@click.option("--device", metavar="DEVICE", help="Where to compute, such as cuda. [default: cpu]")
@click.option("--sources", metavar="UNIT", help="What a source is: token, word or sentence. [default: token]")
@click.option("--truncate", is_flag=True, help="Cut texts that are too long for the model, with a warning.")
@click.option("--words", is_flag=True, help="Merge the tokens of each word.")
@click.option("--html", metavar="OUT", help="Write a page that shows the texts and the pairs.")
@click.option("--json", "json_", metavar="OUT", help="Write a JSON array, one entry a passage; '-': standard output.")
@click.option("--quiet", is_flag=True, help="Print no tables.")
@click.pass_context
def similarity(
    context: click.Context,
    query: str,
    passages: tuple[str, ...],
    model: str | None,
    pooling: str | None,
    side: str,
    device: str | None,
    words: bool,
    html: str | None,
    json_: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Explain how alike each PASSAGE is to QUERY.

    \b
    Prints for every passage the similarity that a sentence encoder gives, and
    which pairs of tokens make it up: their scores add up to it.
    """
    from .cli_explain import Outputs, run

    if pooling is not None and model is None:
        raise click.UsageError("--pooling is for an encoder's folder: give --model PATH")
    outputs = Outputs(html, json_, None)
    outputs.check(None)
    explainer = _load(model, pooling, device)
    wanted = {name: value for name, value in options.items() if value is not None}
    wanted["side"] = {"both": "both", "query": "a", "passage": "b"}[side]
    results = _compared(explainer, query, passages, words, wanted)
    run(
        results,
        outputs,
        show=not quiet and not outputs.to_screen,
        say=lambda message: click.echo(message, err=True),
        keep=context.obj.keep,
        total=len(passages),
    )


def _load(model: str | None, pooling: str | None, device: str | None) -> DecompX:
    from .explainer import DecompX

    if model is None:
        return DecompX.demo_encoder(device=device)
    return DecompX.from_pretrained(model, device=device, pooling=pooling)


def _compared(
    explainer: DecompX, query: str, passages: Sequence[str], words: bool, options: dict[str, Any]
) -> Iterator[Result]:
    """The query with each passage, in order."""
    from .outputs import Result

    for number, found in enumerate(explainer.similarity(query, list(passages), **options)):
        pair = found.words() if words else found
        pair = replace(pair, metadata={**pair.metadata, "passage": number})
        place = f"passage {number + 1}: {passages[number]}" if len(passages) > 1 else ""
        yield Result(pair, place, {"input": number})
