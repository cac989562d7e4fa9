"""Contexts that are longer than the model: read in windows, as transformers' pipeline read them."""

from __future__ import annotations

import io
import itertools
import warnings

import models
import numpy as np
import pytest
import task_models
import torch
from refusals import refuses
from rich.console import Console
from transformers import BartConfig, BartForQuestionAnswering, RobertaConfig, RobertaForQuestionAnswering

from decompx_fast import DecompX, Explanation, Failure, Word
from decompx_fast.calls import windowing
from decompx_fast.errors import OptionError

SIZE = 40  # positions of the model
EXACT = 1e-10  # in float64, relative to values of order 1

QUESTION = "Who met Jackson in New York?"
SENTENCES = [
    "John Smith left the house early in the morning.",
    "The weather was fine, and nobody had expected it.",
    "In New York, Mary met Jackson at the station.",
    "They had tea together and talked about the old days.",
    "Later on Peter Novak joined them for a walk.",
    "The museum opened its doors in 1889, on a Monday.",
]
CONTEXT = " ".join(SENTENCES)


@pytest.fixture(scope="module")
def readers() -> list[DecompX]:
    tokenizer = models.word_piece()
    return [DecompX(task_models.model("question-answering", seed=seed), tokenizer) for seed in (3, 4, 5)]


def by_hand(model, question, context, *, size=SIZE, stride, limit=15, tokenizer=None):
    """The windows of transformers' tokenizer, each answered by the model itself, by the rule of its pipeline.

    Returns:
        Number, ids, text, score and no-answer score of the best, how many windows there are.
    """
    encoding = (tokenizer or models.word_piece())(
        question,
        context,
        truncation="only_second",
        max_length=size,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    found = []
    for n, ids in enumerate(encoding["input_ids"]):
        given = {
            name: torch.tensor([encoding[name][n]]) for name in ("input_ids", "token_type_ids") if name in encoding
        }
        with torch.no_grad():
            out = model(**given)
        values = np.stack([out.start_logits[0].numpy(), out.end_logits[0].numpy()], axis=1)
        inside = [i for i, segment in enumerate(encoding.sequence_ids(n)) if segment == 1]
        share = np.exp(values) / np.exp(values[[0, *inside]]).sum(0)
        spans = itertools.combinations_with_replacement(inside, 2)
        score, start, end = max((share[s, 0] * share[e, 1], s, e) for s, e in spans if e - s < limit)
        offsets = encoding["offset_mapping"][n]
        found.append((score, n, ids, context[offsets[start][0] : offsets[end][1]], share[0].prod()))
    score, number, ids, text, _ = max(found)
    return number, ids, text, score, min(one[-1] for one in found), len(found)


@pytest.mark.parametrize("stride", [0, 5, 14, 18])
@pytest.mark.parametrize("size", [None, 30])
def test_the_best_answer_of_all_windows_is_explained(readers, stride, size):
    for reader in readers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of strides that an answer may be longer than
            found = reader((QUESTION, CONTEXT), doc_stride=stride, max_seq_len=size)
        number, ids, text, score, nothing, count = by_hand(
            reader.model, QUESTION, CONTEXT, size=size or SIZE, stride=stride
        )
        assert count > 2
        assert (found.metadata["window"], found.metadata["windows"]) == (number, count)
        assert [*found.token_ids] == ids
        answer = found.answer
        assert answer.text == text == CONTEXT[answer.start : answer.end]
        assert answer.score == pytest.approx(score, rel=1e-9)
        assert answer.no_answer_score == pytest.approx(nothing, rel=1e-9)
        assert found.completeness_error < EXACT
        assert (found.totals - found.target_logits).abs().max() < EXACT


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_windows_of_a_byte_level_model(seed):
    """With two separators between the texts, spaces in the tokens, and positions that begin after the padding's."""
    tokenizer = models.byte_pair()
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=102,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    model = models.randomized(RobertaForQuestionAnswering(config).eval().double(), seed)
    question, context = "Why?", CONTEXT
    found = DecompX(model, tokenizer)((question, context), doc_stride=20)
    number, ids, text, score, nothing, count = by_hand(
        model, question, context, size=100, stride=20, tokenizer=tokenizer
    )
    assert (found.metadata["window"], found.metadata["windows"]) == (number, count) and count > 2
    assert [*found.token_ids] == ids and found.completeness_error < EXACT
    assert found.answer.text == text.strip()
    assert found.answer.score == pytest.approx(score, rel=1e-9)
    assert found.answer.no_answer_score == pytest.approx(nothing, rel=1e-9)


def test_windows_of_a_model_whose_decoder_reads_the_text_again():
    tokenizer = models.byte_pair()
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=100,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    model = models.randomized(BartForQuestionAnswering(config).eval().double(), 3)
    question, context = "Why?", CONTEXT
    found = DecompX(model, tokenizer)((question, context), doc_stride=20)
    number, ids, text, score, nothing, count = by_hand(
        model, question, context, size=100, stride=20, tokenizer=tokenizer
    )
    assert (found.metadata["window"], found.metadata["windows"]) == (number, count) and count > 2
    assert [*found.token_ids[: len(ids)]] == ids and found.completeness_error < EXACT
    assert found.answer.text == text.strip() and found.answer.score == pytest.approx(score, rel=1e-9)
    assert found.answer.no_answer_score == pytest.approx(nothing, rel=1e-9)
    named = DecompX(model, tokenizer)((question, context), at="Peter Novak")
    assert named.targets[0] == "start @ Peter" and named.completeness_error < EXACT


def test_windows_share_so_much_that_no_answer_is_lost(readers):
    for limit in (3, 15, 20):
        for reader in readers:
            found = reader((QUESTION, CONTEXT), max_answer_tokens=limit)
            room = SIZE - len(models.word_piece()(QUESTION)["input_ids"]) - 1
            stride = max(room // 2, limit - 1)
            number, ids, text, score, _, count = by_hand(reader.model, QUESTION, CONTEXT, stride=stride, limit=limit)
            assert (found.metadata["window"], found.metadata["windows"]) == (number, count)
            assert (found.answer.text, [*found.token_ids]) == (text, ids)
            assert found.answer.score == pytest.approx(score, rel=1e-9)


def test_windows_are_run_a_few_at_a_time(readers, monkeypatch):
    whole, sizes = readers[0]((QUESTION, CONTEXT)), []
    linearize = windowing.linearize
    monkeypatch.setattr(
        windowing,
        "linearize",
        lambda m, inputs, **k: sizes.append(len(inputs["input_ids"])) or linearize(m, inputs, **k),
    )
    for together, most in ((1, 1), (2 * SIZE, 2), (4096, whole.metadata["windows"])):
        monkeypatch.setattr(windowing, "TOGETHER", together)
        sizes.clear()
        found = readers[0]((QUESTION, CONTEXT))
        assert max(sizes) <= most and sum(sizes) == whole.metadata["windows"]
        assert found.metadata["window"] == whole.metadata["window"]


def test_what_fits_is_read_whole(readers):
    short = ("Who met?", SENTENCES[2])
    for options in ({}, {"max_seq_len": SIZE}, {"doc_stride": 15}):
        found = readers[0](short, **options)
        assert "window" not in found.metadata
        assert torch.equal(found.scores, readers[0](short).scores)
    assert readers[0](short, max_seq_len=12, max_answer_tokens=2).metadata["windows"] > 1


@pytest.mark.parametrize("bias", ["absdot", "equal", "bias_token"])
def test_a_window_is_explained_as_if_it_were_the_input(readers, bias):
    reader = readers[0]
    found = reader((QUESTION, CONTEXT), bias=bias)
    ids, first = [*found.token_ids], found.tokens.index("[SEP]") + 1
    row = {"input_ids": ids, "token_type_ids": [0] * first + [1] * (len(ids) - first)}
    alone = reader({name: [values] for name, values in row.items()}, bias=bias)[0]
    assert found.target_logits.tolist() == pytest.approx(alone.target_logits.tolist(), abs=EXACT)
    assert (found.scores - alone.scores).abs().max() < EXACT


def test_ids_are_read_in_windows_too(readers):
    encoding = models.word_piece()(QUESTION, CONTEXT, return_tensors="pt")
    for reader in readers:
        text, ids = reader((QUESTION, CONTEXT)), reader(encoding)[0]
        plain = reader(encoding["input_ids"][0].tolist())
        assert ids.metadata["window"] == text.metadata["window"] and ids.token_ids == text.token_ids
        assert torch.equal(ids.scores, text.scores)
        assert plain.metadata["windows"] == ids.metadata["windows"]


def test_split_words_are_read_in_windows(readers):
    pair = (QUESTION.split(), CONTEXT.split())
    for reader in readers:
        found = reader(pair, is_split_into_words=True)
        assert found.answer.text == " ".join(CONTEXT.split())[found.answer.start : found.answer.end]
        assert found.metadata["windows"] > 2 and found.completeness_error < EXACT


def test_words_and_sentences_are_sources_of_a_window(readers):
    words = readers[0]((QUESTION, CONTEXT), sources="word")
    tokens = readers[0]((QUESTION, CONTEXT))
    assert len(words) <= len(tokens) <= SIZE
    assert (words.totals - tokens.totals).abs().max() < EXACT
    assert len(readers[0]((QUESTION, CONTEXT), sources="sentence")) < 10


def test_groups_of_all_tokens_are_those_of_the_window(readers):
    reader, pair = readers[0], (QUESTION, CONTEXT)
    whole = models.word_piece()(*pair)["input_ids"]
    found = reader(pair, sources=[n // 5 for n in range(len(whole))])
    plain = reader(pair)
    start = plain.metadata["window"] * (SIZE - 10 - 15)
    kept = [*range(9), *range(9 + start, 9 + start + len(plain) - 10), len(whole) - 1]
    assert [whole[n] for n in kept] == [*plain.token_ids]
    groups = dict.fromkeys(n // 5 for n in kept)
    expected = [[n for n, token in enumerate(kept) if token // 5 == group] for group in groups]
    assert len(found) == len(expected)
    assert (found.totals - plain.totals).abs().max() < EXACT
    window = reader(pair, sources=[kept[n] // 5 for n in range(len(kept))])
    assert torch.equal(found.scores, window.scores)
    refuses(reader, pair, sources=[0, 1], match=("2 group ids", f"{len(whole)} of all windows together"))


def places(context: str, part: str) -> tuple[int, int, int]:
    return 1, context.index(part), context.index(part) + len(part)


@pytest.mark.parametrize("part", ["John Smith", "Mary", "Peter Novak", "1889", "Monday"])
def test_a_named_answer_is_explained_in_a_window_that_holds_it(readers, part):
    word = Word(CONTEXT.replace(",", " ,").replace(".", " .").split().index(part.split()[0]), text=1)
    for at in (places(CONTEXT, part), part):
        found = readers[0]((QUESTION, CONTEXT), at=at)
        start, end = part.split()[0], part.split()[-1]
        names = [f"start @ {start}", f"end @ {end}"]
        assert [*found.targets[:2]] == names
        assert found.metadata["windows"] > 2 and found.completeness_error < EXACT
    by_word = readers[0]((QUESTION, CONTEXT), at=word)
    assert by_word.targets[0] == f"start @ {part.split()[0]}"


def test_of_several_windows_the_one_with_most_context_around_a_place_is_taken(readers):
    """As the scripts that evaluate question answering take it."""
    found = readers[0]((QUESTION, CONTEXT), at=places(CONTEXT, "tea"), doc_stride=20)
    encoding = models.word_piece()(
        *(QUESTION, CONTEXT),
        truncation="only_second",
        max_length=SIZE,
        stride=20,
        return_overflowing_tokens=True,
    )
    room = []
    for n, ids in enumerate(encoding["input_ids"]):
        inside = [i for i, segment in enumerate(encoding.sequence_ids(n)) if segment == 1]
        where = [i for i in inside if ids[i] == models.word_piece().convert_tokens_to_ids("tea")]
        room.append(min(where[0] - inside[0], inside[-1] - where[0]) if where else -1)
    assert found.metadata["window"] == int(np.argmax(room))
    assert sum(one >= 0 for one in room) > 1


def test_directions_at_named_places_of_a_window(readers):
    targets = {"start": 1, "end": -1}
    found = readers[0]((QUESTION, CONTEXT), at=["Mary", places(CONTEXT, "station")], targets=targets)
    assert [*found.targets] == ["start - end @ Mary", "start - end @ station"]
    best = readers[0]((QUESTION, CONTEXT), targets="start")
    assert best.targets[0].startswith("start @ ") and best.metadata["windows"] > 2


def test_truncated_contexts_are_cut_and_not_read_in_windows(readers):
    with pytest.warns(UserWarning, match="cut to the model's 40 positions"):
        found = readers[0]((QUESTION, CONTEXT), truncate=True)
    assert "window" not in found.metadata and found.metadata["truncated_from"] > SIZE
    assert len(found) == SIZE


def test_results_and_views_say_which_window(readers, tmp_path):
    found = readers[0]((QUESTION, CONTEXT))
    number, count = found.metadata["window"], found.metadata["windows"]
    found.save(tmp_path / "one.safetensors")
    assert Explanation.load(tmp_path / "one.safetensors").metadata["windows"] == count
    console = Console(file=io.StringIO(), width=200)
    found.show(console=console)
    assert f"window {number + 1} of {count}" in console.file.getvalue()
    assert f"window {number + 1} of {count}" in found.to_html(full=True)


def test_many_inputs_of_which_some_are_long(readers):
    inputs = [("Who?", SENTENCES[0]), (QUESTION, CONTEXT), ("a " * 60, CONTEXT), ("Why?", CONTEXT)]
    found = readers[0].explain(inputs, on_error="skip", ids=["a", "b", "c", "d"])
    assert [isinstance(one, Failure) for one in found] == [False, False, True, False]
    assert "leave none for the context: shorten the question" in found[2].error
    assert found[1].metadata["windows"] > 2 and found[1].metadata["id"] == "b"
    assert torch.equal(found[3].scores, readers[0](("Why?", CONTEXT)).scores)


def test_the_model_is_left_as_it_was(readers):
    with models.unchanged(readers[0].model):
        readers[0]((QUESTION, CONTEXT))


def test_bad_windows_are_refused(readers):
    reader, pair = readers[0], (QUESTION, CONTEXT)
    refuses(reader, pair, doc_stride=-1, match=("doc_stride=-1", "whole number from 0"))
    refuses(reader, pair, doc_stride="a", match=("doc_stride='a'", "whole number from 0"))
    refuses(reader, pair, doc_stride=40, match=("doc_stride=40", "room for 30", "less than 30", "shorten the question"))
    refuses(reader, pair, max_seq_len=0, match=("max_seq_len=0", "whole number from 1"))
    refuses(reader, pair, max_seq_len=41, match=("max_seq_len=41", "positions for 40"))
    refuses(reader, pair, max_seq_len=8, match=("take 10 of the 8 tokens", "raise max_seq_len"))
    refuses(reader, pair, max_answer_tokens=31, match=("max_answer_tokens=31", "room for 30", "at most 30"))
    refuses(reader, pair, truncate=True, doc_stride=14, match=("truncate=True", "doc_stride=14"), error=OptionError)
    refuses(reader, pair, truncate=True, max_seq_len=9, match=("truncate=True", "max_seq_len=9"), error=OptionError)
    refuses(reader, pair, at=7, match=("input 0", "at=7", "windows", "(text, start, end)"))
    refuses(reader, pair, at="all", match=("no window holds all", "a call of its own"))
    refuses(reader, pair, at=["John", "Monday"], match=("no window holds all",))
    whole = (1, 0, len(CONTEXT))
    refuses(reader, pair, at=whole, match=("an answer of", "room for 30 of the context"))
    refuses(reader, pair, at="Mary had", match=("not in the text",))
    refuses(reader, CONTEXT, match=("input 0", "(question, context) as a tuple"))
    tagger = DecompX(task_models.model("token-classification"), models.word_piece())
    refuses(tagger, "John", doc_stride=3, match=("doc_stride=3", "question answering"))


def test_a_stride_that_may_cut_answers_is_warned_of(readers):
    with pytest.warns(UserWarning, match=r"doc_stride=5, and an answer may have 15 tokens.*doc_stride=14 or more"):
        readers[0]((QUESTION, CONTEXT), doc_stride=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        readers[0]((QUESTION, CONTEXT), doc_stride=5, max_answer_tokens=6)
        readers[0]((QUESTION, CONTEXT))
