"""Similarity of two texts: scores of pairs against a brute-force decomposition, their sum against the model itself."""

from __future__ import annotations

import functools

import models
import naive
import numpy as np
import pytest
import torch
from models import randomized
from refusals import refuses
from test_sentence import bert
from torch import nn

from decompx_fast import DecompX, DecompXConfig
from decompx_fast.engines.forward import run as forward
from decompx_fast.errors import NumericalError, OptionError
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.sentence import EmbeddingStep, SentenceEncoder
from decompx_fast.result.pair import BIAS_TOKEN

A, B = [5, 17, 33, 8, 9, 41], [7, 17, 52, 6]
RULES = ("absdot", "abssim", "norm", "equal", "cls", "dot", "bias_token", "none")
LINEAR = ("equal", "cls", "bias_token", "none")


@functools.cache
def encoder(pooling: str = "mean", *, dense: bool = False) -> SentenceEncoder:
    step = EmbeddingStep(randomized(nn.Linear(12, 5).double(), 3), nn.Tanh())
    return SentenceEncoder(bert(), pooling, steps=[step] if dense else [])


def vector(model: SentenceEncoder, ids: list[int]) -> np.ndarray:
    """By transformers' own model and torch."""
    with torch.no_grad():
        states = model.encoder(input_ids=torch.tensor([ids]))[0][0]
        x = {"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1]}[model.pooling]
        for step in model.steps:
            x = step.activation(step.linear(x))
    return x.numpy()


def parts(model: SentenceEncoder, ids: list[int], rule: str, **options) -> np.ndarray:
    """Each token's part of the vector, ``[k, d]``, by the decomposition in NumPy."""
    config = DecompXConfig(bias=rule, **options)
    return naive.decompose(linearize(model, {"input_ids": torch.tensor([ids])}), config)[0]


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


@pytest.mark.parametrize("dense", [False, True], ids=["plain", "dense"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize("rule", RULES)
def test_scores_are_those_of_a_brute_force_decomposition(rule, pooling, dense):
    model = encoder(pooling, dense=dense)
    explainer = DecompX(model, bias=rule)
    u, v, e_a, e_b = parts(model, A, rule), parts(model, B, rule), vector(model, A), vector(model, B)
    lengths = np.linalg.norm(e_a) * np.linalg.norm(e_b)
    for engine in ("auto", "reference", "forward", *(["adjoint"] if rule in LINEAR else [])):
        both = explainer.similarity(A, B, engine=engine)
        assert np.abs(both.scores.numpy() - u @ v.T / lengths).max() < 1e-11
        assert both.scores.shape == (6 + (rule == "bias_token"), 4 + (rule == "bias_token"))
        assert abs(both.value - cosine(e_a, e_b)) < 1e-13
        assert abs(both.completeness_error - abs((u @ v.T).sum() / lengths - both.value)) < 1e-11
        if rule != "none":
            assert both.completeness_error < 1e-11
        a, b = (explainer.similarity(A, B, engine=engine, side=side) for side in "ab")
        assert np.abs(a.scores.numpy()[:, 0] - u @ e_b / lengths).max() < 1e-11
        assert np.abs(b.scores.numpy()[0] - e_a @ v.T / lengths).max() < 1e-11
        assert a.engines[1] is None and b.engines[0] is None
        assert a.value == both.value == b.value


@pytest.mark.parametrize("side", ["both", "a", "b"])
@pytest.mark.parametrize("normalized", [False, True])
def test_a_dot_is_without_the_lengths_that_the_model_does_not_divide_by(normalized, side):
    model = SentenceEncoder(encoder().encoder, "mean", normalized=normalized)
    dot = DecompX(model).similarity(A, B, measure="dot", side=side)
    e_a, e_b = vector(model, A), vector(model, B)
    expected = cosine(e_a, e_b) if normalized else float(e_a @ e_b)
    assert abs(dot.value - expected) < 1e-12 * abs(expected)
    assert dot.completeness_error < 1e-11 * abs(expected)
    if side == "a":
        u = parts(model, A, "absdot")
        of_cosine = u @ e_b / np.linalg.norm(e_a) / np.linalg.norm(e_b)
        assert np.allclose(dot.scores.numpy()[:, 0], of_cosine if normalized else u @ e_b, rtol=1e-10)


def test_swapped_sides_are_transposed():
    explainer = DecompX(encoder())
    one, other = explainer.similarity(A, B), explainer.similarity(B, A)
    assert torch.allclose(one.scores, other.scores.T, rtol=0, atol=1e-15)
    assert one.value == other.value
    half, mirrored = explainer.similarity(A, B, side="a"), explainer.similarity(B, A, side="b")
    assert torch.allclose(half.scores, mirrored.scores.T, rtol=0, atol=1e-15)


def test_texts_of_one_token():
    explainer = DecompX(encoder())
    found = explainer.similarity([5], [7])
    assert found.scores.shape == (1, 1)
    assert abs(found.scores.item() - found.value) < 1e-13
    assert abs(explainer.similarity([5], [5]).value - 1) < 1e-13


@pytest.mark.parametrize("left", [False, True])
def test_padding_is_no_source(left):
    explainer = DecompX(encoder("lasttoken" if left else "mean"))
    pad = [0, 0]
    ids = pad + A if left else A + pad
    mask = [0, 0] + [1] * 6 if left else [1] * 6 + [0, 0]
    padded = explainer.similarity({"input_ids": ids, "attention_mask": mask}, B)
    plain = explainer.similarity(A, B)
    assert torch.equal(padded.scores, plain.scores)


def test_words_as_sources_are_taken_apart_as_groups():
    model = SentenceEncoder(bert(vocab_size=models.WORD_PIECES), "mean")
    explainer = DecompX(model, models.word_piece())
    texts = ("an unbelievably good film", "not bad: gripping!")
    found = explainer.similarity(*texts, sources="word")
    assert found.a.tokens[1:-1] == ("an", "unbelievably", "good", "film")
    assert found.completeness_error < 1e-11
    encodings = [models.word_piece()(text, return_tensors="pt") for text in texts]
    sides = []
    for encoding in encodings:
        words = encoding.word_ids()
        groups, numbers = [], {}
        for n, word in enumerate(words):
            groups.append(numbers.setdefault((n, None) if word is None else word, len(numbers)))
        given = {"input_ids": encoding["input_ids"], "token_type_ids": encoding["token_type_ids"]}
        sides.append(naive.decompose(linearize(model, given), DecompXConfig(), groups)[0])
    scores = sides[0] @ sides[1].T
    # The sums of both vectors are the vectors, since the rule is complete.
    scores = scores / np.linalg.norm(sides[0].sum(0)) / np.linalg.norm(sides[1].sum(0))
    assert np.abs(found.scores.numpy() - scores).max() < 1e-11


@pytest.mark.parametrize("side", ["both", "a", "b"])
@pytest.mark.parametrize("rule", ["absdot", "bias_token"])
def test_many_passages_are_each_as_if_alone(rule, side):
    explainer = DecompX(encoder(), bias=rule)
    passages = [B, A, [5], list(range(5, 30))] * 5  # more than the vector has numbers
    found = explainer.similarity(A, passages, side=side)
    assert [one.metadata["input"] for one in found] == list(range(20))
    for one, passage in zip(found, passages, strict=True):
        alone = explainer.similarity(A, passage, side=side)
        assert torch.allclose(one.scores, alone.scores, rtol=0, atol=1e-13)
        assert abs(one.value - alone.value) < 1e-14


def test_the_query_is_computed_once(monkeypatch):
    import decompx_fast.calls.similarity as module

    lengths = []

    def counted(model, inputs, **options):
        lengths.append(inputs["input_ids"].shape[1])
        return linearize(model, inputs, **options)

    monkeypatch.setattr(module, "linearize", counted)
    explainer = DecompX(encoder())
    explainer.similarity(A, [B, B, B])
    assert lengths == [6, 4, 4, 4]
    lengths.clear()
    explainer.similarity(A, [B, B, B], side="a")
    assert lengths == [6]
    lengths.clear()
    explainer.similarity(A, [B, B], side="b", bias="none")
    assert lengths == [4, 4]


def test_one_side_by_a_linear_rule_is_one_pull_back(monkeypatch):
    import decompx_fast.engines.choose as choose

    asked = []
    own = choose.adjoint.attribute

    def counted(linearization, config, *, terms):
        asked.append(terms.count)
        return own(linearization, config, terms=terms)

    monkeypatch.setattr(choose.adjoint, "attribute", counted)
    found = DecompX(encoder()).similarity(A, B, side="a", bias="bias_token")
    assert found.engines == ("adjoint", None)
    assert asked == [1]


def test_the_biases_have_a_row_and_a_column():
    found = DecompX(encoder(), bias="bias_token").similarity(A, B)
    assert (found.a.tokens[-1], found.b.tokens[-1]) == (BIAS_TOKEN, BIAS_TOKEN)
    assert found.a.special[-1] and found.a.has_bias and found.a.token_ids == tuple(A)
    split = DecompX(encoder(), bias="bias_token", bias_token_split="absdot").similarity(A, B)
    assert split.scores.shape == (6, 4) and split.completeness_error < 1e-11


def test_without_biases_the_sum_is_not_the_value_and_this_is_said():
    found = DecompX(encoder(), bias="none").similarity(A, B)
    assert found.completeness_error > 1e-3
    assert "the biases, by design" in found.to_html() and "Left out" in found.to_html()


def test_the_released_variant_is_complete():
    found = DecompX(encoder(), variant="released").similarity(A, B)
    assert found.completeness_error < 1e-11


def test_a_vector_of_zeros_has_no_cosine():
    model = SentenceEncoder(bert(), "mean", steps=[EmbeddingStep(nn.Linear(12, 3, bias=False).double())])
    nn.init.zeros_(model.steps[0].linear.weight)
    explainer = DecompX(model)
    for side in ("both", "a", "b"):
        refuses(
            explainer.similarity, A, B, side=side, match=("vector of a is zero", "measure='dot'"), error=NumericalError
        )
        dot = explainer.similarity(A, B, side=side, measure="dot")
        assert dot.value == 0 and not dot.scores.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_are_compared(dtype):
    model = SentenceEncoder(bert().to(dtype), "mean")
    found = DecompX(model).similarity(A, B)
    assert found.scores.dtype == torch.float32
    assert found.completeness_error < 0.05  # the model's own rounding is in its value


def test_bad_input_is_named():
    explainer = DecompX(SentenceEncoder(bert(vocab_size=models.WORD_PIECES), "mean"), models.word_piece())
    for options, match in (
        ({"measure": "euclid"}, ("measure='euclid'", "'cos', 'dot'")),
        ({"side": "left"}, ("side='left'", "'both', 'a', 'b'")),
        ({"sources": "paragraph"}, ("sources='paragraph'", "'sentence'")),
        ({"head": False}, ("head=False", "head=True")),
        ({"stages": "encoder"}, ("stages=", "whole model")),
        ({"aggregation": "rollout", "head": False}, ("head=False",)),
        ({"engine": "adjoint"}, ("engine='adjoint' cannot answer",)),
        ({"mesure": "cos"}, ("did you mean 'measure'",)),
        ({"dtype": "int8"}, ("dtype='int8'",)),
    ):
        refuses(explainer.similarity, A, B, match=match, error=OptionError, **options)
    refuses(explainer.similarity, [A, B], B, match=("a is a list", "as a list in b"))
    refuses(explainer.similarity, A, "  ", match=("b: the input is an empty text",))
    refuses(explainer.similarity, "", B, match=("a: the input is an empty text",))
    refuses(explainer.similarity, A, [B, ""], match=("b: input 1 is an empty text",))
    refuses(explainer.similarity, ("one", "two"), B, match=("a holds a pair of texts",))
    refuses(explainer.similarity, A, [("one", "two")], match=("b holds a pair of texts",))
    refuses(explainer.similarity, None, B, match=("a: ",))
    refuses(explainer.similarity, A, [], match=("b: the list of texts is empty",))
    refuses(DecompX(encoder()).similarity, "text", B, match=("a: texts need a tokenizer",))
    refuses(explainer.similarity, [5] * 41, B, match=("a: the input has 41 tokens", "40"))


@pytest.mark.slow
def test_snippets_sum_to_the_cosine_in_float32(data_dir):
    """Fifty pairs of real text by the embedded encoder, with every complete rule.

    The signed shares of ``dot`` are large where dots cancel, so that float32 keeps fewer digits of their sums: it is
    computed in float64.
    """
    lines = (data_dir / "movie-snippets-heldout.tsv").read_text(encoding="utf-8").splitlines()[1:]
    snippets = [line.split("\t")[-1] for line in lines if len(line) < 160][:100]
    assert len(snippets) == 100
    explainer = DecompX.demo_encoder()
    with torch.no_grad():
        for n in range(50):
            a, b = snippets[2 * n], snippets[2 * n + 1]
            rule = RULES[n % 7]
            found = explainer.similarity(a, b, bias=rule, dtype="float64" if rule == "dot" else "float32")
            vectors = []
            for text in (a, b):
                encoding = explainer.tokenizer(text, return_tensors="pt")
                vectors.append(explainer.model.encoder(**encoding).last_hidden_state.mean(1)[0].double())
            own = torch.nn.functional.cosine_similarity(*vectors, dim=0).item()
            assert abs(found.value - own) < 1e-6
            assert abs(found.total - own) < 1e-5


def test_engines_share_numbers_with_the_forward_engine():
    """The vectors that a cosine is made of are the scores that an engine gives for all numbers of the vector."""
    model = encoder()
    u = forward.attribute(linearize(model, {"input_ids": torch.tensor([A])}), DecompXConfig()).scores[0]
    assert np.abs(u.numpy() - parts(model, A, "absdot")).max() < 1e-12
