"""Metrics beside a second implementation: the definitions once more from the model alone, captum's, scikit-learn's."""

from __future__ import annotations

import json
import math

import evaluation_samples
import models
import numpy as np
import pytest
import torch
from captum.metrics import infidelity as captum_infidelity
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import auc, f1_score, precision_recall_curve

from decompx_fast import DecompX
from decompx_fast.errors import InputError, OptionError
from decompx_fast.evaluation import evaluate
from decompx_fast.evaluation.bootstrap import bootstrap_means, estimate
from decompx_fast.evaluation.classifier import Classifier
from decompx_fast.evaluation.data import read_dataset
from decompx_fast.evaluation.masking import Perturbation, absent_tokens
from decompx_fast.evaluation.measures import infidelity
from decompx_fast.evaluation.method import Problem
from decompx_fast.evaluation.metrics import DESIGNS
from decompx_fast.evaluation.outcomes import Outcomes
from decompx_fast.evaluation.plausibility import auprc, iou_f1, marked_tokens, token_f1
from decompx_fast.evaluation.rationales import FOLDS, PENALTY, folds_of

NAMES = (
    "log-odds,flip-fraction,flip-first,monotonicity,infidelity,comprehensiveness,sufficiency,aopc,aopc-least,accuracy,"
    "accuracy-least,prediction-performance"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return evaluation_samples.save_classifier(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def rows(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    data = evaluation_samples.write_texts(out / "texts.csv", 16)
    evaluate(data, folder, out=out / "run", methods="occlusion,saliency-l2", metrics=NAMES)
    import pyarrow.parquet

    return pyarrow.parquet.read_table(out / "run" / "results.parquet").to_pylist()


class Model:
    """What the classifier says about tokens, one text at a time."""

    def __init__(self, folder: str) -> None:
        self.explainer = DecompX.from_pretrained(folder)
        self.mask = self.explainer.tokenizer.mask_token

    def logits(self, tokens: list[str]) -> torch.Tensor:
        ids = torch.tensor([self.explainer.tokenizer.convert_tokens_to_ids(tokens)])
        return models.logits_of(self.explainer.model, ids)[0].double()

    def text(self, row: dict) -> list[str]:
        return [token for token, special in zip(row["tokens"], row["special"], strict=True) if not special]

    def probability(self, tokens: list[str], target: int) -> float:
        return float(self.logits(tokens).softmax(-1)[target])


def by_importance(row: dict) -> list[int]:
    places = [k for k, special in enumerate(row["special"]) if not special]
    return sorted(places, key=lambda k: -row["scores"][k])


@pytest.mark.slow
def test_measures_are_what_the_model_says_one_text_at_a_time(folder, rows):
    model, flipped = Model(folder), 0
    for row in rows:
        tokens, target, order = row["tokens"], row["predicted"], by_importance(row)
        full = model.probability(tokens, target)

        def masked(gone, tokens=tokens):
            return [model.mask if k in gone else token for k, token in enumerate(tokens)]

        def removed(gone, tokens=tokens):
            return [token for k, token in enumerate(tokens) if k not in gone]

        # Serrano and Smith: tokens leave one by one until the decision is another.
        fraction = 1.0
        for count in range(1, len(order) + 1):
            if model.logits(removed(order[:count])).argmax() != target:
                fraction = count / len(order)
                break
        assert row["flip-fraction"] == fraction
        assert row["flip-first"] == (model.logits(removed(order[:1])).argmax() != target)
        flipped += fraction < 1

        # AIX360: from the base values, features come back in ascending order.
        base = masked(order)
        probabilities = [model.probability(base, target)]
        for place in reversed(order):
            base[place] = tokens[place]
            probabilities.append(model.probability(base, target))
        rises = np.diff(probabilities)
        if np.abs(rises).min() > 1e-7:  # float32: a smaller step may round either way
            assert row["monotonicity"] == pytest.approx((rises >= 0).mean())
            assert (row["monotonicity"] == 1) == bool(np.all(rises >= 0))

        counts = [max(1, math.floor(level * len(order) / 10 + 0.5)) for level in range(1, 10)]
        odds = [math.log(model.probability(masked(order[:count]), target) / full) for count in counts]
        assert row["log-odds"] == pytest.approx(np.mean(odds), abs=1e-5)
        bins = [max(1, math.floor(percent * len(order) / 100 + 0.5)) for percent in (1, 5, 10, 20, 50)]
        drops = [full - model.probability(removed(order[:count]), target) for count in bins]
        assert row["comprehensiveness"] == pytest.approx(np.mean(drops), abs=1e-6)
        drops = [full - model.probability(removed(order[count:]), target) for count in bins]
        assert row["sufficiency"] == pytest.approx(np.mean(drops), abs=1e-6)
        for name, chosen in (("", order), ("-least", order[::-1])):
            said = [model.logits(masked(chosen[:count])) for count in counts]
            drops = [full - float(logits.softmax(-1)[target]) for logits in said]
            assert row[f"aopc{name}"] == pytest.approx(np.mean(drops), abs=1e-6)
            right = np.mean([int(logits.argmax()) == row["label"] for logits in said])
            assert row[f"accuracy{name}"] == pytest.approx(right)
    assert flipped > 5


@pytest.mark.slow
def test_prediction_performance_is_that_of_scikit_learns_classifier(folder, rows):
    """A logistic regression on the mean of the last layer's states over the rationale alone, trained on other folds."""
    model = Model(folder)
    for name in ("occlusion", "saliency-l2"):
        found = [row for row in rows if row["method"] == name]
        states, labels = [], np.array([row["label"] for row in found])
        for row in found:
            order = by_importance(row)
            gone = order[max(1, math.floor(len(order) / 5 + 0.5)) :]
            kept = [token for k, token in enumerate(row["tokens"]) if k not in gone]
            ids = torch.tensor([model.explainer.tokenizer.convert_tokens_to_ids(kept)])
            with torch.no_grad():
                output = model.explainer.model(ids, output_hidden_states=True)
            states.append(output.hidden_states[-1][0].mean(0).double().numpy())
        states, folds = np.stack(states), folds_of(np.arange(len(found)), seed=0)
        for fold in range(FOLDS):
            learnt, asked = folds != fold, folds == fold
            scaled = (states - states[learnt].mean(0)) / states[learnt].std(0, ddof=1)
            # Ours has a vector of weights for each of the two classes, opposite ones, whose squares are half of those
            # of their difference, which scikit-learn has; and ours is of the mean loss, scikit-learn's of the sum.
            inverse = 2 / (PENALTY * learnt.sum())
            other = LogisticRegression(C=inverse, max_iter=5000, tol=1e-9).fit(scaled[learnt], labels[learnt])
            sure = np.abs(other.decision_function(scaled[asked])) > 1e-2
            expected = (other.predict(scaled[asked]) == labels[asked])[sure]
            own = np.array([row["prediction-performance"] for row in found])[asked][sure]
            np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("scale", [1.0, -3.0])
def test_infidelity_is_captums(scale):
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(7, 7, generator=draw, dtype=torch.float64)
    scores = scale * torch.randn(7, generator=draw, dtype=torch.float64)
    absent = torch.rand(30, 7, generator=draw) > 0.5

    def logit(kept):
        return (kept @ weight).tanh().sum(-1)

    whole = torch.ones(1, 7, dtype=torch.float64)
    expected = captum_infidelity(
        logit,
        lambda inputs: (absent.double(), inputs - absent.double()),
        whole,
        scores[None],
        n_perturb_samples=30,
        normalize=True,
    )
    drops = logit(whole) - logit(whole - absent.double())
    assert infidelity(scores, absent, drops) == pytest.approx(expected.item(), rel=1e-12)
    assert infidelity(torch.zeros(7), absent, drops) == pytest.approx(float(drops.square().mean()))


def test_infidelity_of_a_run_is_of_random_masks(folder, rows):
    """The same sets, with what the model says of each alone."""
    model = Model(folder)
    what = Perturbation("mask-random", "mask", DESIGNS["random"])
    for row in rows[:4]:
        encoded = Classifier(model.explainer).encode([" ".join(model.text(row))])[0]
        asked = Problem(model.explainer.model, model.explainer.tokenizer, [encoded], [0])
        absent = absent_tokens(encoded, row["order"], what, asked.generator(0, "mask-random"))
        texts = [[model.mask if gone else t for t, gone in zip(row["tokens"], one, strict=True)] for one in absent]
        full = model.logits(row["tokens"])[row["predicted"]]
        drops = torch.stack([full - model.logits(text)[row["predicted"]] for text in texts])
        assert absent.sum(1).unique().numel() > 2
        assert row["infidelity"] == pytest.approx(infidelity(torch.tensor(row["scores"]), absent, drops), abs=1e-6)


# --- plausibility --------------------------------------------------------------------------------------


def marked_outcomes(scores, marks) -> Outcomes:
    orders = [sorted(range(len(row)), key=lambda k, row=row: -row[k]) for row in scores]
    empty = np.zeros(0)
    rationales = [None if one is None else np.array(one) for one in marks]
    return Outcomes(None, empty.astype(int), empty, {}, {}, orders=orders, rationales=rationales)


@st.composite
def scored_and_marked(draw):
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    scores = [draw(st.permutations(range(n))) for n in lengths]
    marks = [draw(st.lists(st.booleans(), min_size=n, max_size=n)) for n in lengths]
    marks[0][draw(st.integers(0, lengths[0] - 1))] = True
    return scores, marks


@given(scored_and_marked())
def test_plausibility_is_scikit_learns_and_erasers(given_texts):
    scores, marks = given_texts
    found = marked_outcomes(scores, marks)
    part = np.mean([np.mean(one) for one in marks if any(one)])
    rows = zip(scores, marks, token_f1(found)[:, 0], iou_f1(found)[:, 0], auprc(found)[:, 0], strict=True)
    for row, marked, token, iou, area in rows:
        if not any(marked):
            assert np.isnan([token, iou, area]).all()
            continue
        k = max(1, math.floor(part * len(row) + 0.5))
        predicted = [score >= len(row) - k for score in row]
        assert token == pytest.approx(f1_score(marked, predicted))
        precision, recall, _ = precision_recall_curve(marked, row)
        assert area == pytest.approx(auc(recall, precision))

        def spans(flags):
            text = "".join("x" if flag else " " for flag in flags)
            ends = [n for n in range(1, len(text) + 1) if text[n - 1] == "x" and text[n : n + 1] != "x"]
            return [set(range(text.rfind(" ", 0, end) + 1, end)) for end in ends]

        one, other = spans(predicted), spans(marked)
        hits = sum(any(len(a & b) / len(a | b) >= 0.5 for b in other) for a in one)
        p, r = hits / len(one), hits / len(other)
        assert iou == pytest.approx(2 * p * r / (p + r) if hits else 0.0)


def test_tokens_are_marked_by_their_characters():
    spans = [None, (0, 0, 3), (0, 4, 8), (1, 0, 3), None]
    assert marked_tokens(spans, [(0, 3, 5)]) == [False, False, True, False, False]
    assert marked_tokens(spans, [(1, 2, 9)]) == [False, False, False, True, False]


def test_texts_without_marks_do_not_count():
    values = np.array([[1.0, 5.0], [np.nan, 7.0], [3.0, 9.0]])
    means = bootstrap_means(values, seed=0, resamples=400)
    assert estimate(values[:, 0], means[:, 0]).mean == 2.0
    assert set(np.unique(means[~np.isnan(means[:, 0]), 0])) <= {1.0, 3.0, 2.0, 5 / 3, 7 / 3}


def test_rationales_are_read_and_measured(folder, tmp_path):
    lines = [f'{{"text": "{n} a dull film", "label": {n % 2}, "rationale": [[2, 8]]}}' for n in range(12)]
    lines.append('{"text": "a good film", "label": 1}')
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = evaluate(path, folder, out=tmp_path / "out", methods="occlusion", metrics="auprc,token-f1,aopc")
    assert 0 < found.methods["occlusion"].estimates["auprc"].mean <= 1
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["methods"]["occlusion"]["estimates"]["token-f1"]
    pair = tmp_path / "pair.csv"
    pair.write_text('text,second,rationale\na dull film,a mess,"[[1, 2, 6]]"\n', encoding="utf-8")
    assert read_dataset(pair, ("a", "b"), pair_column="second").rationales == (((1, 2, 6),),)


@pytest.mark.parametrize("cell", ["[[0, 99]]", "[[3, 3]]", "nonsense", "[1, 2]", "[[0, 1, 2]]"])
def test_a_rationale_that_is_no_part_of_the_text_is_refused(tmp_path, cell):
    path = tmp_path / "x.csv"
    path.write_text(f'text,rationale\na film,"{cell}"\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2 of .*column 'rationale': give \[start, end\] for each marked part"):
        read_dataset(path, ("a", "b"))


def test_metrics_of_rationales_need_some(folder, tmp_path):
    data = evaluation_samples.write_texts(tmp_path / "texts.csv", 12)
    with pytest.raises(InputError, match="'auprc' needs rationales.*no column 'rationale'"):
        evaluate(data, folder, out=tmp_path / "out", methods="random", metrics="auprc")


def test_ways_of_deleting_stand_side_by_side(folder, tmp_path):
    data = evaluation_samples.write_texts(tmp_path / "texts.csv", 20)
    options = {"methods": "occlusion", "metrics": "aopc"}
    found = evaluate(data, folder, out=tmp_path / "out", deletion="mask,pad,remove", **options)
    alone = evaluate(data, folder, out=tmp_path / "mask", **options)
    estimates = found.methods["occlusion"].estimates
    assert list(estimates) == ["aopc-mask", "aopc-pad", "aopc-remove"]
    # Float32: on some processors the last digits of an input depend on how many are computed together.
    for found_one, alone_one in zip(estimates["aopc-mask"], alone.methods["occlusion"].estimates["aopc"], strict=True):
        assert found_one == pytest.approx(alone_one, abs=1e-6)
    assert len({round(one.mean, 9) for one in estimates.values()}) == 3
    assert (tmp_path / "out" / "aopc-pad.svg").exists()
    for wrong in ("blank", "mask,mask", ""):
        with pytest.raises(OptionError, match="deletion=.*use one or more of mask, pad, remove, each once"):
            evaluate(data, folder, out=tmp_path / "no", methods="random", deletion=wrong)
