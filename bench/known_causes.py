"""Does a method name the cause, where it is known? Synthetic tasks, small models, each trained in about a minute.

    python bench/known_causes.py --work FOLDER [--out FILE] [--limit SECONDS]

Three tasks, of each of which the answer is made from known tokens, and every other token is irrelevant to it:

- copy: symbols, then which of them is asked for; the answer is that symbol.
- look up: pairs of a key and a value, then a key; the answer is its value.
- negate: triples of a name, "is" or "not", and a truth value, then a name; the answer is its truth value, or the
  opposite after "not". The causes are the two, and what is explained is the answer's logit less that of the opposite.

Of the first two it is the answer's logit less the mean of all. A trained model is kept in the folder.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from causal_methods import (
    Said,
    Scores,
    attention_rollout,
    attn_lrp,
    decompx,
    frozen,
    gradient_x_input,
    integrated_gradients,
    logits_of,
    occlusion,
)
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from decompx_fast.evaluation.bootstrap import bootstrap_means, estimate

#: Tokens: the first are "begin", "is" and "not"; then truth values; then symbols, which are values too; then keys and
#: names; then the numbers of places.
BEGIN, IS, NOT, FALSE, TRUE = range(5)
SYMBOLS, KEYS, PLACES = range(5, 29), range(29, 53), range(53, 65)
VOCABULARY = 65

D, LAYERS, HEADS, F = 64, 3, 4, 128
BATCH, STEPS, LEARNING_RATE, GOOD = 64, 4000, 3e-3, 0.995
SEED, TEXTS = 0, 200


@dataclass(frozen=True)
class Task:
    """Texts with known causes.

    Attributes:
        name: as it is shown.
        content: draws texts: from how many and a generator to ``[b, i]``.
        questions: draws as many questions of each text ``[b, i]``: what asks ``[b, q]``, the answers ``[b, q]``, the
            causes' places in the text ``[b, q, s]``.
        opposite: the tokens whose logits are taken from those of the answers; ``None``: the mean of all.
    """

    name: str
    content: Callable[[int, torch.Generator], Tensor]
    questions: Callable[[Tensor, int, torch.Generator], tuple[Tensor, Tensor, Tensor]]
    opposite: Callable[[Tensor], Tensor] | None = None


def _without_repeats(among: range, b: int, n: int, generator: torch.Generator) -> Tensor:
    order = torch.rand(b, len(among), generator=generator).argsort(-1)[:, :n]
    return order + among.start


def _some(among: range, b: int, n: int, generator: torch.Generator) -> Tensor:
    return torch.randint(among.start, among.stop, (b, n), generator=generator)


def _copy_questions(text: Tensor, q: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    places = torch.rand(text.shape, generator=generator).argsort(-1)[:, :q]
    return places + PLACES.start, text.gather(1, places), places[..., None]


def _pairs(b: int, generator: torch.Generator) -> Tensor:
    keys, values = _without_repeats(KEYS, b, 6, generator), _some(SYMBOLS, b, 6, generator)
    return torch.stack([keys, values], -1).flatten(1)


def _look_up_questions(text: Tensor, q: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    pair = torch.rand(len(text), text.shape[1] // 2, generator=generator).argsort(-1)[:, :q]
    return text.gather(1, 2 * pair), text.gather(1, 2 * pair + 1), 2 * pair[..., None] + 1


def _triples(b: int, generator: torch.Generator) -> Tensor:
    parts = _without_repeats(KEYS, b, 4, generator), _some(range(IS, NOT + 1), b, 4, generator)
    return torch.stack([*parts, _some(range(FALSE, TRUE + 1), b, 4, generator)], -1).flatten(1)


def _negate_questions(text: Tensor, q: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    triple = torch.rand(len(text), text.shape[1] // 3, generator=generator).argsort(-1)[:, :q]
    word, truth = text.gather(1, 3 * triple + 1), text.gather(1, 3 * triple + 2)
    answers = torch.where(word == NOT, FALSE + TRUE - truth, truth)
    return text.gather(1, 3 * triple), answers, torch.stack([3 * triple + 1, 3 * triple + 2], -1)


TASKS = (
    Task("copy", lambda b, generator: _some(SYMBOLS, b, 12, generator), _copy_questions),
    Task("look up", _pairs, _look_up_questions),
    Task("negate", _triples, _negate_questions, lambda answers: FALSE + TRUE - answers),
)

_COMMON = {"vocab_size": VOCABULARY, "hidden_size": D, "intermediate_size": F, "num_hidden_layers": LAYERS}
_COMMON |= {"num_attention_heads": HEADS, "max_position_embeddings": 32}
_TOKENS: dict[str, Any] = {"bos_token_id": BEGIN, "eos_token_id": None, "pad_token_id": None}


def _bert() -> nn.Module:
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": None}
    return BertForSequenceClassification(BertConfig(**_COMMON, **dropout, num_labels=VOCABULARY))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(**_COMMON, **_TOKENS, num_key_value_heads=2)),
    "Qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_COMMON, **_TOKENS, num_key_value_heads=2)),
    "BERT": _bert,
}

DEFAULT = "DecompX"
_OTHERS: dict[str, Scores] = {
    "AttnLRP": attn_lrp,
    "gradient x input": gradient_x_input,
    "integrated gradients": integrated_gradients,
    "attention rollout": attention_rollout,
    "occlusion": occlusion,
}
METHODS: dict[str, dict[str, Scores]] = {
    "Llama": {DEFAULT: decompx(), "DecompX, gate value": decompx(gate="value"), **_OTHERS},
    "Qwen2": {
        DEFAULT: decompx(),
        "DecompX, no bias": decompx(bias="none"),
        "DecompX, gate value": decompx(gate="value"),
        **_OTHERS,
    },
    "BERT": {DEFAULT: decompx(), "DecompX, no bias": decompx(bias="none"), **_OTHERS},
}


def batch(model: str, task: Task, count: int, q: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Texts with ``q`` questions each, for one kind of model.

    Returns:
        ids ``[b, i]``; where answers are read ``[q]``; the answers ``[b, q]``; where the causes are ``[b, q, s]``. A
        decoder reads the text, and the questions after it, each followed by its answer; BERT one question, and the
        text after it.
    """
    generator = torch.Generator().manual_seed(seed)
    text = task.content(count, generator)
    asking, answers, causes = task.questions(text, 1 if model == "BERT" else q, generator)
    if model == "BERT":
        return torch.cat([asking, text], 1), torch.tensor([0]), answers, causes + 1
    begin = torch.full((count, 1), BEGIN)
    ids = torch.cat([begin, text, torch.stack([asking, answers], -1).flatten(1)[:, :-1]], 1)
    return ids, text.shape[1] + 1 + 2 * torch.arange(q), answers, causes + 1


def outputs_at(model: nn.Module, ids: Tensor, places: Tensor) -> Tensor:
    """The outputs ``[b, q, C]`` where answers are read."""
    count = 2 * len(places) - 1
    return logits_of(model, count, input_ids=ids)[:, ::2]


def trained(name: str, task: Task, work: Path, deadline: float) -> nn.Module | None:
    """A model that can do the task; ``None`` where it was not to be had in time."""
    torch.manual_seed(SEED)
    model = MODELS[name]()
    path = work / f"{name}-{task.name}.pt".replace(" ", "-")
    if path.is_file():
        model.load_state_dict(torch.load(path))
        return model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, STEPS, pct_start=0.1)
    begun, right = time.monotonic(), 0.0
    for step in range(STEPS):
        ids, places, answers, _ = batch(name, task, BATCH, 4, step + 1)
        outputs = outputs_at(model, ids, places)
        loss = nn.functional.cross_entropy(outputs.flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        right = 0.98 * right + 0.02 * (outputs.argmax(-1) == answers).float().mean().item()
        if step % 500 == 499:
            print(f"{name}, {task.name}: step {step + 1}, {right:.3f} right", flush=True)
        if right > GOOD:
            break
        if time.monotonic() > deadline:
            return None
    print(f"{name}, {task.name}: {step + 1} steps, {right:.3f} right, {time.monotonic() - begun:.0f} s", flush=True)
    work.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), path)
    return model.eval()


@dataclass(frozen=True)
class Found:
    """Of one model, task and method, for each text: the causes' share of all magnitudes, whether they are all before
    every other token, and the scores."""

    share: np.ndarray
    first: np.ndarray
    scores: Tensor


def measure(name: str, task: Task, model: nn.Module) -> dict[str, Found]:
    """Each method on texts that were not trained on, of those that the model answers rightly."""
    ids, places, answers, causes = batch(name, task, TEXTS, 1, 10**6)
    with torch.no_grad():
        right = (outputs_at(model, ids, places).argmax(-1) == answers)[:, 0].nonzero()[:, 0].tolist()
    found = {}
    with frozen(model):
        others = None if task.opposite is None else task.opposite(answers[right, 0])
        said = Said(ids[right], answers[right], "mean" if others is None else "other", others)
        for method, score in METHODS[name].items():
            scores = score(model, said)
            size = scores.abs()
            own = size.gather(1, causes[right, 0])
            others = size.scatter(1, causes[right, 0], 0.0)
            share = own.sum(1) / size.sum(1)
            found[method] = Found(share.numpy(), (own.amin(1) > others.amax(1)).double().numpy(), scores)
    return found


def interval(values: np.ndarray) -> str:
    found = estimate(values, bootstrap_means(values[:, None], seed=SEED)[:, 0])
    return f"{found.mean:.0%} [{found.low:.0%}, {found.high:.0%}]"


def section(name: str, results: dict[str, dict[str, Found]]) -> list[str]:
    """The table of one kind of model."""
    tasks = list(results)
    lines = ["", f"## {name}", "", "| method | " + " | ".join(f"{task}: mass | {task}: first" for task in tasks) + " |"]
    lines.append("|---|" + "---|---|" * len(tasks))
    for method in METHODS[name]:
        cells = [cell for task in tasks for cell in (results[task][method].share, results[task][method].first)]
        lines.append(f"| {method} | {' | '.join(map(interval, cells))} |")
    if "DecompX, no bias" in METHODS[name]:
        lines += ["", *between_rules(results)]
    return lines


def between_rules(results: dict[str, dict[str, Found]]) -> Sequence[str]:
    """How far the scores without biases are from those with each bias shared."""
    words = []
    for task, found in results.items():
        shared, none = found[DEFAULT].scores, found["DecompX, no bias"].scores
        gap = ((shared - none).abs().sum(1) / shared.abs().sum(1)).median()
        together = torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(shared, none, strict=True)])
        same = (shared.abs().argmax(1) == none.abs().argmax(1)).double().mean()
        words.append(
            f"{task}: {gap:.1%} of the magnitudes apart, correlation {together.median():.4f}, the same first token in "
            f"{same:.0%}"
        )
    return ["Without biases against biases shared by AbsDot (medians over the texts): " + "; ".join(words) + "."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where trained models are kept")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "known-causes.md")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no training goes on")
    parser.add_argument("--train-only", action="store_true")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    given = parser.parse_args()
    deadline = time.monotonic() + given.limit
    lines = [
        "# Causes that are known",
        "",
        f"Small models (d = {D}, {LAYERS} layers) trained on tasks whose answer is made from known tokens, by "
        f"`bench/known_causes.py`, on {TEXTS} texts that they were not trained on (those that they answer rightly). "
        "*Mass*: the share of the causes in the sum of all scores' magnitudes, over all tokens that the model reads, "
        "the question among them. *First*: in how many texts every cause has a larger magnitude than any other token. "
        "With 95 % intervals from a bootstrap of texts. *Copy* and *look up* have one cause, *negate* two.",
    ]
    for name in given.models:
        models = {task.name: trained(name, task, given.work, deadline) for task in TASKS}
        known = {task: model for task, model in models.items() if model is not None}
        if given.train_only:
            continue
        lines += section(
            name, {task.name: measure(name, task, known[task.name]) for task in TASKS if task.name in known}
        )
        given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")  # so far


if __name__ == "__main__":
    main()
