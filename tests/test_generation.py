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


# What follows a prompt.


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("engine", "bias"), ENGINES)
def test_each_token_of_a_continuation_is_a_column(explainers, name, engine, bias):
    tokenizer, text = byte_level(), " Paris. one"
    prompt, output = tokenizer(PROMPT)["input_ids"], tokenizer(text)["input_ids"]
    assert len(output) > 2
    found = explainers[name].explain(PROMPT, continuation=text, engine=engine, bias=bias)
    logits = own_logits(explainers[name], prompt + output)
    expected = [logits[len(prompt) - 1 + t, one].item() for t, one in enumerate(output)]
    assert found.token_ids == tuple(prompt + output[:-1])
    assert found.target_logits.tolist() == pytest.approx(expected, abs=EXACT)
    assert found.completeness_error < EXACT
    for t in range(len(output)):  # no token sees one after it
        assert (found.scores[len(prompt) + t :, t] == 0).all()
    assert found.texts == (PROMPT, text)
    shown = [found.texts[1][span[1] : span[2]] for span in found.spans[len(prompt) :]]
    assert shown == [tokenizer.decode([one]) for one in output[:-1]]
    shares = logits.softmax(-1)
    for t, said in enumerate(found.predictions):
        assert (said.output, said.position) == (output[t], len(prompt) - 1 + t)
        assert said.score == pytest.approx(shares[len(prompt) - 1 + t, output[t]].item(), abs=EXACT)


def test_a_column_is_that_of_the_prompt_with_the_output_before_it(explainers):
    tokenizer = byte_level()
    output = tokenizer(" Paris")["input_ids"]
    ids = tokenizer(PROMPT)["input_ids"]
    for explainer in explainers.values():
        found = explainer.explain(ids, continuation=output)
        for t, one in enumerate(output):
            alone = explainer.explain(ids + output[:t], continuation=[one])
            assert (found.scores[: len(alone), t] - alone.scores[:, 0]).abs().max() < EXACT


def test_the_model_writes_first(explainers):
    for explainer in explainers.values():
        ids = byte_level()(PROMPT)["input_ids"]
        expected = list(ids)
        for _ in range(4):  # the likeliest each time, or until the end
            expected.append(int(own_logits(explainer, expected)[-1].argmax()))
            if expected[-1] == 0:
                break
        found = explainer.explain(PROMPT, generate=4)
        assert [one.output for one in found.predictions] == expected[len(ids) :]
        assert found.metadata["generate"] == 4 and "seed" not in found.metadata
        assert found.completeness_error < EXACT


def test_what_is_drawn_is_drawn_again_with_its_seed(explainers):
    from transformers import GenerationConfig

    sampling = GenerationConfig(max_new_tokens=6, do_sample=True, eos_token_id=299)
    for explainer in explainers.values():
        state = torch.get_rng_state()
        found = explainer.explain(PROMPT, generate=sampling)
        assert torch.equal(torch.get_rng_state(), state)
        assert found.metadata["generate"]["do_sample"] is True
        again = explainer.explain(PROMPT, generate=sampling, seed=found.metadata["seed"])
        assert again.targets == found.targets and torch.equal(again.scores, found.scores)


def test_the_sum_over_an_answer_is_one_column(explainers):
    for explainer in explainers.values():
        each = explainer.explain(PROMPT, continuation=" Paris.")
        both = explainer.explain(PROMPT, continuation=" Paris.", answer="both")
        whole = explainer.explain(PROMPT, continuation=" Paris.", answer="sum")
        assert whole.targets == ("answer",) and both.targets == (*each.targets, "answer")
        assert (whole.scores[:, 0] - each.scores.sum(1)).abs().max() < EXACT
        assert (both.scores[:, :-1] - each.scores).abs().max() < EXACT
        against = explainer.explain(PROMPT, continuation=" Paris.", answer="sum", contrast="mean")
        ids = against.token_ids
        rows = own_logits(explainer, ids)[[one.position for one in against.predictions]]
        means = rows.mean(-1).sum().item()
        assert against.totals.item() == pytest.approx(whole.totals.item() - means, abs=EXACT)


def test_outputs_are_named_by_number(explainers):
    for explainer in explainers.values():
        each = explainer.explain(PROMPT, continuation=" Paris.")
        some = explainer.explain(PROMPT, continuation=" Paris.", at=[-1, 0])
        assert (some.scores - each.scores[:, [-1, 0]]).abs().max() < EXACT
        found = explainer.explain(PROMPT, continuation=" Paris.", targets={"a": 1, "o": -1})
        assert found.targets[:2] == ("a - o @ output 1", "a - o @ output 2")
