"""``decompx-fast similarity``: a query, and what makes each passage alike to it; or a picture, and each text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import click

from ..config import BiasRule

if TYPE_CHECKING:
    from ..explainer import DecompX
    from .outputs import Result


@click.command()
@click.argument("query")
@click.argument("passages", nargs=-1, metavar="PASSAGE...")
@click.option("--image", metavar="FILE", help="A picture that each of the texts is compared with, by a model of both.")
@click.option(
    "--model", metavar="PATH", help="A folder of sentence-transformers, or an encoder's. [default: the embedded one]"
)
@click.option("--pooling", metavar="NAME", help="Of an encoder whose folder does not say it: mean, cls or lasttoken.")
@click.option(
    "--measure",
    type=click.Choice(("cos", "dot", "logit")),
    default="cos",
    show_default=True,
    help="The logit is a model's own, of texts and pictures.",
)
@click.option(
    "--side",
    type=click.Choice(("both", "query", "passage", "text", "image")),
    default="both",
    show_default=True,
    help="Whose tokens or patches are told apart: of one side alone, against all of the other, it is cheaper.",
)
@click.option("--bias", type=click.Choice(get_args(BiasRule)), help="How biases are shared. [default: absdot]")
@click.option("--engine", metavar="ENGINE", help="Which engine computes. [default: the one that costs less]")
@click.option("--dtype", metavar="DTYPE", help="Precision, such as float64. [default: the model's]")
@click.option("--device", metavar="DEVICE", help="Where to compute, such as cuda. [default: cpu]")
@click.option(
    "--sources", metavar="UNIT", help="What a source is: token, word or sentence; or 4x4 blocks, say, of a picture."
)
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
    image: str | None,
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
    """Explain how alike each PASSAGE is to QUERY, or each of them to a picture.

    \b
    Prints for every passage the similarity that a sentence encoder gives, and
    which pairs of tokens make it up: their scores add up to it. With --image
    QUERY and each PASSAGE are texts, and the pairs are tokens and patches.
    """
    from .explain import Outputs, run
    from .outputs import Tables
    from .values import blocks

    if pooling is not None and model is None:
        raise click.UsageError("--pooling is for an encoder's folder: give --model PATH")
    names = ("query", "passage") if image is None else ("text", "image")
    sides = {"both": "both", names[0]: "a", names[1]: "b"}
    if side not in sides:
        raise click.UsageError(f"--side {side} is for {'pictures' if image is None else 'texts'}: {', '.join(sides)}")
    if image is None and not passages:
        raise click.UsageError("Missing argument 'PASSAGE...': give what QUERY is compared with, or --image FILE")
    if image is not None and model is None:
        raise click.UsageError("--image needs a model of texts and pictures, such as CLIP: give --model PATH")
    outputs = Outputs(html, json_, None)
    outputs.check(None)
    explainer = _load(model, pooling, device)
    wanted = {name: value for name, value in options.items() if value is not None}
    wanted["side"] = sides[side]
    if "sources" in wanted:
        wanted["sources"] = blocks(wanted["sources"])
    if image is None:
        results, total = _compared(explainer, query, passages, words, wanted), len(passages)
    else:
        texts = [query, *passages]
        results, total = _compared_with_picture(explainer, texts, image, words, wanted), len(texts)
    run(
        results,
        outputs,
        tables=None if quiet or outputs.to_screen else Tables(),
        say=lambda message: click.echo(message, err=True),
        keep=context.obj.keep,
        total=total,
    )


def _load(model: str | None, pooling: str | None, device: str | None) -> DecompX:
    from ..explainer import DecompX

    if model is None:
        return DecompX.demo_encoder(device=device)
    return DecompX.from_pretrained(model, device=device, pooling=pooling)


def _compared_with_picture(
    explainer: DecompX, texts: list[str], image: str, words: bool, options: dict[str, Any]
) -> Iterator[Result]:
    """Each text with the picture, in order."""
    from .outputs import Result

    picture: Any = image  # a path, and no text
    for number, found in enumerate(explainer.similarity(texts, picture, **options)):
        pair = found.words() if words else found
        pair = replace(pair, metadata={**pair.metadata, "text": number, "file": image})
        place = f"text {number + 1}: {texts[number]}" if len(texts) > 1 else ""
        yield Result(pair, place, {"input": number, "file": image})


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
