"""What a model writes when it is asked to: which tokens it may choose, what it reads meanwhile, and where it ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from generation_models import MODELS, PROMPT, byte_level, llama
from transformers import GenerationConfig

from decompx_fast import DecompX
from decompx_fast.errors import InputError


@pytest.fixture(scope="module")
def explainers() -> dict[str, DecompX]:
    return {name: DecompX(make(), byte_level()) for name, make in MODELS.items()}


def own_logits(explainer: DecompX, ids: list[int]) -> torch.Tensor:
    """``[i, C]`` of the model itself."""
    with torch.no_grad():
        return explainer.model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize(
    "own",
    [
        {"guidance_scale": 3.0},
        {"sequence_bias": [[[57], -50.0]]},
        {"repetition_penalty": 9.0, "no_repeat_ngram_size": 1, "min_new_tokens": 3},
        {"forced_eos_token_id": 7},
        {"num_beams": 2, "num_return_sequences": 2},
        {"stop_strings": ["a"]},
        {"do_sample": True, "temperature": 5.0},
    ],
    ids=lambda own: next(iter(own)),
)
def test_a_number_of_tokens_is_the_likeliest_whatever_the_model_is_configured_to_write(own):
    explainer = DecompX(llama(), byte_level())
    ids = byte_level()(PROMPT)["input_ids"]
    for name, value in own.items():
        setattr(explainer.model.generation_config, name, value)
    before = explainer.model.generation_config.to_dict()
    found = [one.output for one in explainer.explain(PROMPT, generate=4).predictions]
    for place in range(4):
        assert found[place] == int(own_logits(explainer, ids + found[:place])[-1].argmax())
    assert explainer.model.generation_config.to_dict() == before


@pytest.mark.parametrize("name", ["suppress_tokens", "begin_suppress_tokens", "bad_words_ids"])
def test_what_the_model_never_writes_is_not_written(name):
    explainer = DecompX(llama(), byte_level())
    first = explainer.explain(PROMPT, generate=1).predictions[0].output
    setattr(explainer.model.generation_config, name, [[first]] if name == "bad_words_ids" else [first])
    second = int(own_logits(explainer, byte_level()(PROMPT)["input_ids"])[-1].topk(2).indices[1])
    assert explainer.explain(PROMPT, generate=1).predictions[0].output == second


@pytest.mark.parametrize("generate", [10**6, GenerationConfig(max_length=500), GenerationConfig(max_new_tokens=400)])
def test_a_model_with_a_table_of_positions_writes_no_further_than_it_goes(explainers, generate):
    with pytest.raises(InputError, match="has 49 tokens with its output, and the model has positions for 48"):
        explainers["gpt2"].explain(PROMPT, generate=generate)
    room = 49 - len(byte_level()(PROMPT)["input_ids"])
    assert explainers["gpt2"].explain(PROMPT, generate=room).scores.shape == (48, room)


def test_the_model_writes_from_what_it_is_explained_with(explainers):
    """Types of tokens are read while it writes; positions that are not counted from 0 are refused."""
    explainer, ids = explainers["gpt2"], torch.tensor([byte_level()(PROMPT)["input_ids"]])
    types = torch.full_like(ids, 70)
    (found,) = explainer.explain({"input_ids": ids, "token_type_ids": types}, generate=3)
    written = []
    for one in found.predictions:
        fed = torch.cat([ids, torch.tensor([written], dtype=torch.int64)], 1)
        with torch.no_grad():
            logits = explainer.model(fed, token_type_ids=torch.full_like(fed, 70)).logits[0, -1]
        written.append(one.output)
        assert one.output == int(logits.argmax())
    places = torch.arange(ids.shape[1])[None]
    assert explainer.explain({"input_ids": ids, "position_ids": places}, generate=2)[0].ok
    with pytest.raises(InputError, match="input 0 holds position_ids other than 0, 1, ..., and generate="):
        explainer.explain({"input_ids": ids, "position_ids": places + 5}, generate=2)


def test_no_output_in_a_list_of_outputs_is_named(explainers):
    with pytest.raises(InputError, match="the continuation of input 1 is None: give a text, or token ids"):
        explainers["llama"].explain([PROMPT, PROMPT], continuation=[" a", None])


@pytest.mark.slow
def test_threads_that_draw_draw_what_one_alone_does(explainers):
    explainer, config = explainers["llama"], GenerationConfig(max_new_tokens=8, do_sample=True, temperature=3.0)
    asked = [{"generate": config, "seed": n} if n % 2 else {"generate": 8} for n in range(12)]

    def written(arguments: dict) -> list[int]:
        return [one.output for one in explainer.explain(PROMPT, **arguments).predictions]

    expected = [written(one) for one in asked]
    state = torch.get_rng_state()
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(written, asked)) == expected
    assert torch.equal(torch.get_rng_state(), state)
