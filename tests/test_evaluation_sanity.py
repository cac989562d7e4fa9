"""Sanity checks: against captum and SciPy, and methods that are known to pass or fail."""

from __future__ import annotations

import copy
import dataclasses

import evaluation_samples
import models
import numpy as np
import pytest
import torch
from captum.metrics import sensitivity_max
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from decompx_fast import DecompX
from decompx_fast.errors import InputError, OptionError
from decompx_fast.evaluation import Method, evaluate
from decompx_fast.evaluation import sanity as checks
from decompx_fast.evaluation.classifier import Classifier
from decompx_fast.evaluation.method import Problem, get_method

TEXTS = ["the film is not very good", "a dull plot and a slow end", "warm acting ."]


@pytest.fixture(scope="module")
def explainer() -> DecompX:
    return DecompX(models.classifier(vocab=models.WORD_PIECES, positions=64, dtype=torch.float64), models.word_piece())


def trial(explainer: DecompX, method: Method) -> checks.Trial:
    classifier = Classifier(explainer)
    problem = Problem(explainer.model, explainer.tokenizer, classifier.encode(TEXTS), [0, 1, 1])
    return checks.Trial(method, problem, method.score(problem), lambda text: classifier.encode([text])[0])


LENGTHS = Method("lengths", "", False, "", lambda problem: [torch.arange(len(one)).double() for one in problem.inputs])


def test_scores_that_read_no_model_fail_randomization_and_those_of_it_do_not(explainer) -> None:
    with models.unchanged(explainer.model):
        for check in (checks.cascading, checks.independent):
            assert check(trial(explainer, LENGTHS)) == [[pytest.approx(1.0)] * 4] * 3  # head, two layers, embeddings
        found = np.array(checks.cascading(trial(explainer, get_method("occlusion"))))
        assert found.shape == (3, 4) and abs(found[:, -1].mean()) < 0.9 and not np.allclose(found, 1)


def test_weight_groups_go_from_the_embeddings_to_the_head(explainer) -> None:
    groups = checks.weight_groups(explainer.model)
    names = {id(parameter): name for name, parameter in explainer.model.named_parameters()}
    firsts = [names[id(group[0])] for group in groups]
    assert "embeddings" in firsts[0] and ".0." in firsts[1] and ".1." in firsts[2]
    assert sum(map(len, groups)) == len(names)


def test_shuffled_weights_are_the_same_numbers(explainer) -> None:
    model = copy.deepcopy(explainer.model)
    group = checks.weight_groups(model)[1]
    before = [parameter.clone() for parameter in group]
    checks.shuffle(group, 0, 0)
    for old, new in zip(before, group, strict=True):
        assert torch.equal(old.flatten().sort().values, new.flatten().sort().values)
    assert not torch.equal(before[0], group[0])


def test_a_shift_that_a_bias_undoes_changes_gradient_times_input_and_not_decompx(explainer) -> None:
    with models.unchanged(explainer.model):
        invariant = np.array(checks.input_invariance(trial(explainer, get_method("decompx-no-bias"))))
        changed = np.array(checks.input_invariance(trial(explainer, get_method("gradient-x-input"))))
    assert invariant.min() > 1 - 1e-9
    assert changed.mean() < 0.9


def test_a_model_without_position_embeddings_has_no_input_invariance(explainer, monkeypatch) -> None:
    monkeypatch.setattr(checks, "_is_table", lambda module: False)
    assert np.isnan(checks.input_invariance(trial(explainer, LENGTHS))).all()


def test_sensitivity_is_captums(explainer) -> None:
    """Captum perturbs what it is given: here the table of word embeddings, which a copy of the model is given back."""
    one = trial(explainer, get_method("gradient-x-input"))
    table = explainer.model.get_input_embeddings().weight.detach()
    noise = []
    for draw in range(checks.DRAWS):
        drawn = torch.rand(table.shape, generator=torch.Generator().manual_seed(draw))
        noise.append((checks.RADIUS * (2 * drawn - 1)).double())

    for n, found in enumerate(checks.sensitivity(one)):
        problem = Problem(explainer.model, explainer.tokenizer, [one.problem.inputs[n]], [one.problem.classes[n]])

        def scores(tables, problem=problem):
            rows = []
            for given_table in tables[0] if isinstance(tables, tuple) else tables:
                model = copy.deepcopy(explainer.model)
                with torch.no_grad():
                    model.get_input_embeddings().weight.copy_(given_table)
                changed = Problem(model, problem.tokenizer, problem.inputs, problem.classes)
                rows.append(one.method.score(changed)[0])
            return (torch.stack(rows),)

        expected = sensitivity_max(
            scores, table[None], perturb_func=lambda tables: tables + torch.stack(noise), n_perturb_samples=checks.DRAWS
        )
        assert found[0] == pytest.approx(expected.item(), rel=1e-9)


def test_typing_errors_swap_two_inner_letters_of_one_word(explainer) -> None:
    encoded = Classifier(explainer).encode(["the film is good", ("a film", "good plot")])
    for one in encoded:
        for seed in range(20):
            text, (segment, number) = checks.misspelt(one, torch.Generator().manual_seed(seed))
            parts = (text,) if isinstance(text, str) else text
            for at, (before, after) in enumerate(zip(one.texts, parts, strict=True)):
                for word, (old, new) in enumerate(zip(before.split(), after.split(), strict=True)):
                    if (at, word) == (segment, number):
                        assert old != new and sorted(old) == sorted(new) and (old[0], old[-1]) == (new[0], new[-1])
                    else:
                        assert old == new
    (short,) = Classifier(explainer).encode(["a is to"])
    assert checks.misspelt(short, torch.Generator()) is None


def test_stable_scores_are_stable_under_typing_errors(explainer) -> None:
    by_place = trial(explainer, LENGTHS)
    assert np.nanmin(checks.typo_stability(by_place)) > 0.3
    random = np.nanmean(checks.typo_stability(trial(explainer, get_method("random"))))
    assert abs(random) < 0.9


def test_paraphrases_replace_one_word_by_its_like(explainer) -> None:
    (encoded,) = Classifier(explainer).encode([("Movies, maybe. the film", "it is big")])
    found = {checks.paraphrased(encoded, torch.Generator().manual_seed(seed)) for seed in range(40)}
    assert found == {
        (("Films, maybe. the film", "it is big"), (0, 0)),
        (("Movies, perhaps. the film", "it is big"), (0, 1)),
        (("Movies, maybe. the movie", "it is big"), (0, 3)),
        (("Movies, maybe. the film", "it is large"), (1, 2)),
    }
    (without,) = Classifier(explainer).encode(["a dull plot"])
    assert checks.paraphrased(without, torch.Generator()) is None
    found = np.array(checks.paraphrase_stability(trial(explainer, LENGTHS)))
    assert found[0] == pytest.approx(1.0) and np.isnan(found[2])  # film, movie; none


def test_scores_of_shuffled_labels_are_compared_with_those_of_the_model(explainer, tmp_path) -> None:
    one = trial(explainer, get_method("occlusion"))
    assert np.isnan(checks.label_randomization(one)).all()
    other = models.classifier(vocab=models.WORD_PIECES, positions=64, dtype=torch.float64, seed=5)
    found = checks.label_randomization(dataclasses.replace(one, other=other))
    again = one.method.score(dataclasses.replace(one.problem, model=other))
    for row, encoded, before, after in zip(found, one.problem.inputs, one.scores, again, strict=True):
        free = ~np.array(encoded.special)
        assert row == [pytest.approx(spearmanr(before.numpy()[free], after.numpy()[free]).statistic, abs=1e-12)]


def test_the_model_of_shuffled_labels_is_one_of_the_same_shape(tmp_path) -> None:
    for name in ("model", "other", "large"):
        (tmp_path / name).mkdir()
    model, other = (evaluation_samples.save_classifier(tmp_path / name) for name in ("model", "other"))
    models.classifier(vocab=models.WORD_PIECES, positions=64, labels=4).save_pretrained(tmp_path / "large")
    models.word_piece().save_pretrained(tmp_path / "large")
    data = evaluation_samples.write_texts(tmp_path / "texts.csv", 12)
    options = {"methods": "occlusion", "metrics": "aopc", "sanity": 4}
    found = evaluate(data, model, out=tmp_path / "out", random_label_model=other, **options)
    assert found.methods["occlusion"].fails(found.sanity)  # they are the same
    assert found.methods["occlusion"].estimates["label-randomization"].mean == pytest.approx(1.0)
    with pytest.raises(InputError, match="random_label_model=.*weights of other shapes"):
        evaluate(data, model, out=tmp_path / "no", random_label_model=tmp_path / "large", **options)
    with pytest.raises(OptionError, match="random_label_model is for the sanity checks"):
        evaluate(data, model, out=tmp_path / "no", random_label_model=other, methods="random")
    with pytest.raises(InputError, match="random_label_sha256"):
        evaluate(data, model, out=tmp_path / "out", **options)


def test_words_have_the_sums_of_their_tokens(explainer) -> None:
    (encoded,) = Classifier(explainer).encode([("unbelievable film", "good.")])
    scores = torch.arange(len(encoded)).double()
    found = checks.word_scores(encoded, scores)
    free = ~torch.tensor(encoded.special)
    assert sum(found.values()) == pytest.approx(float(scores[free].sum()))
    assert set(found) == {(0, 0), (0, 1), (1, 0)}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=12))
def test_rank_correlation_is_scipys(pairs) -> None:
    a, b = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    found = checks.rank_correlation(a, b)
    if len(set(a.tolist())) > 1 and len(set(b.tolist())) > 1:
        assert found == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    else:
        assert np.isnan(found)


@pytest.mark.slow
def test_a_method_that_fails_is_marked_in_the_tables(tmp_path) -> None:
    (tmp_path / "model").mkdir()
    model = evaluation_samples.save_classifier(tmp_path / "model")
    data = evaluation_samples.write_texts(tmp_path / "texts.csv", 12)
    options = {"out": tmp_path / "out", "metrics": "aopc", "sanity": 5}
    found = evaluate(data, model, methods=["occlusion", LENGTHS], **options)
    assert found.methods["lengths"].fails(found.sanity) and not found.methods["occlusion"].fails(found.sanity)
    again = evaluate(data, model, methods=["occlusion", LENGTHS], **options)
    assert again.table() == found.table()
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "## Sanity" in page and "Cascading randomization ↓" in page
    assert found.table().count("✗") == 1
    with pytest.raises(OptionError, match="sanity=-1: use a whole number from 0"):
        evaluate(data, model, out=tmp_path / "no", sanity=-1)
