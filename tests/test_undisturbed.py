"""Whatever mode the caller is in, and whatever goes wrong: the same numbers, and nothing left behind."""

from __future__ import annotations

import threading

import pytest
import torch
from explainers import ENGINES, EXACT
from models import TEXTS, classifier, snapshot

from decompx_fast import DecompX
from decompx_fast.errors import InputError, UnsupportedModelError

# The caller's settings.


@pytest.mark.parametrize("engine", ENGINES)
def test_whatever_mode_the_caller_is_in_the_numbers_are_the_same(engine):
    explainer = DecompX(classifier(dtype=torch.float32), engine=engine, **ENGINES[engine])
    expected = explainer.explain([7, 8, 9]).scores
    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    for mode in (torch.no_grad(), torch.enable_grad(), torch.inference_mode(), autocast, torch.device("meta")):
        with mode:
            scores = explainer.explain([7, 8, 9], targets=[0, 1]).scores
        assert torch.equal(scores, expected)
        assert not scores.requires_grad and not scores.is_inference()
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(explainer.explain([7, 8, 9]).scores, expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_texts_do_not_depend_on_the_default_device(bert):
    expected = bert.explain(TEXTS[0], sources="word").scores
    with torch.device("meta"):
        assert torch.equal(bert.explain(TEXTS[0], sources="word").scores, expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_made_in_inference_mode(engine):
    with torch.inference_mode():
        model = classifier()
    for dtype in (None, "float32"):
        options = {"engine": engine, "dtype": dtype, **ENGINES[engine]}
        found = DecompX(model, **options).explain([7, 8, 9]).scores
        assert torch.equal(found, DecompX(classifier(), **options).explain([7, 8, 9]).scores)


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_in_half_precision(engine):
    for dtype in (torch.float16, torch.bfloat16):
        explainer = DecompX(classifier(dtype=dtype), engine=engine, **ENGINES[engine])
        explanation = explainer.explain([7, 8, 9])
        assert explanation.scores.dtype == torch.float32
        with torch.no_grad():
            expected = classifier(dtype=dtype).double()(torch.tensor([[7, 8, 9]])).logits[0]
        assert (explanation.scores.sum(0) - expected).abs().max() < 0.1


@pytest.mark.slow
def test_explaining_in_what_the_caller_compiles(bare):
    expected = [e.scores for e in bare.explain([[7, 8, 9], [7, 8]])]

    def one(x):
        return bare.explain([7, 8, 9]).scores + x.sin().sum()

    def stream(x):
        return [e.scores + x.sin().sum() for e in bare.explain_iter([[7, 8, 9], [7, 8]])]

    zero = torch.zeros(2, dtype=torch.float64)
    assert torch.equal(torch.compile(one, backend="eager")(zero), expected[0])
    for found, scores in zip(torch.compile(stream, backend="eager")(zero), expected, strict=True):
        assert torch.equal(found, scores)


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad], ids=["vmap", "grad"])
def test_explaining_inside_of_a_transform_is_refused_in_our_words(bare, transform):
    for given in (torch.tensor([5, 6, 7]), [5, 6, 7]):
        ask = transform(lambda x, given=given: x.sum() * bare.explain(given).scores.sum())
        with pytest.raises(InputError, match=r"inside of torch.func .*call it outside"):
            ask(torch.ones(2))
    with pytest.raises(InputError, match=r"inside of torch.func"):
        torch.func.vmap(lambda ids: bare.explain(ids).scores)(torch.tensor([[5, 6, 7], [7, 8, 9]]))


# Nothing is left behind.


class Stop(Exception):
    pass


def mixed_model():
    """Dropout, compiled in place, and in train mode here and there."""
    model = classifier(hidden_dropout_prob=0.3)
    for n, module in enumerate(model.modules()):
        module.training = n % 2 == 0
    model.bert.encoder.layer[0].intermediate.compile(backend="aot_eager")
    return model


def same(before: dict, model) -> bool:
    after = snapshot(model)
    assert {name for name in before if before[name] != after.get(name)} == set()
    return before.keys() == after.keys()


@pytest.mark.parametrize("engine", ENGINES)
def test_explaining_leaves_nothing_behind(engine):
    model = mixed_model()
    expected = DecompX(classifier(), engine=engine, **ENGINES[engine]).explain([7, 8, 9])
    before = snapshot(model)
    explainer = DecompX(model, engine=engine, **ENGINES[engine])
    explanation = explainer.explain([7, 8, 9])
    assert torch.equal(explanation.scores, expected.scores)
    assert same(before, model)


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.parametrize("engine", ENGINES)
def test_errors_leave_nothing_behind(monkeypatch, engine, error):
    def fail(*args, **kwargs):
        raise error

    model = mixed_model()
    before = snapshot(model)
    explainer = DecompX(model, engine=engine, **ENGINES[engine])
    for place in (
        "decompx_fast.linearize.reading.parts.activation_name",
        "decompx_fast.linearize.linearization.HuggingFaceLinearization._check",
        "decompx_fast.linearize.recomputed.linearize_head",
        "decompx_fast.engines." + (engine if engine == "reference" else f"{engine}.run") + ".attribute",
        "decompx_fast.calls.composing.Explanation",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, fail)
            with pytest.raises(error):
                explainer.explain([7, 8, 9])
        assert same(before, model)
    layer = model.bert.encoder.layer[1].output
    layer.forward = fail
    before = snapshot(model)
    with pytest.raises(error):
        explainer.explain([7, 8, 9])
    assert same(before, model)
    del layer.forward
    assert explainer.explain([7, 8, 9]).completeness_error < EXACT


def test_a_refused_model_is_left_as_it_was():
    model = mixed_model()
    model.bert.encoder.layer[1].register_forward_hook(lambda module, args, output: 2 * output)
    before = snapshot(model)
    with pytest.raises(UnsupportedModelError, match="layer 1"):
        DecompX(model).explain([7, 8, 9])
    assert same(before, model)


def test_a_stream_that_is_left_half_way_leaves_nothing_behind():
    model = mixed_model()
    before = snapshot(model)
    stream = DecompX(model).explain_iter([[7, 8, 9], [7, 8], [7, 8, 9]] * 10, batch_size=2)
    for _ in range(5):
        next(stream)
        assert same(before, model), "not even between two results"
    stream.close()
    assert same(before, model)
    stream = DecompX(model).explain_iter([[7, 8, 9]])
    stream.close()  # not even begun
    del stream
    assert same(before, model)


def test_the_users_tensors_are_left_as_they_were(bare):
    ids, mask = torch.tensor([[7, 8, 0, 0]]), torch.tensor([[1, 1, 0, 0]])
    encoding = {"input_ids": ids, "attention_mask": mask}
    explanation = bare.explain(encoding)[0]
    assert ids.tolist() == [[7, 8, 0, 0]] and mask.tolist() == [[1, 1, 0, 0]]
    assert encoding.keys() == {"input_ids", "attention_mask"}
    explanation.scores.zero_()
    assert bare.explain(encoding)[0].scores.abs().max() > 0


# Threads.


def in_threads(work, count: int) -> None:
    """Run ``work(n)`` in several threads at once; the first error is raised here."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(n: int) -> None:
        start.wait()
        try:
            work(n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_threads_do_not_disturb_each_other(bert, engine):
    texts = [TEXTS, TEXTS[::-1], [text.upper() for text in TEXTS]]
    options = {"engine": engine, **ENGINES[engine]}
    expected = [[e.scores for e in bert.explain(row, **options)] for row in texts]
    before = snapshot(bert.model)

    def work(n: int) -> None:
        for _ in range(8):
            for explanation, scores in zip(bert.explain_iter(texts[n], **options), expected[n], strict=True):
                assert torch.equal(explanation.scores, scores)

    in_threads(work, 3)
    assert same(before, bert.model)


def test_threads_may_share_a_tokenizer_that_truncates(bert):
    long = "a good film, " * 60

    def work(n: int) -> None:
        for _ in range(15):
            if n % 2:
                assert len(bert.explain(long, truncate=True, bias="none", engine="adjoint")) == 64
            else:
                assert len(bert.explain("why?", bias="none", engine="adjoint")) == 4

    with pytest.warns(UserWarning, match="was cut"):
        in_threads(work, 4)
