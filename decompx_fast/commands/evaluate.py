"""The command ``decompx-fast evaluate``."""

from __future__ import annotations

from typing import Any

import click

from .process import Session, pass_session

# Written out, so that the help need not load them; a test compares them with those that there are.
METHODS_HELP = """Methods, with commas between: random, occlusion, decompx, decompx-no-bias, decompx-no-ffn,
decompx-no-head, decompx-released, decompx-paths, decompx-paths-3,
decompx-paths-auto, decompx-search, raw-attention, effective-attention,
attention-rollout, attention-flow, value-norms, value-norms-residual-ln, globenc, globenc-ffn, alti, value-zeroing,
saliency-l1, saliency-l2, gradient-x-input, integrated-gradients, integrated-gradients-converged, attn-lrp, lime,
kernel-shap. The report defines them."""
METRICS_HELP = """Metrics, with commas between: aopc, accuracy, aopc-least, accuracy-least, comprehensiveness,
sufficiency, prediction-performance, log-odds, flip-fraction, flip-first, monotonicity, infidelity, token-f1, iou-f1,
auprc. The last three need rationales."""


DATA_HELP = """CSV, TSV, JSONL or Parquet; or a name: snippets (movie reviews), product-snippets, tweet-snippets,
editorial-snippets; or a data set of a hub: sst2, mnli, qnli, hatexplain, movies, esnli, or NAME:PATH for its files."""


@click.command()
@click.option("--data", required=True, metavar="FILE", help=DATA_HELP)
@click.option("--out", required=True, metavar="DIR", help="Where results go; a run that was ended there goes on.")
@click.option(
    "--model", default="demo", metavar="PATH", help="A classifier's folder or hub id. [default: the demo model]"
)
@click.option("--methods", default="all", show_default=True, metavar="NAMES", help=METHODS_HELP)
@click.option("--metrics", default="all", show_default=True, metavar="NAMES", help=METRICS_HELP)
@click.option(
    "--deletion", metavar="NAMES", help="mask, pad, remove, or several: how all metrics delete. [default: their own]"
)
@click.option(
    "--sanity", type=click.IntRange(min=0), default=0, metavar="N", help="Make sanity checks on the first N texts."
)
@click.option(
    "--random-label-model", metavar="PATH", help="For them: a model of the same shape that learnt shuffled labels."
)
@click.option(
    "--reference", default="decompx", show_default=True, metavar="NAME", help="The method to compare the others with."
)
@click.option("--text-column", metavar="NAME", help="[default: text, or sentence]")
@click.option("--pair-column", metavar="NAME", help="The second text of each pair.")
@click.option("--label-column", metavar="NAME", help="Classes by name or index. [default: label]")
@click.option(
    "--label-map", multiple=True, metavar="LABEL=CLASS", help="The class of a label that has another name; repeatable."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Evaluate the first N texts only.")
@click.option("--truncate", is_flag=True, help="Cut texts that are too long for the model, with a warning.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Of random draws.")
@click.option("--device", metavar="DEVICE", help="Where to compute, such as cuda. [default: cpu]")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Processes.")
@click.option("--quiet", is_flag=True, help="Print no table and no progress.")
@pass_session
def evaluate(session: Session, data: str, out: str, label_map: tuple[str, ...], quiet: bool, **options: Any) -> None:
    """Measure how faithful attribution methods are to a model.

    \b
    Masks or removes the tokens that a method finds important, and looks at what
    the model says then. Writes report.md, summary.json, results.parquet and
    curves (PNG, SVG) to DIR. A killed run goes on where it was.
    """
    from ..evaluation import evaluate as run_evaluation

    classes = _label_map(label_map)
    try:
        found = run_evaluation(data, out=out, label_map=classes, progress=False if quiet else None, **options)
    except KeyboardInterrupt:
        session.keep(f"what is finished is kept in {out}, where the same command goes on")
        raise
    if not quiet:
        click.echo(found.table())
        click.echo(f"More in {found.folder / 'report.md'}")


def _label_map(pairs: tuple[str, ...]) -> dict[str, str | int] | None:
    """Labels and their classes, by name or index; a class's name may hold an equals sign, a label may not."""
    found: dict[str, str | int] = {}
    for pair in pairs:
        label, equals, name = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--label-map {pair!r}: give LABEL=CLASS, such as pos=POSITIVE")
        if label in found:
            raise click.UsageError(f"--label-map names the label {label!r} twice")
        found[label] = name
    return found or None
