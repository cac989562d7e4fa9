"""Long texts with ``sources="focus"``: how near scores and their order are to all tokens' own, and what it costs.

    PYTHONPATH=. python bench/focus.py             # some twenty minutes of one core
    PYTHONPATH=. python bench/focus.py --texts 3

Texts of about 512 tokens are held-out review snippets one after the other; the demo model explains the class that it
predicts. Budgets take turns text by text, so that a noisy machine is noisy for all alike. The text of 8,192 tokens is
explained by a model of the demo model's shape with two layers of random weights. Numbers go to
``bench/results/focus.json``, and the table beside it is made of that file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from bench_adjoint import matmul_flops_per_s, peak_bytes
from heldout import read_snippets, spearman
from long_inputs import processor
from transformers import BertForSequenceClassification

from decompx_fast import DecompX, Explanation

RESULTS = Path(__file__).resolve().parent / "results" / "focus.json"

BUDGETS = (16, 32, 64, 128)
TOKENS = 512

#: So many tokens that speak for the predicted class are masked, the most important first.
MASKED = (1, 2, 4, 8, 16)

#: Of the long text: tokens, layers, and how many stay by themselves beside as many groups.
LONG, LAYERS, KEPT = 8192, 2, 32


def texts_of(explainer: DecompX, tokens: int, count: int) -> list[str]:
    """Snippets one after the other, as many as fit into so many tokens."""
    found: list[str] = []
    text = ""
    for snippet, _ in read_snippets(10_000):
        longer = f"{text} {snippet}".strip()
        if len(explainer.tokenizer(longer, verbose=False)["input_ids"]) > tokens:  # of which it need not warn
            found.append(text)
            text = snippet
            if len(found) == count:
                return found
        else:
            text = longer
    raise ValueError(f"the snippets make only {len(found)} texts of {tokens} tokens, and {count} were asked for")


def timed(explainer: DecompX, text: str, **options: Any) -> tuple[Explanation, float]:
    start = time.perf_counter()
    found = explainer(text, **options)
    return found, time.perf_counter() - start


def token_scores(found: Explanation, column: int, length: int) -> torch.Tensor:
    """The scores of single tokens by their places, ``[i]`` float64; 0 of those in groups and of special ones."""
    scores = torch.zeros(length, dtype=torch.float64)
    focus = found.metadata.get("focus")
    if focus is None:
        return found.scores[:, column].double() * ~torch.tensor(found.special)
    scores[focus["kept"]] = found.scores[focus["sources"], column].double()
    return scores


def aopc(explainer: DecompX, ids: Sequence[int], scores: torch.Tensor, column: int) -> float:
    """How much less probable the class is, on the average over :data:`MASKED`, when tokens that speak for it are
    masked."""
    order = [place for place in scores.argsort(descending=True).tolist() if scores[place] > 0]
    versions = torch.tensor([ids] * (len(MASKED) + 1))
    for row, count in enumerate(MASKED, start=1):
        versions[row, order[:count]] = explainer.tokenizer.mask_token_id
    with torch.inference_mode():
        probabilities = explainer.model(input_ids=versions).logits.softmax(-1)[:, column]
    return (probabilities[0] - probabilities[1:]).mean().item()


def compare(explainer: DecompX, text: str) -> dict[str, dict[str, float]]:
    """All methods on one text; ``full`` has every token as a source."""
    full, seconds = timed(explainer, text)
    length, column = len(full), full.column()
    truth = token_scores(full, column, length)
    plain, plain_s = timed(explainer, text, bias="none")
    without = token_scores(plain, column, length)
    random = torch.rand(length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows: dict[str, dict[str, float]] = {"full": {"s": seconds, "sources": length}, "NoBias": {"s": plain_s}}
    rows["random"] = {"aopc": aopc(explainer, full.token_ids, random * ~torch.tensor(full.special), column)}
    for name, scores in (("full", truth), ("NoBias", without)):
        rows[name]["aopc"] = aopc(explainer, full.token_ids, scores, column)
    for budget in BUDGETS:
        found, seconds = timed(explainer, text, sources="focus", focus=budget)
        kept = found.metadata["focus"]["kept"]
        scores = token_scores(found, column, length)
        largest = truth.abs().topk(budget).indices.tolist()
        rows[f"focus {budget}"] = {
            "s": seconds,
            "naming_s": found.metadata["focus"]["time_s"],
            "sources": len(found),
            "share": (truth[kept].abs().sum() / truth.abs().sum()).item(),
            "recall": len({*kept} & {*largest}) / budget,
            "spearman": spearman(scores[kept], truth[kept]),
            "spearman_nobias": spearman(without[kept], truth[kept]),
            "gap": ((scores - truth)[kept].abs().max() / truth.abs().max()).item(),
            "aopc": aopc(explainer, full.token_ids, scores, column),
            "error": found.completeness_error,
        }
    return rows


def long_text(demo: DecompX) -> dict[str, float]:
    """One text of :data:`LONG` tokens, beside what its plan says."""
    config = demo.model.config.__class__(**{**demo.model.config.to_dict(), "max_position_embeddings": LONG})
    config.num_hidden_layers = LAYERS
    torch.manual_seed(0)
    explainer = DecompX(BertForSequenceClassification(config).eval(), demo.tokenizer)
    text = texts_of(explainer, LONG, 1)[0]
    plan = explainer.plan(LONG, focus=KEPT)
    took: list[tuple[Explanation, float]] = []
    ceiling = [matmul_flops_per_s("cpu")]
    _, above = peak_bytes(lambda: took.append(timed(explainer, text, sources="focus", focus=KEPT)), "cpu")
    ceiling.append(matmul_flops_per_s("cpu"))
    ((found, seconds),) = took
    inputs = explainer.tokenizer(text, return_tensors="pt")
    start = time.perf_counter()
    with torch.inference_mode():
        explainer.model(**inputs)
    return {
        "tokens": inputs["input_ids"].shape[1],
        "sources": len(found),
        "s": seconds,
        "naming_s": found.metadata["focus"]["time_s"],
        "forward_s": time.perf_counter() - start,
        "planned_flops": plan.total_flops,
        "planned_naming_flops": plan.naming.total_flops,
        "ceiling_flops_per_s": statistics.mean(ceiling),
        "planned_bytes": plan.peak_bytes,
        "above_bytes": above,
        "error": found.completeness_error,
    }


def mean(rows: Sequence[dict[str, dict[str, float]]], method: str, name: str) -> float:
    return statistics.mean(row[method][name] for row in rows)


def markdown(report: dict[str, Any]) -> str:
    """The tables of a report, as far as it goes."""
    lines = [
        "# Sources in focus",
        "",
        f"`bench/focus.py`, {report['processor']}, {report['threads']} thread(s), float32, on a machine that others "
        "used too: ratios are of runs in turns.",
    ]
    lines += of_texts(report["texts"]) if report.get("texts") else []
    lines += of_long_text(report["long"]) if report.get("long") else []
    return "\n".join(lines) + "\n"


def of_texts(rows: Sequence[dict[str, dict[str, float]]]) -> list[str]:
    """The table of :func:`compare`."""
    full_s = mean(rows, "full", "s")
    lines = [
        "",
        f"## {len(rows)} texts of about {TOKENS} tokens, demo model, AbsDot of the predicted class",
        "",
        "So many tokens by themselves, all others in sentences. Share and recall: what the kept tokens have of all "
        "|scores| of the full method, and of its largest ones, as many as are kept. Spearman: rank correlation with "
        "the full method's scores, of the kept tokens alone, and the least of all texts; NoBias: of the scores without "
        "biases, which named the tokens. Gap: the largest of a kept token, by the largest score. AOPC: by how much "
        f"the class is less probable, on the average of {', '.join(map(str, MASKED))} masked tokens.",
        "",
        "| | sources | s | of it naming | full / s | share | recall | Spearman | least | NoBias | gap | AOPC |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for budget in BUDGETS:
        name = f"focus {budget}"
        cells = [f"{mean(rows, name, 'sources'):.0f}"]
        cells += [f"{mean(rows, name, 's'):.2f}", f"{mean(rows, name, 'naming_s'):.2f}"]
        cells += [f"{full_s / mean(rows, name, 's'):.1f}"]
        cells += [f"{mean(rows, name, key):.2f}" for key in ("share", "recall")]
        cells += [f"{mean(rows, name, 'spearman'):.3f}", f"{min(row[name]['spearman'] for row in rows):.3f}"]
        cells += [f"{mean(rows, name, 'spearman_nobias'):.3f}", f"{mean(rows, name, 'gap'):.1%}"]
        lines.append(f"| {name} | {' | '.join([*cells, format(mean(rows, name, 'aopc'), '.3f')])} |")
    full = f"{mean(rows, 'full', 'sources'):.0f} | {full_s:.2f}"
    lines.append(f"| all tokens | {full} | | 1 | 1 | 1 | 1 | 1 | | | {mean(rows, 'full', 'aopc'):.3f} |")
    plain_s = mean(rows, "NoBias", "s")
    lines.append(
        f"| NoBias | | {plain_s:.2f} | | {full_s / plain_s:.1f} | | | | | | | {mean(rows, 'NoBias', 'aopc'):.3f} |"
    )
    lines.append(f"| random order | | | | | | | | | | | {mean(rows, 'random', 'aopc'):.3f} |")
    return lines


def of_long_text(long: dict[str, float]) -> list[str]:
    """The table of :func:`long_text`."""
    floor_s = long["planned_flops"] / long["ceiling_flops_per_s"]
    return [
        "",
        f"## {long['tokens']:,} tokens, {long['sources']} sources, {LAYERS} layers of the demo model's shape, random "
        "weights",
        "",
        "| | planned | measured |",
        "| --- | --: | --: |",
        f"| arithmetic | {long['planned_flops'] / 1e12:.2f} TFLOP: {floor_s:.1f} s at "
        f"{long['ceiling_flops_per_s'] / 1e9:.0f} GFLOP/s, a product of 2,048 | {long['s']:.1f} s: "
        f"{floor_s / long['s']:.0%} of that rate |",
        f"| of it naming | {long['planned_naming_flops'] / 1e12:.2f} TFLOP: "
        f"{long['planned_naming_flops'] / long['ceiling_flops_per_s']:.1f} s | {long['naming_s']:.1f} s |",
        f"| memory beside the model | {long['planned_bytes'] / 2**20:,.0f} MiB | {long['above_bytes'] / 2**20:,.0f} "
        "MiB |",
        f"| the model's own pass | | {long['forward_s']:.1f} s |",
        f"| completeness error | | {long['error']:.0e} |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", nargs="?", choices=("texts", "long"), help="only this one, the other as it was")
    parser.add_argument("--texts", type=int, default=8, help="how many")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of numbers")
    arguments = parser.parse_args()
    report: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    report |= {"processor": processor(), "threads": torch.get_num_threads(), "torch": torch.__version__}

    def write() -> None:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
        arguments.out.with_suffix(".md").write_text(markdown(report))

    demo = DecompX.demo()
    demo("A warm-up.", sources="focus", focus=1)
    if arguments.part != "long":
        report["texts"] = []
        for text in texts_of(demo, TOKENS, arguments.texts):
            report["texts"].append(compare(demo, text))
            write()
    if arguments.part != "texts":
        report["long"] = long_text(demo)
        write()


if __name__ == "__main__":
    main()
