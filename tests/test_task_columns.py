"""What each task asks by default and by name, and what it reads of the model's outputs."""

from __future__ import annotations

import itertools

import models
import numpy as np
import pytest
import torch
from refusals import refuses
from task_samples import Given, encode, labelled
from test_presplit import byte_level
from transformers import BertConfig, BertForTokenClassification, TokenClassificationPipeline

from decompx_fast.request.tasks import NAMED_OUTPUTS, check_question, check_task, position_task
from decompx_fast.request.tasks.columns import Question
from decompx_fast.request.tasks.places import Word
from decompx_fast.request.tasks.question_answering import QuestionAnswering
from decompx_fast.request.tasks.token_classification import TokenClassification

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG")
TEXT = "John Smith met Unbelievably Jackson in New York."


def named(asked) -> dict:
    return {column.name: {tuple(term): w for term, w in column.terms.items()} for column in asked.columns}


# Token classification.


def test_words_with_a_label_are_columns_and_entities():
    encoded = encode(models.word_piece(), TEXT)
    said = {"John": "B-PER", "Smith": "I-PER", "Un": "B-PER", "Jackson": "B-PER", "New": "B-LOC", "York": "I-LOC"}
    asked = TokenClassification(LABELS).ask(encoded, labelled(encoded, LABELS, said), Question())
    position = {encoded.tokens[n]: n for n in range(len(encoded))}
    assert named(asked) == {
        "B-PER @ John": {(position["john"], 1): 1.0},
        "I-PER @ Smith": {(position["smith"], 2): 1.0},
        "B-PER @ Unbelievably": {(position["un"], 1): 1.0},
        "B-PER @ Jackson": {(position["jackson"], 1): 1.0},
        "B-LOC @ New": {(position["new"], 3): 1.0},
        "I-LOC @ York": {(position["york"], 4): 1.0},
    }
    found = [(e.entity_group, e.word, TEXT[e.start : e.end], e.columns) for e in asked.entities]
    assert found == [
        ("PER", "John Smith", "John Smith", (0, 1)),
        ("PER", "Unbelievably", "Unbelievably", (2,)),
        ("PER", "Jackson", "Jackson", (3,)),
        ("LOC", "New York", "New York", (4, 5)),
    ]
    share = np.exp(4) / (np.exp(4) + 6)  # of seven labels, one has 4 and six have 0
    assert asked.entities[0].score == pytest.approx(share, abs=1e-12)
    assert [p.name for p in asked.predictions] == "B-PER I-PER O B-PER B-PER O B-LOC I-LOC O".split()


@pytest.mark.parametrize("seed", [0, 2, 3, 4, 5])
@pytest.mark.parametrize("scheme", ["BIO", "plain"])
def test_entities_are_those_of_the_pipeline(seed, scheme):
    labels = LABELS if scheme == "BIO" else ("O", "PER", "LOC")
    tokenizer = models.word_piece()
    config = BertConfig(
        vocab_size=models.WORD_PIECES,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        id2label=dict(enumerate(labels)),
        label2id={label: n for n, label in enumerate(labels)},
    )
    model = BertForTokenClassification(config).double().eval()
    models.randomize(model, seed)
    with torch.no_grad():  # the labels differ from word to word
        model.classifier.bias.zero_()
        model.bert.encoder.layer[0].output.LayerNorm.bias.zero_()
    text = "Unbelievably good weather in New York, and Jackson went there; Smith stayed at home."
    expected = TokenClassificationPipeline(model=model, tokenizer=tokenizer, aggregation_strategy="first")(text)
    encoded = encode(tokenizer, text)
    with torch.no_grad():
        values = model(**{name: value[None] for name, value in encoded.inputs.items()}).logits[0]
    asked = TokenClassification(labels).ask(encoded, Given(values), Question())
    assert len(expected) > 2
    assert [(e.entity_group, e.start, e.end) for e in asked.entities] == [
        (e["entity_group"], e["start"], e["end"]) for e in expected
    ]
    for ours, theirs in zip(asked.entities, expected, strict=True):
        assert ours.score == pytest.approx(float(theirs["score"]), abs=1e-6)  # theirs is float32
        assert ours.word == text[ours.start : ours.end]
        assert [asked.columns[n].name.split(" @ ")[0].split("-")[-1] for n in ours.columns] == [
            ours.entity_group
        ] * len(ours.columns)


def test_offsets_of_byte_level_entities_are_without_the_space():
    tokenizer = byte_level()
    encoded = encode(tokenizer, "he met John Smith there")
    spans = {
        "John": "B-PER",
        "Smith": "I-PER",
    }
    values = torch.zeros(len(encoded), len(LABELS), dtype=torch.float64)
    values[:, 0] = 1
    for group, name in [(g, encoded.texts[0][g.span[1] : g.span[2]]) for g in _words(encoded)]:
        if name in spans:
            values[group.positions[0], LABELS.index(spans[name])] = 5
    asked = TokenClassification(LABELS).ask(encoded, Given(values), Question())
    (entity,) = asked.entities
    assert (entity.word, entity.start, entity.end) == ("John Smith", 7, 17)


def _words(encoded):
    from decompx_fast.request.tasks.places import words_of

    return words_of(encoded)


def test_presplit_words_are_the_words():
    encoded = encode(models.word_piece(), ["Dr.", "Jackson", "left"], split=True)
    values = torch.zeros(len(encoded), len(LABELS), dtype=torch.float64)
    values[:, 0] = 1
    values[1, 1], values[3, 2] = 5, 5
    values[2, 5] = 9  # the full stop of "Dr." is not its first token
    asked = TokenClassification(LABELS).ask(encoded, Given(values), Question())
    assert [*named(asked)] == ["B-PER @ Dr.", "I-PER @ Jackson"]
    assert asked.entities[0].word == "Dr. Jackson"


def test_a_word_that_occurs_twice_is_told_apart():
    encoded = encode(models.word_piece(), "Paris loves Paris")
    asked = TokenClassification(LABELS).ask(encoded, labelled(encoded, LABELS, {"Paris": "B-LOC"}), Question())
    assert [*named(asked)] == ["B-LOC @ Paris (#1)", "B-LOC @ Paris (#3)"]


def test_without_an_entity_the_nearest_label_is_explained():
    encoded = encode(models.word_piece(), "nothing here")
    values = torch.zeros(4, len(LABELS), dtype=torch.float64)
    values[:, 0] = 5
    values[2, 3] = 2
    values[0, 4] = 4  # not a word
    asked = TokenClassification(LABELS).ask(encoded, Given(values), Question())
    assert named(asked) == {"B-LOC @ here": {(2, 3): 1.0}}
    assert asked.entities == ()


def test_places_targets_and_likeliest_labels_can_be_named():
    encoded = encode(models.word_piece(), TEXT)
    given = labelled(encoded, LABELS, {"John": "B-PER"})
    task = TokenClassification(LABELS)
    asked = task.ask(encoded, given, Question(at=[Word(1), (15, 17)]))
    assert [*named(asked)] == ["O @ Smith", "O @ Unbelievably"]
    direction = {"B-PER": 1, "B-LOC": -0.5}
    asked = task.ask(encoded, given, Question(at=Word(0), targets=[direction, 2]))
    assert named(asked) == {"B-PER - 0.5 B-LOC @ John": {(1, 1): 1.0, (1, 3): -0.5}, "I-PER @ John": {(1, 2): 1.0}}
    asked = task.ask(encoded, given, Question(at=Word(0), top_k=2))
    assert [*named(asked)][0] == "B-PER @ John" and len(asked.columns) == 2
    assert len(task.ask(encoded, given, Question(at="all")).columns) == 9
    asked = task.ask(encoded, given, Question(ignore_labels=["B-PER"]))
    assert "B-PER @ John" not in named(asked) and len(asked.columns) == 8


def test_labels_without_a_background_are_all_explained():
    labels = ("NOUN", "VERB")
    encoded = encode(models.word_piece(), "dogs bark loudly")
    given = labelled(encoded, labels, {"bark": "VERB"}, background="NOUN")
    asked = TokenClassification(labels).ask(encoded, given, Question())
    assert [*named(asked)] == ["NOUN @ dogs", "VERB @ bark", "NOUN @ loudly"]
    assert [(e.entity_group, e.word) for e in asked.entities] == [
        ("NOUN", "dogs"),
        ("VERB", "bark"),
        ("NOUN", "loudly"),
    ]
    notice = TokenClassification(labels).notice(Question())
    assert "no label of this model is 'O' ('NOUN' (0), 'VERB' (1))" in notice and "ignore_labels=" in notice
    assert TokenClassification(labels).notice(Question(ignore_labels=[])) is None
    assert TokenClassification(LABELS).notice(Question()) is None


def test_bad_questions_of_token_classification():
    encoded = encode(models.word_piece(), TEXT)
    given = labelled(encoded, LABELS, {})
    ask = TokenClassification(LABELS).ask
    refuses(
        ask, encoded, given, Question(targets="B-PRE"), match=("no label 'B-PRE'", "did you mean 'B-PER'", "'O' (0)")
    )
    refuses(ask, encoded, given, Question(at=1, targets=9), match=("no label 9", "'I-ORG' (6)"))
    refuses(ask, encoded, given, Question(at=1, targets=1.5), match=("1.5 is no label", "targets"))
    refuses(ask, encoded, given, Question(at=1, targets={}), match=("direction in targets is empty",))
    refuses(ask, encoded, given, Question(at=1, targets={"O": "x"}), match=("weight of 'O'", "finite number"))
    refuses(ask, encoded, given, Question(at=1, targets=[]), match=("targets is an empty list",))
    check = TokenClassification(LABELS).check
    refuses(check, Question(at=1, top_k=0), len(LABELS), match=("top_k=0", "whole number from 1"))
    refuses(ask, encoded, given, Question(ignore_labels=["X"]), match=("no label 'X'",))
    refuses(ask, encoded, given, Question(ignore_labels="O"), match=("give a list of labels",))
    refuses(ask, encoded, given, Question(ignore_labels=LABELS), match=("every label",))
    ids = encode(models.word_piece(), [101, 2204, 102])
    refuses(ask, ids, labelled(ids, LABELS, {}), Question(), match=("words of token ids are not known", "at=[3, 7]"))
    assert len(ask(ids, labelled(ids, LABELS, {}), Question(at=1)).columns) == 1


# Question answering.


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("limit", [1, 3, 15])
@pytest.mark.parametrize("cls", [True, False])
def test_the_answer_is_the_best_span_of_all(seed, limit, cls):
    question, context = "Who met Jackson?", "In New York, John Smith met Jackson."
    tokenizer = models.word_piece()
    encoded = encode(tokenizer, (question, context))
    values = torch.randn(len(encoded), 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    task = QuestionAnswering(tokenizer.cls_token_id if cls else None)
    asked = task.ask(encoded, Given(values), Question(max_answer_tokens=limit))
    scores, none = _brute_force(tokenizer(question, context), values.numpy(), cls)
    best = max((pair for pair in scores if pair[1] - pair[0] < limit), key=scores.__getitem__)
    answer = asked.answer
    assert answer.tokens == best
    assert answer.score == pytest.approx(scores[best], rel=1e-12)
    assert answer.no_answer_score == (pytest.approx(none, rel=1e-12) if cls else None)
    assert answer.is_answered == (not cls or scores[best] >= none)
    assert answer.text == context[answer.start : answer.end]
    start, end, total = asked.columns
    assert {tuple(t): w for t, w in total.terms.items()} == {(best[0], 0): 1.0, (best[1], 1): 1.0}
    assert {tuple(t) for t in start.terms} == {(best[0], 0)} and {tuple(t) for t in end.terms} == {(best[1], 1)}
    assert start.name.startswith("start @ ") and end.name.startswith("end @ ") and " + " in total.name


def _brute_force(encoding, values, cls):
    """The score of every span of the context, by the pipeline's rule, and that of no answer."""
    context = [n for n, s in enumerate(encoding.sequence_ids()) if s == 1]
    kept = ([0] if cls else []) + context
    share = np.exp(values) / np.exp(values[kept]).sum(0)
    pairs = itertools.combinations_with_replacement(context, 2)
    return {(s, e): share[s, 0] * share[e, 1] for s, e in pairs}, share[0, 0] * share[0, 1]


def test_an_answer_of_whole_words_and_a_given_one():
    question, context = "When?", "It was founded in 1889."
    encoded = encode(models.word_piece(), (question, context))
    values = torch.zeros(len(encoded), 2, dtype=torch.float64)
    where = encoded.tokens.index("1889") if "1889" in encoded.tokens else None
    first = next(n for n, s in enumerate(encoded.spans) if s and context[s[1] : s[2]].startswith("18"))
    last = next(n for n, s in enumerate(encoded.spans) if s and s[0] == 1 and s[2] == context.index("1889") + 4)
    values[first, 0], values[last, 1] = 9, 9
    asked = QuestionAnswering(101).ask(encoded, Given(values), Question())
    assert where is None or first == where
    assert asked.answer.text == "1889"
    assert [*named(asked)] == ["start @ 1889", "end @ 1889", "start + end @ 1889"]
    given = QuestionAnswering(101).ask(encoded, Given(values), Question(at=(1, 3, 14)))
    assert [*named(given)] == ["start @ was", "end @ founded", "start + end @ was ... founded"]
    assert given.answer.text == "1889"
    ends = QuestionAnswering(101).ask(encoded, Given(values), Question(targets={"start": 1, "end": -1}, at=first))
    assert named(ends) == {"start - end @ 1889": {(first, 0): 1.0, (first, 1): -1.0}}


def test_answers_of_ids_are_tokens():
    tokenizer = models.word_piece()
    (ids,) = [tokenizer("When?", "Founded in autumn")["input_ids"]]
    encoded = encode(tokenizer, ids)
    values = torch.zeros(len(encoded), 2, dtype=torch.float64)
    values[5, 0] = values[6, 1] = 9
    asked = QuestionAnswering(101).ask(encoded, Given(values), Question())
    assert (asked.answer.text, asked.answer.start) == ("in autumn", None)


def test_bad_questions_of_question_answering():
    task, tokenizer = QuestionAnswering(101), models.word_piece()
    one = encode(tokenizer, "no question")
    refuses(task.ask, one, Given(torch.zeros(len(one), 2)), Question(), match=("(question, context) as a tuple",))
    pair = encode(tokenizer, ("When?", "It was founded in 1889."))
    given = Given(torch.zeros(len(pair), 2))
    refuses(task.ask, pair, given, Question(max_answer_tokens=0), match=("max_answer_tokens=0",))
    refuses(
        task.ask,
        pair,
        given,
        Question(at=(1, 0, 22), max_answer_tokens=3),
        match=("an answer of 5 tokens", "max_answer_tokens=3", "raise it"),
    )
    refuses(task.ask, pair, given, Question(targets="middle", at=4), match=("'middle'", "'start' (0) and 'end' (1)"))
    refuses(task.ask, pair, Given(torch.zeros(len(pair), 3)), Question(), match=("3 numbers for each token",))
    ids = encode(tokenizer, [101, 2204, 102])
    refuses(task.ask, ids, Given(torch.zeros(3, 2)), Question(), match=("no token of the context",))


# Which task.


def test_tasks_have_one_name_and_take_what_is_theirs():
    assert check_task("ner") == "token-classification"
    refuses(check_task, "nar", match=("task='nar'", "'token-classification'"))
    for task, own in (
        ("token-classification", {"at", "top_k", "ignore_labels"}),
        ("question-answering", {"at", "max_answer_tokens"}),
        ("fill-mask", {"at", "top_k"}),
        ("text-classification", set()),
    ):
        found = position_task(task, labels=LABELS, tokenizer=None)
        takes = () if found is None else found.takes
        for name, value in (("at", 1), ("top_k", 2), ("max_answer_tokens", 3), ("ignore_labels", ["O"])):
            if name in own:
                check_question(Question(**{name: value}), takes, task)
            else:
                refuses(
                    check_question, Question(**{name: value}), takes, task, match=(f"{name}=", task, "leave it out")
                )
    assert NAMED_OUTPUTS["multiple-choice"] == ("choice",)
