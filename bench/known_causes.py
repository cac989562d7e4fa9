"""Does a method name the cause, where it is known? Small models, each trained in about a minute, on synthetic tasks.

    python bench/known_causes.py --work FOLDER [--seeds 3] [--limit SECONDS] [--out FILE]

The tasks and plants are those of ``cause_tasks.py``. What is explained is the answer's logit less the mean of all, or
less that of the opposite where there are two answers. Trained models and what was measured of each are kept in the
folder, so that a run that ended early goes on where it was. Writes a table and, beside it, the same as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    logits_of,
    occlusion_by_zero,
    random_scores,
)
from cause_tasks import BEGIN, TASKS, VOCABULARY, WORDS, Batch, Task, plants
from frozen_rules import Rules, with_rules
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from decompx_fast.evaluation.bootstrap import Estimate, bootstrap_means, estimate
from decompx_fast.result.file import atomic_write

D, LAYERS, HEADS, F = 64, 2, 4, 128
INITIAL = 0.12  # near 1 / sqrt(d): with transformers' own 0.02, models this small learn nothing for long
BATCH, STEPS, LEARNING_RATE, QUESTIONS = 64, 3000, 3e-3, 3
GOOD = 0.995  # right in training, when it ends
SEED, TEXTS = 0, 200
STRENGTH, STRENGTHS = 0.9, (0.6, 0.75, 0.9, 1.0)

_COMMON = {"hidden_size": D, "intermediate_size": F, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
_COMMON |= {"vocab_size": VOCABULARY, "max_position_embeddings": 32, "initializer_range": INITIAL}
_DECODER: dict[str, Any] = {"bos_token_id": BEGIN, "eos_token_id": None, "pad_token_id": None, "num_key_value_heads": 2}
_ENCODER = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": None}


def _bert(classes: int) -> nn.Module:
    return BertForSequenceClassification(BertConfig(**_COMMON, **_ENCODER, num_labels=classes))


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "BERT": _bert,
    "Llama": lambda _: LlamaForCausalLM(LlamaConfig(**_COMMON, **_DECODER)),
    "Qwen2": lambda _: Qwen2ForCausalLM(Qwen2Config(**_COMMON, **_DECODER)),
}

DEFAULT, NO_BIAS = "DecompX", "DecompX, no bias"
METHODS: dict[str, Scores] = {
    DEFAULT: decompx(),
    NO_BIAS: decompx(bias="none"),
    "DecompX, gate value": decompx(gate="value"),
    "attention 1/2, 0": with_rules(Rules(attention=(0.5, 0.0))),
    "AttnLRP": attn_lrp,
    "gradient x input": gradient_x_input,
    "integrated gradients": integrated_gradients,
    "attention rollout": attention_rollout,
    "occlusion": occlusion_by_zero,
    "random": random_scores,
}
#: What says the same as another one: Llama has no biases, and BERT no gates.
WITHOUT = {"Llama": {NO_BIAS}, "Qwen2": set(), "BERT": {"DecompX, gate value"}}


@dataclass(frozen=True)
class Case:
    """A model that is trained on a task.

    Attributes:
        model: of :data:`MODELS`.
        task: what it learns.
        seed: of its weights and texts.
        strength: of a plant; ``None`` for tasks that are none.
    """

    model: str
    task: Task
    seed: int
    strength: float | None = None

    @property
    def name(self) -> str:
        strength = "" if self.strength is None else f"-{self.strength:g}"
        return f"{self.model}-{self.task.name}{strength}-{self.seed}".replace(" ", "-")

    def drawn(self, count: int, questions: int, number: int) -> Batch:
        """Texts that differ by the case's seed and ``number``."""
        return self.task.draw(count, questions, self.model == "BERT", (self.seed + 1) * 10**6 + number)


def cases(models: Sequence[str], seeds: int) -> list[Case]:
    """All that is to be trained: tasks, and plants of the strength that is shown first; then those of the others."""
    found = [Case(model, task, seed) for model in models for seed in range(seeds) for task in TASKS]
    strengths = sorted(STRENGTHS, key=lambda strength: strength != STRENGTH) if "BERT" in models else ()
    planted = [(seed, strength) for strength in strengths for seed in range(seeds)]
    return found + [Case("BERT", task, seed, strength) for seed, strength in planted for task in plants(strength)]


def outputs_at(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The outputs ``[b, q, C]`` where answers are read."""
    return logits_of(model, 2 * len(batch.places) - 1, input_ids=batch.ids)[:, ::2]


def trained(case: Case, work: Path) -> nn.Module:
    """The model, from the folder if it is there."""
    torch.manual_seed(case.seed)
    model = MODELS[case.model](case.task.classes)
    path = work / f"{case.name}.pt"
    if path.is_file():
        model.load_state_dict(torch.load(path))
        return model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, STEPS, pct_start=0.1)
    count = BATCH * QUESTIONS if case.model == "BERT" else BATCH  # an encoder is asked one question of a text
    begun, right = time.monotonic(), 0.0
    for step in range(STEPS):
        batch = case.drawn(count, QUESTIONS, step)
        outputs = outputs_at(model, batch)
        loss = nn.functional.cross_entropy(outputs.flatten(0, 1), batch.taught.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        right = 0.98 * right + 0.02 * (outputs.argmax(-1) == batch.answers).float().mean().item()
        if right > GOOD:
            break
    print(f"{case.name}: {step + 1} steps, {right:.3f} right, {time.monotonic() - begun:.0f} s", flush=True)
    atomic_write(path, lambda temporary: torch.save(model.state_dict(), temporary))
    return model.eval()


def measure(case: Case, model: nn.Module) -> dict[str, Any]:
    """Each method on texts that were not trained on, of those that the model answers as the causes say.

    Returns:
        ``accuracy``; ``read``, where the answer is read; ``causes`` ``[b, s]``; and ``scores`` by method, ``[b, i]``.
    """
    batch = case.drawn(TEXTS, 1, 10**6 - 1)
    with torch.no_grad():
        right = (outputs_at(model, batch).argmax(-1) == batch.answers)[:, 0]
    texts = right.nonzero()[:, 0]
    others = None if batch.opposite is None else batch.opposite[texts, 0]
    said = Said(batch.ids[texts], batch.answers[texts], "mean" if others is None else "other", others)
    with frozen(model):
        methods = [name for name in METHODS if name not in WITHOUT[case.model]]
        scores = {name: METHODS[name](model, said).tolist() for name in methods}
    return {
        "accuracy": right.double().mean().item(),
        "read": int(batch.places[0]),
        "causes": batch.causes[texts, 0].tolist(),
        "scores": scores,
    }


def run(asked: Sequence[Case], work: Path, limit_s: float) -> dict[Case, dict[str, Any]]:
    """What was measured of each case, from the folder what is there already, as far as there is time."""
    work.mkdir(parents=True, exist_ok=True)
    begun, found = time.monotonic(), {}
    for case in asked:
        path = work / f"{case.name}.json"
        if not path.is_file():
            if time.monotonic() - begun > limit_s:
                continue
            text = json.dumps(measure(case, trained(case, work)))
            atomic_write(path, lambda temporary, text=text: Path(temporary).write_text(text))
        found[case] = json.loads(path.read_text())
    return found


def resampled(values: Sequence[np.ndarray]) -> np.ndarray:
    """Means ``[resamples]`` over models drawn with replacement, and over texts of each, drawn too.

    Source: Davison & Hinkley, Bootstrap Methods and Their Application, 1997, section 3.8.
    """
    by_model = np.stack([bootstrap_means(one[:, None], seed=n)[:, 0] for n, one in enumerate(values)])
    draws = np.random.default_rng(SEED).integers(len(values), size=(by_model.shape[1], len(values)))
    return by_model[draws, np.arange(len(draws))[:, None]].mean(1)


def shown_of(scores: np.ndarray, causes: np.ndarray) -> dict[str, np.ndarray]:
    """What is shown of scores ``[b, i]`` where the causes are at ``[b, s]``, for each text, ``[b]``."""
    size = np.abs(scores)
    own, rest = np.take_along_axis(size, causes, 1), size.copy()
    np.put_along_axis(rest, causes, 0.0, 1)
    return {
        "mass": own.sum(1) / size.sum(1),
        "first": (own.max(1) > rest.max(1)).astype(float),
        "all first": (own.min(1) > rest.max(1)).astype(float),
    }


@dataclass(frozen=True)
class Column:
    """A task of a table, with what was measured of each of its models."""

    title: str
    measured: Sequence[dict[str, Any]]

    @property
    def cells(self) -> list[str]:
        """What is shown: with one cause, all are before the others where one is."""
        several = len(self.measured[0]["causes"][0]) > 1
        return ["mass", "first", "all first"] if several else ["mass", "first"]

    def found(self, method: str, which: str) -> Estimate:
        """A mean, with its interval."""
        values = [shown_of(np.array(one["scores"][method]), np.array(one["causes"]))[which] for one in self.measured]
        return estimate(np.array([one.mean() for one in values]), resampled(values))

    def at_question(self, method: str) -> float:
        """The mean share of all magnitudes at the token that the answer is read at, which is the question."""
        shares = []
        for one in self.measured:
            size = np.abs(np.array(one["scores"][method]))
            shares += (size[:, one["read"]] / size.sum(1)).tolist()
        return float(np.mean(shares))

    def between_rules(self) -> str:
        """How far scores without biases are from those with each bias shared."""
        gaps, correlations, same = [], [], []
        for one in self.measured:
            shared, none = np.array(one["scores"][DEFAULT]), np.array(one["scores"][NO_BIAS])
            gaps += (np.abs(shared - none).sum(1) / np.abs(shared).sum(1)).tolist()
            correlations += [np.corrcoef(*pair)[0, 1] for pair in zip(shared, none, strict=True)]
            same += (np.abs(shared).argmax(1) == np.abs(none).argmax(1)).tolist()
        return (
            f"{self.title}: {np.median(gaps):.1%} of the magnitudes apart, correlation {np.median(correlations):.3f}, "
            f"the same first token in {np.mean(same):.0%}"
        )


def columns(found: dict[Case, dict[str, Any]], model: str, strength: float | None) -> list[Column]:
    some: dict[str, list[dict[str, Any]]] = {}
    for case, measured in found.items():
        if case.model == model and case.strength == strength:
            some.setdefault(case.task.name, []).append(measured)
    return [Column(title, measured) for title, measured in some.items()]


def _cell(found: Estimate) -> str:
    return f"{found.mean:.0%} [{found.low:.0%}, {found.high:.0%}]"


def table(shown: Sequence[Column], cells: Sequence[str] | None = None) -> list[str]:
    """Rows are methods, and the models' accuracy; a column for each task and what is shown of it."""
    each = [(column, which) for column in shown for which in cells or column.cells]
    titles = [f"{column.title}: {which}" if cells is None else column.title for column, which in each]
    lines = ["| method | " + " | ".join(titles) + " |", "|---|" + "---|" * len(titles)]
    for name in (one for one in METHODS if all(one in column.measured[0]["scores"] for column in shown)):
        lines.append(f"| {name} | {' | '.join(_cell(column.found(name, which)) for column, which in each)} |")
    accuracies = []
    for column, which in each:
        right = [one["accuracy"] for one in column.measured]
        first = which == (cells or column.cells)[0]
        accuracies.append(f"{np.mean(right):.1%} ({len(right)} of them, least {min(right):.1%})" if first else "")
    lines.append(f"| *accuracy of the models* | {' | '.join(accuracies)} |")
    return lines if cells else [*lines, "", leaders(shown)]


def leaders(shown: Sequence[Column]) -> str:
    """Which method has most of its mass on the causes, and whether it is told from DecompX's by the intervals."""
    words = []
    for column in shown:
        found = {name: column.found(name, "mass") for name in METHODS if name in column.measured[0]["scores"]}
        best = max(found, key=lambda name: found[name].mean)
        apart = found[best].low > found[DEFAULT].high
        words.append(
            f"{column.title}: {best}" + ("" if apart or best == DEFAULT else " (its interval meets DecompX's)")
        )
    return f"The most mass on the causes: {'; '.join(words)}."


def report(found: dict[Case, dict[str, Any]]) -> str:
    lines = [
        "# Causes that are known",
        "",
        f"Small models (d = {D}, {LAYERS} layers), each with a seed of its own, trained on tasks whose answer is made "
        "from known tokens (`bench/cause_tasks.py`), by `bench/known_causes.py`. Each is asked for "
        f"{TEXTS} texts that it was not trained on (those count that it answers rightly). *Mass*: the share of the "
        "causes in the sum of all scores' magnitudes, over all tokens that the model reads, the question among them. "
        "*First*: in how many texts a cause has the largest magnitude; *all first*, where there are two causes: in how "
        "many each of them has a larger magnitude than any other token. With 95 % intervals from a bootstrap of models "
        "and of texts. *Occlusion* makes the word embedding 0, since to take a token out moves all others. *Attention "
        "1/2, 0* is DecompX with half of what values bring, a rule that no engine has (`bench/frozen_rules.py`).",
        "",
        "With attention weights frozen, DecompX follows what is carried to the answer: it sees a value that is copied, "
        "and not what decides by attention alone that it is this one, as a key, or the other word of a pair does. "
        "Methods that run the model on changed texts (occlusion, integrated gradients) see both.",
    ]
    for model in MODELS:
        shown = columns(found, model, None)
        if not shown:
            continue
        lines += ["", f"## {model}", "", *table(shown)]
        shares = "; ".join(
            f"{column.title} {' and '.join(f'{column.at_question(name):.0%}' for name in (DEFAULT, 'AttnLRP'))}"
            for column in shown
        )
        lines += ["", f"Of the mass of DecompX and of AttnLRP there is at the question itself: {shares}."]
        if NO_BIAS not in WITHOUT[model]:
            words = "; ".join(column.between_rules() for column in shown)
            lines += ["", f"Without biases against biases shared by AbsDot (medians over the texts): {words}."]
    if planted := columns(found, "BERT", STRENGTH):
        lines += ["", "## Planted causes: BERT", ""]
        lines.append(
            f"Classes of texts of {1 + WORDS} tokens, {STRENGTH:.0%} of those that are learnt as a plant says."
        )
        lines += ["", *table(planted), "", "### By the strength of the plant", ""]
        lines.append(
            "*All first* (of one cause: *first*) where so many of the texts that are learnt are of the class that the "
            "plant says."
        )
        by_strength = {f"{strength:.0%}": columns(found, "BERT", strength) for strength in STRENGTHS}
        for n, plant in enumerate(planted):
            curve = [Column(name, some[n].measured) for name, some in by_strength.items() if n < len(some)]
            lines += ["", f"#### {plant.title.capitalize()}", "", *table(curve, plant.cells[-1:])]
    return "\n".join(lines) + "\n"


def summary(found: dict[Case, dict[str, Any]]) -> list[dict[str, Any]]:
    """What the tables show, one entry for each model, task and strength."""
    entries = []
    for model, strength in sorted({(case.model, case.strength) for case in found}, key=str):
        for column in columns(found, model, strength):
            methods = {
                name: {which: column.found(name, which)._asdict() for which in column.cells}
                for name in column.measured[0]["scores"]
            }
            entry = {"model": model, "task": column.title, "strength": strength, "methods": methods}
            entries.append(entry | {"accuracy": [one["accuracy"] for one in column.measured]})
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where trained models and what is measured are kept")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "known-causes.md")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no model is begun")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    given = parser.parse_args()
    asked = cases(given.models, given.seeds)
    found = run(asked, given.work, given.limit)
    atomic_write(given.out, lambda temporary: Path(temporary).write_text(report(found), encoding="utf-8"))
    text = json.dumps(summary(found), indent=1) + "\n"
    atomic_write(given.out.with_suffix(".json"), lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))
    print(f"{len(found)} of {len(asked)} models" + ("" if len(found) == len(asked) else ": run it again to go on"))


if __name__ == "__main__":
    main()
