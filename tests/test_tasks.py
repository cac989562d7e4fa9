"""Every task from a text to an explanation: columns add up to what the model gives, and results keep what it says."""

from __future__ import annotations

import io
import json

import models
import pytest
import torch
from refusals import message, refuses
from rich.console import Console
from task_models import HEADS, INPUTS, LABELS, model, roberta
from transformers import BertModel

from decompx_fast import DecompX, Explanation, Failure, Word, read_json
from decompx_fast.errors import InputError, OptionError, UnsupportedModelError

EXACT = 1e-10  # in float64, relative to values of order 1
ENGINES = [("reference", "absdot"), ("forward", "absdot"), ("adjoint", "equal"), ("adjoint", "bias_token")]
AT_POSITIONS = ["token-classification", "question-answering", "fill-mask"]


@pytest.fixture(scope="module")
def explainers() -> dict[str, DecompX]:
    return {task: DecompX(model(task), models.word_piece()) for task in HEADS}


def own_outputs(explainer: DecompX, explanation: Explanation) -> torch.Tensor:
    """What the model itself gives for the input, by its own forward pass: ``[i, C]``, or ``[C]``."""
    ids = torch.tensor([explanation.token_ids])
    types = torch.tensor([[0 if span is None or span[0] == 0 else 1 for span in explanation.spans]])
    last = max((n for n, t in enumerate(types[0]) if t), default=None)
    if last is not None:
        types[0, last + 1] = 1  # the separator after the second text
    if explainer.task == "multiple-choice":
        ids, types = ids[None], types[None]
    with torch.no_grad():
        out = explainer.model(input_ids=ids, token_type_ids=types)
    if explainer.task == "question-answering":
        return torch.stack([out.start_logits[0], out.end_logits[0]], dim=-1)
    return out.logits[0]


@pytest.mark.parametrize("task", HEADS)
@pytest.mark.parametrize(("engine", "bias"), ENGINES)
def test_columns_add_up_to_what_the_model_gives(explainers, task, engine, bias):
    explainer = explainers[task]
    explanation = explainer(INPUTS[task], engine=engine, bias=bias)
    assert explanation.task == task and explanation.engine == engine
    assert (explanation.totals - explanation.target_logits).abs().max() < EXACT
    assert explanation.completeness_error < EXACT
    outputs = own_outputs(explainer, explanation)
    assert explanation.target_logits.tolist() == pytest.approx(expected(explanation, outputs), abs=EXACT)


def expected(explanation: Explanation, outputs: torch.Tensor) -> list[float]:
    """The value of each column, from all that the model gives."""
    if explanation.task == "token-classification":
        words = explanation.words()
        assert words.spans[1] is not None
        values = []
        for name in explanation.targets:
            label, word = name.split(" @ ")
            (found,) = [k for k in range(len(words)) if words.tokens[k] == word]
            first = next(n for n, span in enumerate(explanation.spans) if span and span[1] == words.spans[found][1])
            assert outputs[first].argmax() == LABELS.index(label) != 0
            values.append(outputs[first, LABELS.index(label)].item())
        return values
    if explanation.task == "question-answering":
        start, end = explanation.answer.tokens
        values = outputs[start, 0].item(), outputs[end, 1].item()
        return [*values, sum(values)]
    if explanation.task == "fill-mask":
        return [outputs[explanation.tokens.index("[MASK]")].max().item()]
    return outputs.flatten().tolist()


@pytest.mark.parametrize("task", HEADS)
@pytest.mark.parametrize("bias", ["absdot", "equal", "norm", "none"])
def test_engines_agree(explainers, task, bias):
    engines = ["reference", "forward", *(["adjoint"] if bias in ("equal", "none") else [])]
    first, *others = [explainers[task](INPUTS[task], engine=engine, bias=bias).scores for engine in engines]
    for other in others:
        assert (other - first).abs().max() < EXACT


@pytest.mark.parametrize("task", AT_POSITIONS)
def test_a_column_of_two_places_is_the_sum_of_its_terms(explainers, task):
    """Scores are linear in what is asked, whatever the rule that shares biases."""
    text = INPUTS[task]
    if task == "question-answering":
        scores = explainers[task](text).scores
        assert (scores[:, 0] + scores[:, 1] - scores[:, 2]).abs().max() < EXACT
        return
    names = {"token-classification": ("B-PER", "I-LOC"), "fill-mask": ("paris", "london")}[task]
    one, other = (explainers[task](text, targets=name, at=3).scores for name in names)
    both = explainers[task](text, targets={names[0]: 1, names[1]: -2}, at=3)
    assert (one - 2 * other - both.scores).abs().max() < EXACT
    assert both.targets[0].startswith(f"{names[0]} - 2 {names[1]} @ ")


@pytest.mark.parametrize("task", AT_POSITIONS)
@pytest.mark.parametrize("bias", ["absdot", "equal", "bias_token"])
def test_inputs_of_a_batch_have_their_own_columns(explainers, task, bias):
    texts = {
        "token-classification": ["John Smith met Jackson", "no one came to us", "we saw New York"],
        "question-answering": [("Who met?", "John met."), ("Who ran?", "She ran."), ("Where?", "In York it was.")],
        "fill-mask": ["[MASK] is in France", "Paris is [MASK] [MASK]", "we are the [MASK]"],
    }[task]
    together = explainers[task](texts, bias=bias)
    for text, one in zip(texts, together, strict=True):
        alone = explainers[task](text, bias=bias)
        assert one.targets == alone.targets
        assert (one.scores - alone.scores).abs().max() < EXACT
        assert (one.target_logits - alone.target_logits).abs().max() < EXACT
        assert one.completeness_error < EXACT
        assert [(e.word, e.start) for e in one.entities or ()] == [(e.word, e.start) for e in alone.entities or ()]
        if bias == "bias_token":
            assert (one.bias_token - alone.bias_token).abs().max() < EXACT
    assert len({len(one) for one in together}) < len(texts)  # some were computed together


@pytest.mark.parametrize("task", AT_POSITIONS)
def test_results_keep_what_the_model_says(explainers, task, tmp_path):
    explanation = explainers[task](INPUTS[task])
    said = {
        "token-classification": explanation.entities,
        "question-answering": explanation.answer,
        "fill-mask": explanation.predictions,
    }[task]
    assert said
    path = tmp_path / "one.safetensors"
    explanation.save(path)
    written = json.loads(json.dumps(explanation.to_dict()))
    (tmp_path / "one.json").write_text(json.dumps(written))
    for again in (Explanation.load(path), Explanation.from_dict(written), *read_json(tmp_path / "one.json")):
        assert (again.entities, again.answer, again.predictions, again.task) == (
            (explanation.entities, explanation.answer, explanation.predictions, task)
        )
        assert torch.equal(again.scores, explanation.scores) and again.targets == explanation.targets
    words = explanation.words()
    assert (words.entities, words.answer) == (explanation.entities, explanation.answer)
    assert (words.totals - explanation.totals).abs().max() < EXACT


@pytest.mark.parametrize("task", AT_POSITIONS)
def test_views_show_what_the_model_says(explainers, task):
    explanation = explainers[task](INPUTS[task])
    stream = io.StringIO()
    explanation.show(console=Console(file=stream, width=100))
    shown = {
        "token-classification": lambda: [entity.word for entity in explanation.entities],
        "question-answering": lambda: [explanation.answer.text, "no answer"],
        "fill-mask": lambda: [explanation.predictions[0].name, "@ [MASK]"],
    }[task]()
    for text in (stream.getvalue(), explanation.to_html(full=True)):
        assert all(part in " ".join(text.split()) for part in shown)
    assert shown[0] in repr(explanation) and task in repr(explanation)
    assert explanation.to_dataframe().columns[-1] == f"score_{explanation.targets[-1]}"
    assert explanation.probabilities is None and explanation.predicted_label is None


@pytest.mark.parametrize("task", AT_POSITIONS)
def test_plots_add_up(explainers, task):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    explanation = explainers[task](INPUTS[task])
    axes = explanation.plot(target=explanation.targets[-1])
    assert explanation.targets[-1] in axes.get_title() + axes.get_xlabel() + axes.get_ylabel()


def test_labels_without_a_background_are_said_once(explainers):
    names = {n: f"LABEL_{n}" for n in range(len(LABELS))}
    tagger = model("token-classification")
    tagger.config.id2label = names
    explainer = DecompX(tagger, models.word_piece())
    with pytest.warns(UserWarning, match="no label of this model is 'O'") as caught:
        found = explainer(["John met", "us"])
    assert len(caught) == 1 and [len(one.targets) for one in found] == [2, 1]


def test_answers_are_escaped_in_html(explainers):
    explanation = explainers["question-answering"](("What?", "<b>bold</b>"), at=(1, 0, 3))
    assert "<b>bold" not in explanation.to_html()


def test_streams_ids_and_skipped_inputs(explainers):
    texts = ["a [MASK]", "no mask here", "the [MASK] of it"]
    found = list(explainers["fill-mask"].explain_iter(texts, on_error="skip", ids=["a", "b", "c"]))
    assert [one.ok for one in found] == [True, False, True]
    assert found[2].metadata["id"] == "c"
    assert isinstance(found[1], Failure) and found[1].input == 1
    assert "input 1: there is no mask in the input" in found[1].error
    assert "input 1: " in message(InputError, explainers["fill-mask"], texts)


def test_words_sources_and_split_words(explainers):
    explainer = explainers["token-classification"]
    words = ["Dr.", "Jackson", "met", "Unbelievably"]
    explanation = explainer(words, is_split_into_words=True, at=[Word(0), Word(3)])
    assert [name.split(" @ ")[1] for name in explanation.targets] == ["Dr.", "Unbelievably"]
    merged = explanation.words()
    assert [*merged.tokens[1:-1]] == words
    grouped = explainer(words, is_split_into_words=True, at=[Word(0), Word(3)], sources="word", bias="none")
    plain = explainer(words, is_split_into_words=True, at=[Word(0), Word(3)], bias="none")
    assert (grouped.scores - plain.words().scores).abs().max() < EXACT
    several = explainer([words, words[:2]], is_split_into_words=True, at="all")
    assert [len(one.targets) for one in several] == [4, 2]


def test_words_of_an_encoding_are_known(explainers):
    tokenizer = models.word_piece()
    encoding = tokenizer(["Unbelievably", "good"], is_split_into_words=True)
    explanation = explainers["token-classification"](encoding, at="all")
    assert len(explanation.targets) == 2
    assert [*explanation.words().tokens] == ["[CLS]", "unbelievably", "good", "[SEP]"]


@pytest.mark.parametrize("task", ["token-classification", "fill-mask"])
def test_byte_level_models(task):
    tokenizer = models.byte_pair()
    explainer = DecompX(roberta(task, len(tokenizer)), tokenizer)
    text = "a moving film, <mask>" if task == "fill-mask" else "a moving film, dreadful"
    explanation = explainer(text)
    assert explanation.completeness_error < EXACT
    for entity in explanation.entities or ():
        assert entity.word == text[entity.start : entity.end] == entity.word.strip()


def test_likeliest_and_named_places(explainers):
    explanation = explainers["fill-mask"]("Paris is [MASK] of [MASK].", top_k=3, bias="equal")
    assert len(explanation.targets) == 6 == len(explanation.predictions)
    scores = [one.score for one in explanation.predictions]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert explanation.completeness_error < EXACT
    assert explainers["fill-mask"]("Paris is in France", at=(0, 5), top_k=1).targets[0].endswith("@ Paris")


@pytest.mark.parametrize("task", AT_POSITIONS)
@pytest.mark.parametrize(
    "options",
    [
        {"bias": "bias_token", "bias_token_split": "absdot"},
        {"sources": "sentence"},
        {"sources": "word", "bias": "bias_token"},
        {"variant": "released"},
        {"stages": ("attention", "encoder")},
        {"positions": [0, 2]},
        {"path": "operator"},
        {"activation": "linear", "tanh": "linear"},
    ],
    ids=lambda options: "-".join(map(str, options)),
)
def test_options_hold_at_positions_too(explainers, task, options):
    explanation = explainers[task](INPUTS[task], **options)
    assert explanation.completeness_error < EXACT
    assert explanation.targets == explainers[task](INPUTS[task], engine="adjoint", bias="equal").targets


def test_thorough_checks_measure_positions(explainers):
    explanation = explainers["token-classification"](INPUTS["token-classification"], check="thorough")
    assert explanation.score_error < 1e-6


def test_classes_that_have_names(explainers):
    following = explainers["next-sentence-prediction"](INPUTS["next-sentence-prediction"])
    assert following.labels == following.targets == ("follows", "does not follow")
    assert following.predicted_label in following.labels
    choice = explainers["multiple-choice"](INPUTS["multiple-choice"])
    assert choice.targets == ("choice",) and choice.probabilities is None
    two = explainers["multiple-choice"]([("It rains.", "Take a coat."), ("It rains.", "Take a bow.")])
    assert [one.logits.shape for one in two] == [(1,), (1,)]


def test_what_a_task_does_not_know_is_refused_by_name(explainers):
    refuses(
        explainers["next-sentence-prediction"],
        ("a", "b"),
        at=1,
        match=("at=1 is for models that answer at positions", "next-sentence-prediction"),
        error=OptionError,
    )
    refuses(explainers["fill-mask"], "a [MASK]", max_answer_tokens=3, match=("is for question answering",))
    refuses(explainers["fill-mask"], "a [MASK]", head=False, match=("head=False", "fill-mask"))
    refuses(explainers["question-answering"], "no pair", match=("input 0: ", "(question, context) as a tuple"))
    refuses(explainers["token-classification"], "a b", at=9, match=("input 0: at=9 is beyond the input",))


def test_a_model_without_a_head_is_refused():
    text = message(UnsupportedModelError, DecompX, BertModel(model("fill-mask").config))
    assert "BertModel has no head" in text and "similarity(a, b)" in text and "pooling='mean'" in text


@pytest.mark.parametrize("task", HEADS)
def test_a_plan_can_be_made(explainers, task):
    for bias in ("absdot", "equal"):
        plan = explainers[task].plan(tokens=30, bias=bias)
        assert plan.peak_bytes > 0


def test_faithfulness_is_for_classifiers(explainers):
    from decompx_fast.evaluation.classifier import Classifier

    refuses(Classifier, explainers["next-sentence-prediction"], match=("next-sentence-prediction",))
