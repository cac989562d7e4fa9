"""The metrics of faithfulness: by hand on tiny cases, and what must hold for all."""

from __future__ import annotations

import math

import models
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decompx_fast import DecompX
from decompx_fast.errors import InputError, NumericalError, OptionError
from decompx_fast.evaluation.bootstrap import bootstrap_means, estimate
from decompx_fast.evaluation.classifier import Classifier, batches_of_equal_length
from decompx_fast.evaluation.masking import Design, Perturbation, absent_tokens, count_of, importance_order
from decompx_fast.evaluation.method import Problem, get_method
from decompx_fast.evaluation.metrics import BINS, LEVELS, METRICS, by_deletion, get_metric, perturbations
from decompx_fast.evaluation.outcomes import Outcomes
from decompx_fast.evaluation.rationales import FOLDS, PENALTY, fit, folds_of, out_of_fold_correct
from decompx_fast.request.encoded import Encoded
from decompx_fast.request.versions import without_tokens

MASK = 99


def encoded(n: int = 6, *, special: tuple[int, ...] = (0, -1)) -> Encoded:
    """Tokens 10, 11, 12 ..., the first and the last special."""
    flags = [place in special or place - n in special for place in range(n)]
    inputs = {"input_ids": torch.arange(10, 10 + n), "token_type_ids": torch.arange(n) // 3}
    return Encoded(inputs, tuple(map(str, range(n))), (None,) * n, tuple(flags), ())


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- which tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("percent", "n", "expected"),
    [(10, 24, 2), (10, 25, 3), (10, 26, 3), (1, 28, 1), (90, 10, 9), (90, 3, 3), (50, 3, 2), (50, 1, 1), (20, 12, 2)],
)
def test_count_is_rounded_and_at_least_one(percent, n, expected):
    assert count_of(percent, n) == expected


def test_order_is_by_score_or_by_magnitude():
    scores = torch.tensor([9.0, 0.1, -0.5, 0.3, 0.2, -9.0], dtype=torch.float64)
    special = encoded().special
    assert importance_order(scores, special, signed=True, generator=generator()) == [3, 4, 1, 2]
    assert importance_order(scores, special, signed=False, generator=generator()) == [2, 3, 4, 1]


def test_ties_are_broken_by_the_generator():
    scores = torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0, 0.0], dtype=torch.float64)
    orders = [
        tuple(importance_order(scores, encoded().special, signed=True, generator=generator(s))) for s in range(50)
    ]
    assert {order[0] for order in orders} == {4}
    assert len(set(orders)) == 6  # every order of three tokens
    again = tuple(importance_order(scores, encoded().special, signed=True, generator=generator(7)))
    assert again == orders[7]


def test_a_score_that_is_no_number_is_named():
    scores = torch.tensor([0.0, 1.0, math.nan, 1.0, 2.0, 0.0], dtype=torch.float64)
    with pytest.raises(NumericalError, match="NaN.*token 2"):
        importance_order(scores, encoded().special, signed=True, generator=generator())


def test_inputs_by_hand():
    order = [3, 4, 1, 2]  # of the tokens 10 [11 12 13 14] 15; half of them are two

    def ids(deletion, of, action="delete"):
        what = Perturbation("x", deletion, Design(action, of, (50,)))
        (absent,) = absent_tokens(encoded(), order, what, generator())
        inputs = without_tokens(encoded().inputs, absent, MASK if deletion == "mask" else None)
        return inputs["input_ids"].tolist(), inputs["token_type_ids"].tolist()

    assert ids("mask", "most") == ([10, 11, 12, MASK, MASK, 15], [0, 0, 0, 1, 1, 1])
    assert ids("mask", "least") == ([10, MASK, MASK, 13, 14, 15], [0, 0, 0, 1, 1, 1])
    assert ids("remove", "most") == ([10, 11, 12, 15], [0, 0, 0, 1])
    assert ids("remove", "most", "keep") == ([10, 13, 14, 15], [0, 1, 1, 1])


@st.composite
def scored_texts(draw):
    n = draw(st.integers(3, 40))
    special = draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    # Few values, so that there are ties.
    scores = draw(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=n, max_size=n))
    return encoded(n, special=tuple(special)), torch.tensor(scores, dtype=torch.float64)


@given(scored_texts(), st.booleans(), st.integers(0, 5))
def test_masks_are_nested_and_leave_special_tokens_alone(text_and_scores, signed, seed):
    text, scores = text_and_scores
    order = importance_order(scores, text.special, signed=signed, generator=generator(seed))
    assert sorted(order) == [place for place, special in enumerate(text.special) if not special]
    values = scores if signed else scores.abs()
    assert all(values[a] >= values[b] for a, b in zip(order, order[1:], strict=False))
    for of in ("most", "least"):
        before: set[int] = set()
        what = Perturbation("x", "mask", Design("delete", of, LEVELS))
        for percent, absent in zip(LEVELS, absent_tokens(text, order, what, generator()), strict=True):
            changed = set(absent.nonzero().flatten().tolist())
            assert len(changed) == count_of(percent, len(order))
            assert before <= changed <= set(order)
            before = changed


@given(scored_texts())
def test_removed_and_kept_are_the_two_halves_of_a_text(text_and_scores):
    text, scores = text_and_scores
    order = importance_order(scores, text.special, signed=True, generator=generator())
    removed, kept = (
        absent_tokens(text, order, Perturbation("x", "remove", Design(action, "most", BINS)), generator())
        for action in ("delete", "keep")
    )
    special = torch.tensor(text.special)
    assert torch.equal(removed ^ kept, (~special).expand_as(kept))


def test_a_removal_leaves_one_token_of_a_text_without_special_ones():
    what = Perturbation("x", "remove", Design("delete", "most", (50, 100)))
    absent = absent_tokens(encoded(4, special=()), [2, 0, 3, 1], what, generator())
    assert absent.tolist() == [[True, False, True, False], [True, False, True, True]]


def test_random_sets_depend_on_no_order():
    what = Perturbation("x", "mask", Design("delete", "random", (50, 50, 50)))
    orders = ([1, 2, 3, 4, 5], [5, 1, 4, 2, 3])
    first, second = (absent_tokens(encoded(9), order, what, generator()) for order in orders)
    assert torch.equal(first, second) and first.sum(1).tolist() == [3, 3, 3] and not torch.equal(first[0], first[1])


# --- the metrics ---------------------------------------------------------------------------------------


def outcomes() -> Outcomes:
    """Two texts; the first is predicted rightly, the second wrongly."""
    nine = np.ones(9)
    masked = np.stack([0.9 - 0.1 * np.arange(9), 0.5 * nine])  # 0.9, 0.8 ... 0.1
    predicted = np.stack([np.array([1, 1, 1, 1, 0, 0, 0, 0, 0]), np.array([1, 1, 1, 1, 1, 1, 0, 0, 0])])
    return Outcomes(
        labels=np.array([1, 0]),
        predicted=np.array([1, 0]),
        probability=np.array([0.9, 0.6]),
        perturbed_probability={
            "mask-most": masked,
            "mask-least": np.stack([0.8 * nine, 0.7 * nine]),
            "remove-bins": np.array([[0.9, 0.8, 0.7, 0.6, 0.5], [0.6] * 5]),
            "remove-keep": np.array([[0.4, 0.5, 0.6, 0.7, 0.8], [0.7] * 5]),
        },
        perturbed_predicted={
            "mask-most": predicted,
            "mask-least": np.stack([np.ones(9, dtype=int), np.zeros(9, dtype=int)]),
        },
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aopc", [0.4, 0.1]),  # 0.9 less the mean of 0.9 ... 0.1; 0.6 less 0.5
        ("aopc-least", [0.1, -0.1]),
        ("accuracy", [4 / 9, 3 / 9]),
        ("accuracy-least", [1.0, 1.0]),
        ("comprehensiveness", [0.2, 0.0]),
        ("sufficiency", [0.3, -0.1]),
    ],
)
def test_metric_by_hand(name, expected):
    np.testing.assert_allclose(get_metric(name).levels(outcomes()).mean(1), expected, atol=1e-12)


def test_metrics_are_had_by_each_deletion_side_by_side():
    found = by_deletion([METRICS["aopc"], METRICS["token-f1"]], ["pad", "remove"])
    assert [one.name for one in found] == ["aopc-pad", "aopc-remove", "token-f1"]
    assert [one.perturbation for one in found] == ["pad-most", "remove-most", ""]
    assert [one.deletion for one in perturbations(found, pairs=False)] == ["pad", "remove"]


def test_every_metric_says_what_it_is():
    for name, metric in METRICS.items():
        assert metric.name == name
        assert "Source" in metric.about or "As " in metric.about
    with pytest.raises(OptionError, match="unknown metric 'aopk': use one of aopc, accuracy"):
        get_metric("aopk")


def test_only_what_the_metrics_read_is_computed():
    assert [one.name for one in perturbations([METRICS["aopc"], METRICS["accuracy"]], pairs=False)] == ["mask-most"]
    (rationale,) = perturbations([METRICS["prediction-performance"]], pairs=False)
    assert rationale.design.percents == (20,)
    (rationale,) = perturbations([METRICS["prediction-performance"]], pairs=True)
    assert rationale.design.percents == (40,)


# --- the classifier on rationales ----------------------------------------------------------------------


def test_logistic_regression_is_at_its_minimum():
    features = torch.randn(60, 4, generator=generator(), dtype=torch.float64)
    targets = (features[:, 0] + torch.randn(60, generator=generator(1), dtype=torch.float64) > 0).long()
    weight, bias = fit(features, targets, 2)
    x, w = features.numpy(), weight.numpy()
    logits = x @ w + bias.numpy()
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    error = (p - np.eye(2)[targets.numpy()]) / 60
    # LBFGS stops where no component of the gradient is above 1e-7, or nothing changes by more than 1e-9.
    np.testing.assert_allclose(x.T @ error + PENALTY * w, 0, atol=1e-5)
    np.testing.assert_allclose(error.sum(0), 0, atol=1e-5)


def test_rationales_that_tell_the_label_are_learnt_and_others_not():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 300)
    noise = draw.normal(size=(300, 8)).astype(np.float32)
    telling = noise.copy()
    telling[np.arange(300), labels] += 8
    assert out_of_fold_correct(telling, labels, seed=0).mean() > 0.98
    # By chance a third is right; the standard error of 300 texts is 0.027.
    assert abs(out_of_fold_correct(noise, labels, seed=0).mean() - 1 / 3) < 0.1


def test_too_few_texts_to_train_on_are_refused():
    with pytest.raises(InputError, match="at least 10 texts.*there are 9"):
        out_of_fold_correct(np.zeros((9, 2), dtype=np.float32), np.zeros(9, dtype=np.int64), seed=0)


# --- the bootstrap -------------------------------------------------------------------------------------


def test_interval_covers_the_true_mean_as_often_as_it_says():
    draw, covered = np.random.default_rng(0), 0
    for n in range(300):
        values = draw.normal(3, 2, size=60)
        _, low, high = estimate(values, bootstrap_means(values[:, None], seed=n, resamples=500)[:, 0])
        covered += low < 3 < high
    # 95 % of 300 is 285, with a standard error of 4; a percentile interval of 60 values is a little too short.
    assert 265 <= covered <= 297


def test_interval_is_that_of_the_normal_distribution_for_many_values():
    values = np.random.default_rng(0).normal(size=2000)
    mean, low, high = estimate(values, bootstrap_means(values[:, None], seed=0)[:, 0])
    width = 1.96 * values.std() / math.sqrt(2000)
    assert mean == pytest.approx(values.mean(), abs=1e-12)
    assert (mean - low, high - mean) == pytest.approx((width, width), rel=0.1)


def test_resamples_are_the_same_for_all_columns_and_for_a_seed():
    values = np.random.default_rng(0).normal(size=(50, 1))
    means = bootstrap_means(np.concatenate([values, values + 1], 1), seed=3, resamples=150)
    assert means.shape == (150, 2)
    np.testing.assert_allclose(means[:, 1] - means[:, 0], 1)
    # The same draws; products of another shape may round differently.
    np.testing.assert_allclose(bootstrap_means(values, seed=3, resamples=150), means[:, :1], atol=1e-12)
    assert not np.allclose(bootstrap_means(values, seed=4, resamples=150), means[:, :1], atol=1e-3)


# --- the model and the marks ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def explainer() -> DecompX:
    return DecompX(models.classifier(vocab=models.WORD_PIECES, positions=64, labels=3), models.word_piece())


def test_predictions_are_those_of_the_model(explainer):
    classifier = Classifier(explainer)
    texts = classifier.encode([*models.TEXTS, ("a pair", "of texts")])
    with models.unchanged(explainer.model):
        found = classifier.predict([text.inputs for text in texts])
    for text, row, state in zip(texts, found.log_probabilities, found.states, strict=True):
        with torch.no_grad():
            inputs = {name: values[None] for name, values in text.inputs.items()}
            output = explainer.model(**inputs, output_hidden_states=True)
        # The same sums in batches of another size: rounding of float64, and of float32 for the states.
        torch.testing.assert_close(row, output.logits[0].softmax(-1).log(), rtol=0, atol=1e-12)
        torch.testing.assert_close(state, output.hidden_states[-1][0].mean(0).float(), rtol=1e-6, atol=1e-6)


def test_batches_hold_equally_long_inputs_and_no_more_than_they_may():
    lengths = [3, 5, 3, 3, 9, 5]
    batches = list(batches_of_equal_length(lengths, positions=6))
    assert batches == [[0, 2], [3], [1], [5], [4]]


def test_digest_changes_with_the_weights():
    first, second = (
        Classifier(DecompX(models.classifier(vocab=models.WORD_PIECES, seed=seed), models.word_piece())).sha256()
        for seed in (0, 1)
    )
    again = Classifier(DecompX(models.classifier(vocab=models.WORD_PIECES, seed=0), models.word_piece())).sha256()
    assert first == again != second


def test_models_that_cannot_be_evaluated_are_refused():
    regression = models.classifier(vocab=models.WORD_PIECES, labels=1)
    with pytest.raises(InputError, match="one of regression"):
        Classifier(DecompX(regression, models.word_piece()))
    with pytest.raises(InputError, match="no tokenizer"):
        Classifier(DecompX(models.classifier()))

    class WithoutMask:
        mask_token_id = None

        def __call__(self):
            raise NotImplementedError

    with pytest.raises(InputError, match="no mask token.*set tokenizer.mask_token"):
        Classifier(DecompX(models.classifier(), WithoutMask()))


def problem(explainer: DecompX, seed: int = 0) -> Problem:
    inputs = Classifier(explainer).encode(models.TEXTS)
    return Problem(explainer.model, explainer.tokenizer, inputs, [2, 0, 1, 1, 0], seed)


def test_occlusion_is_what_the_model_loses_without_the_token(explainer):
    asked = problem(explainer)
    for text, target, scores in zip(asked.inputs, asked.classes, get_method("occlusion").score(asked), strict=True):
        ids = text.inputs["input_ids"]
        expected = torch.zeros(len(ids), dtype=torch.float64)
        for place in range(1, len(ids) - 1):
            masked = ids.clone()
            masked[place] = explainer.tokenizer.mask_token_id
            logits = models.logits_of(explainer.model, torch.stack([ids, masked]))
            expected[place] = logits.log_softmax(-1)[0, target] - logits.log_softmax(-1)[1, target]
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-12)


def test_random_scores_depend_on_text_and_seed_alone(explainer):
    random = get_method("random")
    first, again, other = (random.score(problem(explainer, seed)) for seed in (0, 0, 1))
    for n, text in enumerate(problem(explainer).inputs):
        assert first[n].shape == (len(text),)
        assert torch.equal(first[n], again[n])
        assert not torch.equal(first[n], other[n])
        assert 0 <= first[n].min() and first[n].max() < 1
    assert first[0][0] != first[1][0]


# --- equal texts ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), min_size=20, max_size=200).filter(lambda groups: len(set(groups)) >= 10))
def test_equal_texts_are_in_one_fold_and_folds_are_of_like_size(groups):
    fold = folds_of(np.array(groups), seed=3)
    assert all(len(set(fold[np.array(groups) == group])) == 1 for group in groups)
    sizes = np.bincount(fold, minlength=FOLDS)
    assert sizes.max() - sizes.min() <= max(map(groups.count, groups))


def test_noise_stays_noise_when_every_text_is_there_three_times():
    draw = np.random.default_rng(0)
    states, labels = draw.normal(size=(60, 200)).astype(np.float32), draw.integers(0, 2, 60)
    tripled, groups = np.repeat(states, 3, 0), np.repeat(np.arange(60), 3)
    leaked = out_of_fold_correct(tripled, np.repeat(labels, 3), seed=0)
    apart = out_of_fold_correct(tripled, np.repeat(labels, 3), seed=0, groups=groups)
    assert leaked.mean() > 0.9  # what the texts' copies tell
    assert abs(apart.mean() - 0.5) < 0.2


def test_bootstrap_of_repeated_texts_is_that_of_the_texts():
    values = np.random.default_rng(1).normal(size=(40, 2))
    once = bootstrap_means(values, seed=5, resamples=300)
    thrice = bootstrap_means(np.tile(values, (3, 1)), seed=5, resamples=300, groups=np.tile(np.arange(40), 3))
    np.testing.assert_allclose(thrice, once, atol=1e-12)
    # Of groups of two sizes: the mean of a resample is over its texts, whose number varies.
    groups, values = np.array([0, 1, 1, 1]), np.array([[0.0], [1.0], [1.0], [1.0]])
    assert set(bootstrap_means(values, seed=0, resamples=50, groups=groups).ravel()) == {0.0, 0.75, 1.0}


def test_too_few_different_texts_are_refused():
    with pytest.raises(InputError, match="at least 10 texts that differ to train on, and there are 9"):
        folds_of(np.repeat(np.arange(9), 4), seed=0)
