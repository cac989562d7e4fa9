"""How nearly the columns of models that write add up to their logits, on 50 real prompts each: writes a table.

    python bench/generation.py [--out bench/results/generation.md] [--dtype float32 bfloat16] [--only KIND...]
        [--model FOLDER]

The language model is the embedded one (see the README), or one in a folder. Encoder-decoders have the shapes of
T5-small (no biases) and of an opus-mt (Marian) with random weights, as no package carries trained ones; they read movie
snippets. Each prompt is gone on with by three tokens, each a column, alone and in batches.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import models  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from decompx_fast import DecompX  # noqa: E402

PROMPTS: dict[str, tuple[str, ...]] = {
    "facts": (
        *("The capital of France is", "The capital of Japan is", "Water is made of hydrogen and"),
        *("The largest planet is", "The author of Hamlet is", "The opposite of hot is", "Ice melts when it gets"),
        *("The sun rises in the", "A week has seven"),
    ),
    "copying": (
        *("The key is 7421. The key is", "A B C A B", "red green blue red green", "John met Mary. Mary met"),
        *("Anna has a cat. Anna's cat is a", "1, 2, 3, 4, 5, 6,", "one two three one two"),
        *("Paris is in France. Berlin is in Germany. Paris is in", "x = 5. So x is"),
    ),
    "negation": (
        *("The film was not good, it was", "He is not tall, he is", "It is never cold here, it is always"),
        *("She did not say yes, she said", "The glass is not full, it is", "Not today, but"),
        *("This is not true, it is", "I do not like it, I"),
    ),
    "chat": (
        *("Who wrote Hamlet?", "Is the sky green?", "Name a colour.", "What is two plus two?", "Do not say hello."),
        *("Translate 'cat' to French.", "Write a line of Python.", "Thank you!"),
    ),
    "code": (
        *("def add(a, b):\n    return a +", "for i in range(", "import numpy as", "if x is not", "print('hello"),
        *("x = [1, 2, 3]\nprint(len(", "while True:\n   ", "class Dog:\n    def __init__("),
    ),
    "French": (
        *("La capitale de la France est", "Bonjour, je m'appelle", "Le chat est sur la", "Il fait tr\u00e8s"),
        *("Un, deux, trois,", "L'eau est", "Paris est la capitale de la", "Le contraire de grand est"),
    ),
}

WRITTEN, DTYPES = 3, ("float32", "bfloat16")


#: So many prompts are explained together, beside each alone.
TOGETHER = 8


@dataclass(frozen=True)
class Gaps:
    """How far numbers that should be the same are apart, relative to the largest logit of an output, or score.

    Attributes:
        columns: of each column: its sum from the model's logit.
        answers: of each prompt: the sums over the output's tokens, for each source, from the column of the whole.
        together: of each prompt: its scores in a batch from those alone.
    """

    columns: list[float]
    answers: list[float]
    together: list[float]


def asked(kind: str, text: str) -> Any:
    return [{"role": "user", "content": text}] if kind == "chat" else text


def gaps_of(explainer: DecompX, prompts: Sequence[Any]) -> Gaps:
    """Explains what is written after each prompt, alone and together."""
    found = Gaps([], [], [])
    alone = [explainer.explain(prompt, generate=WRITTEN, answer="both") for prompt in prompts]
    outputs = [[said.output for said in one.predictions or ()] for one in alone]
    together = explainer.explain(list(prompts), continuation=outputs, batch_size=TOGETHER, answer="both")
    for one, other in zip(alone, together, strict=True):
        logits, scores = one.target_logits.double(), one.scores.double()
        largest, size = logits[:-1].abs().max(), scores.abs().max()
        found.columns.extend(((one.totals - logits)[:-1].abs() / largest).tolist())
        found.answers.append(((scores[:, :-1].sum(1) - scores[:, -1]).abs().max() / size).item())
        found.together.append(((other.scores.double() - scores).abs().max() / size).item())
    return found


#: Encoder-decoders by the names of their shapes: the class, and what is not its configuration's default.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "T5-small's shape": ("T5ForConditionalGeneration", {}),
    "opus-mt's shape": (
        "MarianMTModel",
        {
            "d_model": 512,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 2048,
            "decoder_ffn_dim": 2048,
            "max_position_embeddings": 512,
            "activation_function": "swish",
        },
    ),
}


def random_model(name: str) -> DecompX:
    """One of ``SHAPES``, in float32."""
    kind, sizes = SHAPES[name]
    model_class = getattr(transformers, kind)
    ends = {"pad_token_id": 0, "eos_token_id": 102, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    torch.manual_seed(0)
    model = model_class(model_class.config_class(vocab_size=models.WORD_PIECES, **sizes, **ends)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases, which are zero, and weights of norms, which are one
                parameter += 0.1 * torch.randn_like(parameter)
    return DecompX(model, models.word_piece())


def snippets(count: int) -> list[str]:
    """Of movie reviews."""
    lines = (ROOT / "tests" / "data" / "movie-snippets-heldout.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[-1] for line in lines[1 : count + 1]]


HEAD = "| weights | prompts | number | columns | column, median | column, largest | answer, largest | together |"


def lines_of(file: Path) -> dict[tuple[str, str], str]:
    """The lines of a table that was written before, by dtype and prompts."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    rows = [(line.split(" | "), line) for line in lines if line.startswith(tuple(f"| {one} " for one in DTYPES))]
    return {(cells[0].removeprefix("| "), cells[1]): line for cells, line in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "generation.md")
    parser.add_argument("--dtype", nargs="+", default=DTYPES, choices=DTYPES, help="others keep the lines they have")
    parser.add_argument("--only", nargs="*", default=[""], help="prompts whose name begins so; others likewise")
    parser.add_argument("--model", help="a folder, in the place of the embedded model")
    given = parser.parse_args()
    load = DecompX.demo_lm if given.model is None else functools.partial(DecompX.from_pretrained, given.model)
    language_model = functools.cache(load)
    asks = [(language_model, kind, [asked(kind, text) for text in some]) for kind, some in PROMPTS.items()]
    asks += [(functools.partial(random_model, name), f"{name}, snippets", snippets(50)) for name in SHAPES]
    text = [
        "# Columns of models that write against their own logits",
        "",
        f"SmolLM2-135M-Instruct on prompts of six kinds, and encoder-decoders with random weights on movie snippets: "
        f"{WRITTEN} tokens written after each, each a column, by `bench/generation.py`; "
        f"torch {torch.__version__}, {platform.machine()}. *Column*: between a column's sum and the model's logit, as "
        "a share of the largest of the output's logits. *Answer*: between the sum over an output's tokens and the "
        "column of the whole output, of any source, as a share of the largest score. *Together*: between the scores of "
        f"a prompt alone and among those explained in batches of up to {TOGETHER}, likewise.",
        "",
        HEAD,
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    found = lines_of(given.out)
    for name in DTYPES:
        for make, kind, prompts in asks:
            if name not in given.dtype or not kind.startswith(tuple(given.only)):
                continue
            one = make()
            gaps = gaps_of(DecompX(one.model.to(getattr(torch, name)), one.tokenizer), prompts)
            numbers = [statistics.median(gaps.columns), max(gaps.columns), max(gaps.answers), max(gaps.together)]
            cells = " | ".join(f"{number:.1e}" for number in numbers)
            found[name, kind] = f"| {name} | {kind} | {len(prompts)} | {len(gaps.columns)} | {cells} |"
            rows = [found[key] for key in itertools.product(DTYPES, (kind for _, kind, _ in asks)) if key in found]
            given.out.write_text("\n".join([*text, *rows]) + "\n", encoding="utf-8")  # so far


if __name__ == "__main__":
    main()
