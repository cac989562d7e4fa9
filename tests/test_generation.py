"""What a language model says next, and why: a column for each token of an output, from all tokens before it."""

from __future__ import annotations

import re

import models
import pytest
import torch
from generation_models import MODELS, PROMPT, byte_level, llama
from task_models import model as task_model

from decompx_fast import DecompX
from decompx_fast.errors import InputError, OptionError, UnsupportedModelError

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


# Chats.

CHAT = [{"role": "user", "content": "The capital of France?"}]


@pytest.mark.parametrize("name", MODELS)
def test_a_chat_is_read_as_its_template_writes_it(explainers, name):
    tokenizer = byte_level()
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    found = explainers[name].explain(CHAT)
    assert found.token_ids == tuple(ids) and found.completeness_error < EXACT
    assert found.target_logits.item() == pytest.approx(own_logits(explainers[name], ids)[-1].max().item(), abs=EXACT)
    assert found.texts == ("The capital of France?",)
    ordinary = [span for span, special in zip(found.spans, found.special, strict=True) if not special]
    assert "".join(found.texts[0][start:end] for _, start, end in ordinary) == found.texts[0]
    # The beginning of text, the turns, who speaks and the line ends are the template's.
    assert found.tokens[0] == "<|end|>" and found.tokens.count("<|turn|>") == 2
    assert sum(found.special) == len(ids) - len(ordinary) > 6
    several = explainers[name].explain([CHAT, CHAT])
    assert len(several) == 2 and (several[0].scores - several[1].scores).abs().max() < EXACT


def test_a_chat_that_ends_with_the_model_goes_on_there(explainers):
    chat = [*CHAT, {"role": "assistant", "content": "It is"}]
    ids = byte_level().apply_chat_template(chat, continue_final_message=True)["input_ids"]
    found = explainers["llama"].explain(chat, continuation=" Paris")
    assert found.token_ids[: len(ids)] == tuple(ids) and found.texts == ("The capital of France?\nIt is", " Paris")


def test_a_chat_needs_a_template_and_texts(explainers):
    explainer = DecompX(llama(), models.byte_pair())
    with pytest.raises(InputError, match="has no chat_template: give the prompt as one text"):
        explainer.explain(CHAT)
    with pytest.raises(InputError, match="a message whose content is"):
        explainers["llama"].explain([{"role": "user", "content": ["a"]}])


# Inputs that are hard.


@pytest.mark.filterwarnings("error")  # a token that is special is none of many that are unknown
def test_a_prompt_of_one_token_and_an_answer_of_one_token(explainers):
    for explainer in explainers.values():
        for prompt in ([70], "a", [0]):
            found = explainer.explain(prompt, continuation=[80])
            ids = byte_level()(prompt)["input_ids"] if isinstance(prompt, str) else prompt
            assert len(found) == 1
            assert found.totals.item() == pytest.approx(own_logits(explainer, ids)[0, 80].item(), abs=EXACT)


def test_what_cannot_be_written_is_refused_by_name(explainers, monkeypatch):
    from transformers import GenerationConfig

    explainer = explainers["llama"]
    with pytest.raises(OptionError, match=r"seed=3, and generate=2 draws nothing: leave it out"):
        explainer.explain(PROMPT, generate=2, seed=3)
    for seed in (2**70, -1, True, 1.5):
        with pytest.raises(OptionError, match=r"use a whole number from 0 to 2\*\*63 - 1"):
            explainer.explain(PROMPT, generate=GenerationConfig(max_new_tokens=2, do_sample=True), seed=seed)
    for config in (
        GenerationConfig(max_length=3),  # shorter than the prompt
        GenerationConfig(max_new_tokens=2, do_sample=True, temperature=0.0),
    ):
        with pytest.raises(OptionError, match=r"generate=GenerationConfig .* is not what transformers takes"):
            explainer.explain(PROMPT, generate=config)


def test_nothing_is_written_far_beyond_the_positions(explainers, monkeypatch):
    explainer, steps = explainers["llama"], []
    forward = type(explainer.model).forward

    def counted(self, *args, **kwargs):
        steps.append(1)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(explainer.model), "forward", counted)
    with pytest.raises(InputError, match="has 65 tokens with its output, and the model has positions for 64"):
        explainer.explain(PROMPT, generate=10**6)
    assert len(steps) < 70


def test_padding_that_is_the_end_of_text_is_dropped(explainers):
    tokenizer = byte_level()
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    texts = [PROMPT, "one"]
    for side in ("left", "right"):
        batch = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt")
        for explainer in explainers.values():
            for text, found in zip(texts, explainer.explain(dict(batch)), strict=True):
                alone = explainer.explain(text)
                assert found.token_ids == alone.token_ids
                assert (found.scores - alone.scores).abs().max() < EXACT


def test_the_end_of_text_may_be_several_tokens(explainers):
    for make in MODELS.values():
        model = make()
        ids = byte_level()(PROMPT)["input_ids"]
        first = int(own_logits(DecompX(model, byte_level()), ids)[-1].argmax())
        model.generation_config.eos_token_id = [299, first]
        found = DecompX(model, byte_level()).explain(PROMPT, generate=5)
        assert [one.output for one in found.predictions] == [first]


def test_the_beginning_of_text_is_the_tokenizers(explainers):
    """One that writes a beginning has it once, and one that has none goes without."""
    explainer = DecompX(llama(vocab_size=320), models.byte_pair())
    found = explainer.explain(explainer.tokenizer("a good film", add_special_tokens=False)["input_ids"], generate=2)
    assert "<s>" not in found.tokens
    assert explainer.explain("a good film", continuation=" was").tokens.count("<s>") == 1
    assert explainers["llama"].explain(PROMPT).tokens[0] == "The"


def test_what_is_longer_than_the_context_is_refused_with_its_output(explainers):
    explainer = explainers["gpt2"]  # 48 positions
    prompt = [70] * 46
    assert len(explainer.explain(prompt, continuation=[71, 72, 73])) == 48
    with pytest.raises(InputError, match="input 0 has 49 tokens with its output, and the model has positions for 48"):
        explainer.explain(prompt, continuation=[71, 72, 73, 74])
    with pytest.raises(InputError, match="has 60 tokens"):
        explainer.explain([70] * 60, generate=2)
    with pytest.raises(OptionError, match="truncate=True cuts a text at its end, where a language model goes on"):
        explainer.explain(PROMPT, truncate=True)
    skipped = explainer.explain([[70] * 60, PROMPT], on_error="skip")
    assert not skipped[0].ok and skipped[1].ok


def test_a_cache_of_the_users_is_refused_by_name(explainers):
    ids = torch.tensor([[70, 71]])
    with torch.no_grad():
        cache = explainers["llama"].model(input_ids=ids, use_cache=True).past_key_values
    with pytest.raises(InputError, match="the encoding holds 'past_key_values', which is not supported"):
        explainers["llama"].explain({"input_ids": ids, "past_key_values": cache})


def test_the_model_is_left_as_it_was_by_writing():
    for make in MODELS.values():
        model = make().train()
        with models.unchanged(model):
            DecompX(model, byte_level()).explain(PROMPT, generate=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"continuation": "a", "generate": 2}, "give one of them"),
        ({"continuation": ""}, "has no tokens"),
        ({"continuation": [999]}, "holds the token 999, and the model has 0 to 299"),
        ({"continuation": 2.5}, "give a text, or token ids"),
        ({"generate": 0}, "generate=0: use a whole number from 1"),
        ({"generate": "five"}, "generate='five'"),
        ({"seed": 3}, "seed=3 is of what the model draws"),
        ({"contrast": "London"}, "contrast='London': use 'mean'"),
        ({"answer": "all"}, "answer='all'"),
        ({"answer": "sum", "top_k": 2}, "leave one of them out"),
        ({"at": 1}, "at=1 is beyond the output, which has 1 tokens"),
        ({"at": "Paris"}, "name tokens of the output by number"),
        ({"targets": " London calling"}, "and an output is one"),
    ],
)
def test_what_cannot_be_asked_is_refused(explainers, arguments, message):
    with pytest.raises((InputError, OptionError), match=re.escape(message)):
        explainers["llama"].explain(PROMPT, **arguments)


def test_lists_need_a_continuation_each(explainers):
    explainer = explainers["llama"]
    found = explainer.explain([PROMPT, "one"], continuation=[" Paris", [70]])
    assert [len(one.targets) for one in found] == [len(byte_level()(" Paris")["input_ids"]), 1]
    for given, message in (([[70]], "fewer"), ([[70]] * 3, "more"), ("one", "give a list with one for each")):
        with pytest.raises(InputError, match=message):
            explainer.explain([PROMPT, "one"], continuation=given)


def test_the_arguments_of_language_models_are_refused_elsewhere():
    explainer = DecompX(task_model("token-classification"), models.word_piece())
    with pytest.raises(OptionError, match="continuation='a' is for language models"):
        explainer.explain("John left.", continuation="a")


def test_bytes_of_a_character_share_its_place(explainers):
    found = explainers["llama"].explain(PROMPT, continuation=" é😀 a")
    shown = [found.texts[1][span[1] : span[2]] for span in found.spans[len(byte_level()(PROMPT)["input_ids"]) :]]
    assert shown == [" ", "é", "é", " ", "😀", "😀", "😀", "😀", " "] or "".join(dict.fromkeys(shown)) == " é😀"
    words = found.words()
    assert words.texts[1] == " é😀 a" and (words.totals - found.totals).abs().max() < EXACT


# Models that are not whole.


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_and_offloaded_models_are_refused_by_name():
    quantised = torch.ao.quantization.quantize_dynamic(llama(dtype=torch.float32), {torch.nn.Linear})
    with pytest.raises(UnsupportedModelError, match=r"q_proj' is quantised .* load the model in float32"):
        DecompX(quantised, byte_level()).explain(PROMPT)
    split = llama(dtype=torch.float32)
    split.model.layers[1].to("meta")
    with pytest.raises(InputError, match="whole on one device, but its parameters are on: cpu, meta"):
        DecompX(split, byte_level()).explain(PROMPT, generate=2)


def test_attention_over_pages_without_a_cache_is_refused_by_name():
    model = llama(dtype=torch.float32)
    model.set_attn_implementation("paged|eager")
    with pytest.raises(UnsupportedModelError, match=r"'paged\|eager', .*set_attn_implementation\('eager'\)"):
        DecompX(model, byte_level()).explain(PROMPT)


@pytest.mark.filterwarnings("ignore")
def test_values_do_not_depend_on_the_attention_implementation():
    model = llama()
    found = DecompX(model, byte_level()).explain(PROMPT, continuation="one")
    for name in ("eager", "sdpa", "flex_attention"):
        model.set_attn_implementation(name)
        again = DecompX(model, byte_level()).explain(PROMPT, continuation="one")
        assert (again.scores - found.scores).abs().max() < EXACT
