"""Which rules for products are the most faithful to a language model, beside other methods: writes a table.

    python bench/gates.py --work FOLDER [--count 208] [--dear 64] [--limit SECONDS] [--model FOLDER] [--out FILE]

The embedded language model reads texts that people wrote (movie reviews, editorials, product reviews) up to their last
four tokens, which are the output that is explained. Then the most, or the least, important 20 or 50 % of the prompt's
tokens are taken out, and the log-probability of the output is looked at. Rules that no engine has are tried on some of
the texts, those for development; methods that run the model dozens of times are computed on some, too. What is done is
kept in the folder, text by text, so that a run that ended early goes on where it was.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from attributions import (
    Said,
    Scores,
    attention_rollout,
    attn_lrp,
    decompx,
    frozen,
    gradient_x_input,
    integrated_gradients,
    log_probabilities,
    occlusion,
    random_scores,
)
from frozen_rules import Rules, with_rules
from torch import nn
from transformers import LlamaForCausalLM

from decompx_fast import DecompX
from decompx_fast.evaluation.bootstrap import Estimate, bootstrap_means, estimate
from decompx_fast.evaluation.masking import count_of, importance_order
from decompx_fast.evaluation.snippets import kept_snippets
from decompx_fast.result.file import atomic_write

#: Files of rated texts, and what they are.
SOURCES = {
    "movieReviewSnippets_GroundTruth.txt": "movie reviews",
    "nytEditorialSnippets_GroundTruth.txt": "editorials",
    "amazonReviewSnippets_GroundTruth.txt": "product reviews",
}

#: Tokens of the output, and of a text as a whole, where it is cut; how many texts are explained together.
OUTPUT, LENGTH = 4, 24
TOGETHER = 8
DEVELOPMENT = 96  # every other batch of so many
PERCENTS = (20, 50)
SEED = 0

DEFAULT = "DecompX"


class Method(NamedTuple):
    """How scores are computed, whether they are signed, and on which texts: all, those for development, or a few."""

    score: Scores
    signed: bool = True
    on: Literal["all", "development", "few"] = "all"


def tried(score: Scores) -> Method:
    return Method(score, on="development")


def less_the_mean(score: Scores) -> Scores:
    """The same of the outputs' logits less the mean over the vocabulary."""
    return lambda model, said: score(model, replace(said, against="mean"))


def without_first(score: Scores) -> Scores:
    """The same but for the first token, which decoders attend where they have nothing to attend: it has 0."""

    def scores(model: nn.Module, said: Said) -> torch.Tensor:
        found = score(model, said).clone()
        found[:, 0] = 0.0
        return found

    return scores


METHODS = {
    DEFAULT: Method(decompx(gate="half")),
    "DecompX, gate value": Method(decompx(gate="value")),
    "AttnLRP": Method(attn_lrp),
    "gradient x input": Method(gradient_x_input),
    "attention rollout": Method(attention_rollout, signed=False),
    "random": Method(random_scores),
    "gate path": tried(with_rules(Rules(gate="path"))),
    "attention local": tried(with_rules(Rules(attention="local"))),
    "attention path": tried(with_rules(Rules(attention="path"))),
    "attention 1/2, 0": tried(with_rules(Rules(attention=(0.5, 0.0)))),
    "attention 1/4, 0": tried(with_rules(Rules(attention=(0.25, 0.0)))),
    "attention 1, 1/2": tried(with_rules(Rules(attention=(1.0, 0.5)))),
    "DecompX, less the mean": tried(less_the_mean(decompx(gate="half"))),
    "AttnLRP, less the mean": tried(less_the_mean(attn_lrp)),
    "DecompX, first token 0": tried(without_first(decompx(gate="half"))),
    "AttnLRP, first token 0": tried(without_first(attn_lrp)),
    "integrated gradients": Method(integrated_gradients, on="few"),
    "occlusion": Method(occlusion, on="few"),
}


def for_development(number: int) -> bool:
    """Whether the text of this number is: every other batch of the first ones is."""
    return number < DEVELOPMENT and number // TOGETHER % 2 == 0


def judge_of(model: LlamaForCausalLM) -> nn.Module:
    """A copy in half the precision but for its head, in half the time; its rounding is the same for all methods."""
    judge = copy.deepcopy(model)
    judge.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone(), requires_grad=False)
    judge.model.to(torch.bfloat16)
    judge.lm_head.register_forward_pre_hook(lambda _, states: (states[0].float(),))
    return judge


def texts(count: int) -> list[tuple[str, str]]:
    """As many of each source, drawn once and for all: ``(source, text)``."""
    found = []
    for file, name in SOURCES.items():
        lines = kept_snippets(file).decode("utf-8", "replace").split("\n")
        some = sorted({line.rstrip("\r").split("\t", 2)[2].strip() for line in lines if line.count("\t") >= 2})
        random.Random(SEED).shuffle(some)
        found.append([(name, text) for text in some])
    return [one for together in zip(*found, strict=False) for one in together][: 20 * count]


def prompts(tokenizer: Any, count: int) -> list[tuple[str, list[int]]]:
    """Texts that are long enough, cut to the same length: their sources and token ids."""
    found: list[tuple[str, list[int]]] = []
    for source, text in texts(count):
        ids = tokenizer(text)["input_ids"][:LENGTH]
        if len(ids) == LENGTH and sum(one == source for one, _ in found) < -(-count // len(SOURCES)):
            found.append((source, ids))
        if len(found) == count:
            break
    return found


def said_of(ids: Sequence[Sequence[int]]) -> Said:
    texts_ids = torch.tensor(ids)
    return Said(texts_ids[:, :-OUTPUT], texts_ids[:, -OUTPUT:])


def measure(
    model: nn.Module, judge: nn.Module, ids: Sequence[Sequence[int]], names: Sequence[str]
) -> list[dict[str, dict[str, Any]]]:
    """Of each text and method what is lost, ``[level]``, while the most and the least important tokens are taken out:
    in what ``judge`` says, which is ``model`` in a precision that is enough for that."""
    found: list[dict[str, dict[str, Any]]] = [{} for _ in ids]
    orders: list[dict[str, list[int]]] = [{} for _ in ids]
    n = LENGTH - OUTPUT
    for name in names:
        scores = METHODS[name].score(model, said_of(ids))[:, :n].double()
        for row, text in enumerate(ids):
            digest = hashlib.sha256(repr(text).encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            order = importance_order(scores[row], [False] * n, signed=METHODS[name].signed, generator=generator)
            orders[row][name] = order
    for text, of_text, own in zip(ids, orders, found, strict=True):
        parts = {name: [_left(order, p) for p in PERCENTS] for name, order in of_text.items()}
        others = {name: [_left(order[::-1], p) for p in PERCENTS] for name, order in of_text.items()}
        whole = tuple(range(n))
        asked = {one for some in (parts, others) for each in some.values() for one in each}
        values = judged(judge, text, {whole, *asked})
        for name in names:
            own[name] = {
                which: [values[whole] - values[one] for one in some[name]]
                for which, some in (("most", parts), ("least", others))
            }
    return found


def _left(order: Sequence[int], percent: int) -> tuple[int, ...]:
    """The places that are left when the first are taken out."""
    return tuple(sorted(order[count_of(percent, len(order)) :]))


def judged(judge: nn.Module, ids: Sequence[int], parts: set[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
    """The log-probability of a text's output after each part of its prompt."""
    fed, output = torch.tensor(ids[:-1]), torch.tensor(ids[-OUTPUT:])
    tail = range(LENGTH - OUTPUT, LENGTH - 1)
    found: dict[tuple[int, ...], float] = {}
    for _, alike in groupby(sorted(parts, key=len), key=len):  # of one length, so that there is no padding
        places = list(alike)
        values = log_probabilities(judge, [fed[[*one, *tail]] for one in places], output)
        found |= dict(zip(places, values.tolist(), strict=True))
    return found


def run(
    model: LlamaForCausalLM,
    asked: Sequence[tuple[str, list[int]]],
    names: Mapping[str, Sequence[int]],
    work: Path,
    limit_s: float,
) -> bool:
    """Measure each method on the texts of its numbers, if that is not in the folder yet; whether all is there in the
    end.

    Raises:
        ValueError: if what the folder has is of other texts.
    """
    work.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    judge = judge_of(model)
    with frozen(model), frozen(judge):
        for first in range(0, len(asked), TOGETHER):
            numbers = range(first, min(first + TOGETHER, len(asked)))
            known = [_known(work / f"{number:04d}.json", *asked[number]) for number in numbers]
            some = [name for name, on in names.items() if first in on]
            left = [name for name in some if any(name not in one["methods"] for one in known)]
            if not left:
                continue
            if time.monotonic() - begun > limit_s:
                return False
            found = measure(model, judge, [asked[number][1] for number in numbers], left)
            for number, one, more in zip(numbers, known, found, strict=True):
                text = json.dumps({**one, "methods": one["methods"] | more})
                atomic_write(work / f"{number:04d}.json", lambda temporary, text=text: Path(temporary).write_text(text))
    return True


def _known(path: Path, source: str, ids: list[int]) -> dict[str, Any]:
    if not path.is_file():
        return {"source": source, "ids": ids, "methods": {}}
    known: dict[str, Any] = json.loads(path.read_text())
    if known["ids"] != ids:
        raise ValueError(f"{path} is of another text than is asked: name another folder by --work")
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where what is done is kept")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gates.md")
    parser.add_argument("--count", type=int, default=208)
    parser.add_argument("--dear", type=int, default=64, help="texts for methods that run the model dozens of times")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no texts are begun")
    parser.add_argument("--model", help="a folder, in the place of the embedded model")
    given = parser.parse_args()
    explainer = DecompX.demo_lm() if given.model is None else DecompX.from_pretrained(given.model)
    asked = prompts(explainer.tokenizer, given.count)
    on = {
        "all": range(len(asked)),
        "development": [number for number in range(len(asked)) if for_development(number)],
        "few": range(min(given.dear, len(asked))),
    }
    done = run(explainer.model, asked, {name: on[METHODS[name].on] for name in given.methods}, given.work, given.limit)
    rows = {int(path.stem): json.loads(path.read_text()) for path in sorted(given.work.glob("*.json"))}
    given.out.write_text(report(rows), encoding="utf-8")
    print(f"{len(rows)} of {len(asked)} texts" + ("" if done else ": run it again to go on"))


def interval(found: Estimate) -> str:
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def report(rows: Mapping[int, Mapping[str, Any]]) -> str:
    """The tables of what was measured of some prompts, by their numbers."""
    numbers = sorted(rows)
    sources = [rows[number]["source"] for number in numbers]
    kinds = ", ".join(f"{sources.count(name)} {name}" for name in SOURCES.values())
    percents = " or ".join(map(str, PERCENTS))
    lines = [
        "# Faithfulness of the rules for products",
        "",
        f"SmolLM2-135M-Instruct on {len(rows)} texts ({kinds}) of {LENGTH} tokens, the logits of whose last {OUTPUT} "
        f"are explained, by `bench/gates.py`. The most, or the least, important {percents} % of the other "
        f"{LENGTH - OUTPUT} are taken out. What is shown is by how much the log-probability of the output falls, the "
        "mean over these levels, with 95 % intervals from a bootstrap of texts. A faithful method has a large fall for "
        "the most and a small one for the least important; the last column is the difference of the two less that of "
        f'*{DEFAULT}* (with its default, `gate="half"`) on the same texts, of which the second column says how '
        "many there are: the methods that run the model dozens of times were computed on fewer. What is left of a text "
        "is judged with layers in bfloat16.",
        "",
        *table(rows, [name for name, method in METHODS.items() if method.on != "development"], numbers),
        "",
        "## Rules tried on the texts for development",
        "",
        "Rules that no engine has, by automatic differentiation (`bench/frozen_rules.py` has their formulas), and the "
        f"methods above on the same texts, every other batch of {TOGETHER} of the first {DEVELOPMENT}.",
        "",
        *table(rows, [name for name in METHODS if METHODS[name].on != "few"], list(filter(for_development, numbers))),
    ]
    return "\n".join(lines) + "\n"


def table(rows: Mapping[int, Mapping[str, Any]], names: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Of some methods on those of some texts that they were computed on."""
    lines = [
        "| method | texts | most important | least important | difference | against DecompX |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        known = [rows[number]["methods"] for number in numbers if {name, DEFAULT} <= set(rows[number]["methods"])]
        if not known:
            continue
        own, default = (_losses(known, one) for one in (name, DEFAULT))
        columns = np.column_stack([own, own[:, 0] - own[:, 1], own[:, 0] - own[:, 1] - default[:, 0] + default[:, 1]])
        means = bootstrap_means(columns, seed=SEED)
        cells = [interval(estimate(columns[:, c], means[:, c])) for c in range(4)]
        cells[3] = "" if name == DEFAULT else cells[3]
        lines.append(f"| {name} | {len(known)} | {' | '.join(cells)} |")
    return lines


def _losses(known: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """``[n, 2]``: what is lost without the most, and without the least important tokens, the mean over the levels."""
    return np.array([[np.mean(one[name][which]) for which in ("most", "least")] for one in known])


if __name__ == "__main__":
    main()
