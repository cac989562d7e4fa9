"""What a language model says next, and why: a column for each token of an output, from all tokens before it."""

from __future__ import annotations

import pytest
import torch
from generation_models import MODELS, PROMPT, byte_level, gpt2, llama

from decompx_fast import DecompX

EXACT = 1e-10  # in float64, relative to values of order 1
ENGINES = [("reference", "absdot"), ("forward", "absdot"), ("adjoint", "equal"), ("auto", "absdot")]


@pytest.fixture(scope="module")
def explainers() -> dict[str, DecompX]:
    return {name: DecompX(make(), byte_level()) for name, make in MODELS.items()}


def own_logits(explainer: DecompX, ids) -> torch.Tensor:
    """What the model gives by its own forward pass, ``[i, C]``."""
    with torch.no_grad():
        return explainer.model(input_ids=torch.tensor([list(ids)])).logits[0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("engine", "bias"), ENGINES)
def test_the_next_token_is_explained(explainers, name, engine, bias):
    explainer = explainers[name]
    explanation = explainer.explain(PROMPT, engine=engine, bias=bias)
    logits = own_logits(explainer, byte_level()(PROMPT)["input_ids"])[-1]
    best = int(logits.argmax())
    assert explainer.task == explanation.task == "text-generation"
    assert len(explanation.targets) == 1
    assert explanation.target_logits.tolist() == pytest.approx([logits[best].item()], abs=EXACT)
    assert explanation.completeness_error < EXACT
    (said,) = explanation.predictions
    assert (said.output, said.position, said.place) == (best, len(explanation) - 1, "output 1")
    assert said.score == pytest.approx(logits.softmax(-1)[best].item(), abs=EXACT)


def test_rows_of_a_batch_are_those_of_each_alone(explainers):
    texts = [PROMPT, "one two", "one", "three four"]
    for name in MODELS:
        together = explainers[name].explain(texts)
        for text, found in zip(texts, together, strict=True):
            alone = explainers[name].explain(text)
            assert (found.scores - alone.scores).abs().max() < EXACT and found.targets == alone.targets


def test_a_contrast_of_two_tokens_is_the_difference_of_their_logits(explainers):
    tokenizer = byte_level()
    for name in MODELS:
        logits = own_logits(explainers[name], tokenizer(PROMPT)["input_ids"])[-1]
        ids = {text: tokenizer(text)["input_ids"] for text in ("a", "o")}
        assert all(len(found) == 1 for found in ids.values())
        found = explainers[name].explain(PROMPT, targets={"a": 1, "o": -1})
        assert found.targets == ("a - o",)
        difference = (logits[ids["a"][0]] - logits[ids["o"][0]]).item()
        assert found.totals.tolist() == pytest.approx([difference], abs=EXACT)


def test_the_mean_of_all_tokens_is_taken_away(explainers):
    for name in MODELS:
        logits = own_logits(explainers[name], byte_level()(PROMPT)["input_ids"])[-1]
        found = explainers[name].explain(PROMPT, contrast="mean")
        assert found.targets[0].endswith(" - mean")
        assert found.totals.tolist() == pytest.approx([(logits.max() - logits.mean()).item()], abs=EXACT)
