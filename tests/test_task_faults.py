"""What was asked in odd ways: of tasks and of similarities."""

from __future__ import annotations

import json

import models
import numpy as np
import pytest
import task_models
import torch
from refusals import refuses
from transformers import BertModel

from decompx_fast import DecompX, Word
from decompx_fast.errors import InputError, ModelLoadError, OptionError
from decompx_fast.request.tasks.columns import Column, Term, with_own_names


@pytest.fixture(scope="module")
def explainers() -> dict[str, DecompX]:
    return {task: DecompX(task_models.model(task), models.word_piece()) for task in task_models.HEADS}


SENTENCE = task_models.INPUTS["token-classification"]


def test_a_choice_is_a_pair(explainers):
    chooser, pair = explainers["multiple-choice"], task_models.INPUTS["multiple-choice"]
    asked = {"match": ("is one text", "how well a second text, the choice, goes with a first", "as a tuple")}
    refuses(chooser, pair[0], **asked)
    refuses(chooser, [pair, pair[1]], **asked)
    ids = chooser.tokenizer(*pair)["input_ids"]
    assert torch.equal(chooser(pair).scores[:, 0] != 0, chooser(ids).scores[:, 0] != 0)  # of ids alone nothing is known


@pytest.mark.parametrize("at", [np.array([1, 2]), torch.tensor([1, 2]), torch.tensor(2.0), Word("a"), Word(1.5)])
def test_places_that_are_no_numbers_are_refused(explainers, at):
    refuses(explainers["token-classification"], SENTENCE, at=at, match=("at=",))


def test_numbers_of_numpy_are_numbers(explainers):
    found = explainers["token-classification"](SENTENCE, at=2, top_k=np.int64(2))
    assert len(found.targets) == 2
    assert len(explainers["fill-mask"]("a [MASK]", top_k=np.int64(3)).predictions) == 3
    assert explainers["question-answering"](("who?", "a b"), max_answer_tokens=np.int64(1)).answer.text in "ab"


@pytest.mark.parametrize("task", ["token-classification", "question-answering", "fill-mask"])
def test_targets_that_are_no_whole_numbers_are_refused(explainers, task):
    refuses(explainers[task], task_models.INPUTS[task], targets=torch.tensor(1.5), match=("tensor(1.5",))


def test_labels_to_be_ignored_are_a_list(explainers):
    for wrong in (5, True, b"O"):
        refuses(explainers["token-classification"], SENTENCE, ignore_labels=wrong, match=("ignore_labels=", "list"))


def test_a_word_that_vanishes_does_not_move_the_numbers_of_others(explainers):
    tagger, words = explainers["token-classification"], ["John", "\u200b", "met", "Mary"]
    names = [
        tagger(words, is_split_into_words=True, at=Word(n), targets="O").targets[0].split(" @ ")[1] for n in (0, 2, 3)
    ]
    assert names == ["John", "met", "Mary"]
    refuses(tagger, words, is_split_into_words=True, at=Word(1), match=("Word(1)", "keeps nothing"))
    refuses(tagger, words, is_split_into_words=True, at=Word(4), match=("4 words",))
    pair = (["Who", "met"], ["\u200b", "John", "met"])
    reader = explainers["question-answering"]
    assert reader(pair, is_split_into_words=True, at=Word(1, text=1)).targets[0] == "start @ John"


def test_a_word_of_a_text_that_is_not_there_is_refused(explainers):
    reader = explainers["question-answering"]
    encoding = models.word_piece()("Who met John?", "John met Mary")
    refuses(reader, encoding, at=Word(0, text=1), match=("text=1", "counted on"))
    assert reader(encoding, at=Word(4)).targets[0] == "start @ john"
    refuses(explainers["token-classification"], SENTENCE, at=Word(1, text=5), match=("text 5", "there are 1"))


def test_a_context_that_vanishes_says_so(explainers):
    refuses(explainers["question-answering"], ("who?", "\u200b"), match=("keeps nothing of the context",))


def test_a_multiple_of_a_label_is_no_part_of_an_entity(explainers):
    tagger = explainers["token-classification"]
    entities = tagger(SENTENCE).entities
    label = tagger(SENTENCE).targets[0].split(" @ ")[0]
    assert entities[0].columns
    assert tagger(SENTENCE, targets={label: -2}).entities[0].columns == ()


def test_outputs_beyond_the_tokenizer_s_vocabulary_are_named_by_number():
    size = models.WORD_PIECES
    model = task_models.model("fill-mask")
    model.resize_token_embeddings(size + 6)
    models.randomize(model, 3)
    found = DecompX(model, models.word_piece())("a [MASK]", targets=[size + 3, size + 4])
    assert found.targets == (f"{size + 3} @ [MASK]", f"{size + 4} @ [MASK]")


def test_many_columns_are_told_apart_in_time():
    """By a table: 20,000 columns compared with each other would take minutes."""
    columns = [Column(f"a @ {n}", {Term(n, 0): 1.0}) for n in range(20_000)]
    assert len(with_own_names(columns * 2)) == 20_000


def test_the_words_of_a_context_are_found_once(explainers, monkeypatch):
    from decompx_fast.request.tasks import question_answering

    calls, found = [], question_answering.word_groups
    monkeypatch.setattr(question_answering, "word_groups", lambda encoded: calls.append(1) or found(encoded))
    explainers["question-answering"](("who?", "a b c d e f"), at="all")
    assert len(calls) == 1


@pytest.fixture
def folder(tmp_path):
    config = task_models.model("fill-mask", dtype=torch.float32).config
    encoder = BertModel(config)
    encoder.save_pretrained(tmp_path)
    models.word_piece().save_pretrained(tmp_path)

    def made(*kinds: str, **configs: object) -> str:
        entries = [{"path": "" if kind == "Transformer" else kind, "type": f"x.{kind}"} for kind in kinds]
        (tmp_path / "modules.json").write_text(json.dumps(entries), encoding="utf-8")
        for kind, options in configs.items():
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / kind / "config.json").write_text(json.dumps(options), encoding="utf-8")
        return str(tmp_path)

    return made


MEAN = {"pooling_mode_mean_tokens": True}


def test_a_task_that_is_named_holds_for_sentence_encoders_too(folder):
    path = folder("Transformer", "Pooling", Pooling=MEAN)
    assert DecompX.from_pretrained(path).compares
    with pytest.warns(UserWarning, match="was not trained"):
        assert DecompX.from_pretrained(path, task="ner").task == "token-classification"
    refuses(DecompX.from_pretrained, path, task="ner", pooling="cls", match=("task=", "pooling="))


@pytest.mark.parametrize("dense", [{}, {"in_features": "x", "out_features": 3}, {"in_features": 4, "out_features": -1}])
def test_modules_that_are_described_wrongly_name_their_file(folder, dense):
    path = folder("Transformer", "Pooling", "Dense", Pooling=MEAN, Dense=dense)
    refuses(DecompX.from_pretrained, path, error=ModelLoadError, match=("Dense", "config.json"))


def test_a_pooling_that_is_not_described_is_not_guessed(folder):
    refuses(
        DecompX.from_pretrained, folder("Transformer", "Pooling"), error=ModelLoadError, match=("Pooling", "config")
    )


def test_similarities_name_what_they_do_not_take():
    encoder = DecompX(BertModel(task_models.model("fill-mask").config).double(), models.word_piece(), pooling="mean")
    refuses(encoder.similarity, "a", "b", sources=np.array([0, 1]), error=OptionError, match=("sources=",))
    refuses(encoder.similarity, "a", "b", targets="x", error=InputError, match=("'targets' is no option of this call",))
