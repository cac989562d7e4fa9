"""Gradient and perturbation methods against closed forms, autograd by hand, and definitions by enumeration."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace

import models
import numpy as np
import pytest
import torch
from models import classifier, snapshot, unchanged
from torch import nn

from decompx_fast.errors import InputError, UnsupportedModelError
from decompx_fast.evaluation.method import Problem, get_method
from decompx_fast.evaluation.methods import gradients, perturbation
from decompx_fast.evaluation.methods.logits import class_logit, evaluation_mode, on_device, word_embeddings
from decompx_fast.request.encoded import Encoded

GRADIENTS = (
    "saliency-l1",
    "saliency-l2",
    "gradient-x-input",
    "integrated-gradients",
    "integrated-gradients-converged",
)
PERTURBATIONS = ("lime", "kernel-shap")

#: Of the tokenizer, perturbation needs this alone. No id of the texts below is it.
MASK = 4
TOKENIZER = SimpleNamespace(mask_token_id=MASK)

#: Captum holds the weights of a quadrature, the logits and the weights of coalitions in float32.
SINGLE = 1e-6

IDS = [101, 7, 23, 42, 9, 15, 102]


def encoded(ids: Sequence[int], **more: Sequence[int]) -> Encoded:
    """A text of these ids; the first and the last are special."""
    inputs = {"input_ids": torch.tensor(ids)} | {name: torch.tensor(value) for name, value in more.items()}
    special = tuple(k in (0, len(ids) - 1) for k in range(len(ids)))
    return Encoded(inputs, tuple(map(str, ids)), (None,) * len(ids), special, ())


def scores_of(name: str, model: nn.Module, *ids: Sequence[int], classes: Sequence[int] = (1,), seed: int = 0):
    texts = [encoded(row) for row in ids]
    return get_method(name).score(Problem(model, TOKENIZER, texts, list(classes) * (len(ids) // len(classes)), seed))


class Power(nn.Module):
    """``logit[c] = (sum_k e[k] . w[c])^p``: everything about it is known in closed form."""

    def __init__(self, power: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.embeddings = nn.Embedding(200, 3).double()
        self.w = nn.Parameter(torch.randn(2, 3, generator=generator, dtype=torch.float64))
        with torch.no_grad():
            self.embeddings.weight.copy_(torch.randn(200, 3, generator=generator, dtype=torch.float64))
        self.power = power
        self.batches: list[torch.Tensor] = []  # every batch of ids that was predicted

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def forward(self, input_ids=None, inputs_embeds=None, **options):
        if inputs_embeds is None:
            self.batches.append(input_ids.clone())
            inputs_embeds = self.embeddings(input_ids)
        return SimpleNamespace(logits=(inputs_embeds.sum(1) @ self.w.T) ** self.power)

    def shares(self, ids: Sequence[int], target: int = 1) -> torch.Tensor:
        """``e[k] . w[target]``, ``[i]``."""
        return (self.embeddings.weight[torch.tensor(ids)] @ self.w[target]).detach()


# Gradients.


def test_a_linear_logit_has_its_weights_as_gradient():
    model = Power(1)
    shares, weight = model.shares(IDS), model.w[1].detach()
    assert torch.allclose(scores_of("saliency-l1", model, IDS)[0], weight.abs().sum().expand(7))
    assert torch.allclose(scores_of("saliency-l2", model, IDS)[0], weight.square().sum().sqrt().expand(7))
    for name in GRADIENTS[2:]:
        assert torch.allclose(scores_of(name, model, IDS)[0], shares, rtol=SINGLE)


def test_the_step_of_integrated_gradients_is_a_tenth():
    model = Power(3)
    shares = model.shares(IDS)
    exact = shares * shares.sum() ** 2  # the integral of 3 a^2 over (0, 1) is 1
    midpoints = sum(3 * ((m - 0.5) / 10) ** 2 / 10 for m in range(1, 11))
    assert math.isclose(midpoints, 1 - 1 / 400)
    assert torch.allclose(scores_of("integrated-gradients", model, IDS)[0], exact * midpoints, rtol=SINGLE)
    midpoints = 1 - 1 / (4 * 16**2)  # sixteen steps come within 1 %
    assert torch.allclose(scores_of("integrated-gradients-converged", model, IDS)[0], exact * midpoints, rtol=SINGLE)
    assert torch.allclose(scores_of("gradient-x-input", model, IDS)[0], 3 * exact)


@pytest.mark.parametrize("family", models.FAMILIES)
def test_gradients_are_those_of_the_rows_of_the_embedding_matrix(family):
    model = classifier(family, labels=3)
    ids = [7, 23, 42, 9, 15]  # no id twice, so that a row belongs to one token
    problem = Problem(model, None, [encoded(ids, token_type_ids=[0, 0, 0, 1, 1])], [2])
    if family in models.OFFSET_POSITIONS:
        problem = Problem(model, None, [encoded(ids)], [2])
    twin = copy.deepcopy(model)
    rows = twin.get_input_embeddings().weight
    inputs = {name: value[None] for name, value in problem.inputs[0].inputs.items()}
    twin(**inputs).logits[0, 2].backward()
    gradient, e = rows.grad[ids], rows.detach()[ids]
    expected = {
        "saliency-l1": gradient.abs().sum(-1),
        "saliency-l2": gradient.square().sum(-1).sqrt(),
        "gradient-x-input": (gradient * e).sum(-1),
    }
    for name, values in expected.items():
        (found,) = get_method(name).score(problem)
        assert found.dtype == torch.float64 and found.shape == (5,)
        assert torch.allclose(found, values, rtol=1e-10)


def test_integrated_gradients_are_the_mean_gradient_on_the_way_times_the_embedding():
    model = classifier()
    e = model.get_input_embeddings().weight[torch.tensor(IDS)].detach()
    total = torch.zeros_like(e)
    for m in range(10):
        x = ((m + 0.5) / 10 * e).requires_grad_()
        total += torch.autograd.grad(model(inputs_embeds=x[None]).logits[0, 1], x)[0]
    expected = (e * total / 10).sum(-1)
    assert torch.allclose(scores_of("integrated-gradients", model, IDS)[0], expected, rtol=10 * SINGLE)


@pytest.mark.parametrize("seed", range(4))
def test_the_converged_integral_sums_to_the_difference_of_the_logits(seed):
    model = classifier(seed=seed, dtype=torch.float32)
    e = model.get_input_embeddings()(torch.tensor([IDS])).detach()
    with torch.no_grad():
        logits = model(inputs_embeds=torch.cat([e, torch.zeros_like(e)])).logits[:, 1].double()
    difference = (logits[0] - logits[1]).item()
    with evaluation_mode(model, grad=True) as forward:
        embeddings, from_embeddings = word_embeddings(model, forward, {"input_ids": torch.tensor([IDS])})
        integral = gradients.converge(class_logit(from_embeddings, 1), embeddings)
    assert torch.equal(integral.scores[0].double(), scores_of("integrated-gradients-converged", model, IDS)[0])
    gap = abs(integral.scores.double().sum().item() - difference) / abs(difference)
    assert gap <= 0.01
    assert math.isclose(integral.gap, gap, abs_tol=1e-5)
    assert integral.steps in (16, 32, 64, 128, 256, 512, 1024)


def test_an_integral_that_does_not_converge_is_told(monkeypatch):
    monkeypatch.setattr(gradients, "FIRST_STEPS", 2)
    monkeypatch.setattr(gradients, "MOST_STEPS", 4)
    model = Power(7)  # the mean of 7 a^6 at 1/8, 3/8, 5/8, 7/8 is 0.8946
    with pytest.warns(UserWarning, match="with 4 steps still miss .* by 10.5% of it"):
        scores_of("integrated-gradients-converged", model, IDS)


def test_a_path_in_several_forward_passes_is_the_same(monkeypatch):
    model = classifier()
    expected = scores_of("integrated-gradients", model, IDS)[0]
    monkeypatch.setattr(gradients, "TOKENS_PER_FORWARD", 3 * len(IDS))
    assert torch.allclose(scores_of("integrated-gradients", model, IDS)[0], expected, rtol=10 * SINGLE)


def test_a_model_that_reads_more_from_ids_than_embeddings_is_refused():
    model = classifier("roberta")
    pad = model.config.pad_token_id  # inside a text: later positions are counted without it
    with pytest.raises(UnsupportedModelError, match="padding token"):
        scores_of("saliency-l1", model, [0, 7, pad, 9, 2])


# Perturbations.


def predictions(model: nn.Module, ids: Sequence[int], coalitions: np.ndarray, target: int = 1) -> np.ndarray:
    """The logit of each coalition of the tokens between the first and the last, one text at a time."""
    values = []
    for coalition in coalitions:
        kept = [ids[0], *(i if keep else MASK for i, keep in zip(ids[1:-1], coalition, strict=True)), ids[-1]]
        with torch.no_grad():
            values.append(model(input_ids=torch.tensor([kept])).logits[0, target].item())
    return np.array(values)


def shapley_values(model: nn.Module, ids: Sequence[int]) -> np.ndarray:
    """By the definition: the mean over all subsets without ``k``, by their size, of what adding ``k`` changes."""
    m = len(ids) - 2
    coalitions = list(itertools.product((0, 1), repeat=m))
    value = dict(zip(coalitions, predictions(model, ids, np.array(coalitions)), strict=True))
    phi = np.zeros(m)
    for k in range(m):
        for without in (c for c in coalitions if not c[k]):
            size = sum(without)
            weight = math.factorial(size) * math.factorial(m - size - 1) / math.factorial(m)
            phi[k] += weight * (value[without[:k] + (1,) + without[k + 1 :]] - value[without])
    return phi


@pytest.mark.parametrize("m", [1, 2, 4, 5, 6])
def test_few_tokens_get_their_exact_shapley_values(m):
    model = classifier(seed=m)
    ids = [101, *range(20, 20 + m), 102]
    (found,) = scores_of("kernel-shap", model, ids)
    assert found[0] == found[-1] == 0
    # The ends weigh a million rather than infinitely much.
    assert np.allclose(found[1:-1], shapley_values(model, ids), atol=1e-5)


def test_sampled_shapley_values_come_near_the_exact_ones(monkeypatch):
    model = classifier(seed=3)
    ids = [101, *range(20, 28), 102]  # 256 coalitions, of which 100 are drawn, with repetitions
    exact = torch.from_numpy(shapley_values(model, ids))
    found = torch.stack([scores_of("kernel-shap", model, ids, seed=seed)[0][1:-1] for seed in range(12)])
    assert (found - exact).abs().max() > 1e-3, "they are sampled"
    error = found.mean(0) - exact
    spread = found.std(0) / 12**0.5
    assert (error.abs() < 4 * spread + 0.02 * exact.abs().max()).all()
    assert torch.allclose(found.sum(-1), exact.sum().expand(12), atol=1e-4), "efficiency holds for every sample"


def test_shapley_values_of_a_sum_are_its_terms():
    model = Power(1)
    ids = [101, *range(20, 40), 102]
    (found,) = scores_of("kernel-shap", model, ids)
    expected = (model.shares(ids) - model.shares([MASK]))[1:-1]
    assert torch.allclose(found[1:-1], expected, atol=1e-5)


@pytest.mark.parametrize("m", [1, 5, 20])
def test_lime_is_weighted_ridge_regression(m):
    model = classifier()
    ids = [101, *range(20, 20 + m), 102]
    problem = Problem(model, TOKENIZER, [encoded(ids)], [1], seed=5)
    z = perturbation.lime_coalitions(m, perturbation.CALLS, problem.generator(0, "lime")).numpy().astype(float)
    y = predictions(model, ids, z)
    cosine = z.sum(1) / np.sqrt(np.maximum(z.sum(1), 1e-30) * m)
    distance = 100 * (1 - cosine)  # as the reference implementation has it, with the width 25
    weight = np.diag(np.sqrt(np.exp(-(distance**2) / 25**2)))
    rows = np.column_stack([np.ones(perturbation.CALLS), z])
    penalty = np.diag([0.0, *np.ones(m)])
    expected = np.linalg.solve(rows.T @ weight @ rows + penalty, rows.T @ weight @ y)[1:]
    (found,) = get_method("lime").score(problem)
    assert np.allclose(found[1:-1], expected, atol=1e-5)
    assert found[0] == found[-1] == 0


def test_lime_masks_every_number_of_tokens_equally_often():
    generator = torch.Generator().manual_seed(0)
    coalitions = perturbation.lime_coalitions(5, 20001, generator)
    assert coalitions[0].tolist() == [1] * 5
    lacking = 5 - coalitions[1:].sum(-1)
    counts = torch.bincount(lacking, minlength=6)
    assert counts[0] == 0
    # Five standard deviations of a binomial with 20000 tries.
    assert (counts[1:] - 4000).abs().max() < 5 * (20000 * 0.2 * 0.8) ** 0.5
    masked = 1 - coalitions[1:].double().mean(0)
    assert (masked - 0.6).abs().max() < 5 * (0.24 / 20000) ** 0.5


def test_least_squares_without_enough_rows_is_the_shortest():
    generator = torch.Generator().manual_seed(0)
    z = torch.randint(0, 2, (4, 9), generator=generator).float()
    y, w = torch.randn(4, generator=generator), torch.rand(4, generator=generator)
    solver = perturbation.LeastSquares()
    solver.fit([(z, y, w)])
    rows = np.column_stack([np.ones(4), z.numpy()]) * np.sqrt(w.numpy())[:, None]
    expected = np.linalg.pinv(rows) @ (np.sqrt(w.numpy()) * y.numpy())
    assert np.allclose(solver.representation(), expected[1:], atol=1e-5)


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_the_budget_is_kept_and_special_tokens_are(name):
    model = Power(2)
    ids = [101, *range(20, 40), 102]
    scores_of(name, model, ids)
    assert sum(map(len, model.batches)) == perturbation.CALLS
    assert max(map(len, model.batches)) == perturbation.TOKENS_PER_FORWARD // len(ids) > 50
    seen = torch.cat(model.batches)
    assert (seen[:, 0] == 101).all() and (seen[:, -1] == 102).all()
    assert ((seen == torch.tensor(ids)) | (seen == MASK)).all()


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_scores_depend_on_the_seed_and_on_nothing_around(name):
    model = classifier()
    a, b = [101, *range(20, 32), 102], [101, *range(40, 49), 102]
    torch.manual_seed(1)
    alone = scores_of(name, model, a)[0]
    torch.manual_seed(2)
    state = torch.get_rng_state()
    together = scores_of(name, model, b, a)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(together[1], alone)
    assert not torch.equal(scores_of(name, model, a, seed=1)[0], alone)


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_a_tokenizer_without_a_mask_token_is_refused(name):
    problem = Problem(classifier(), SimpleNamespace(mask_token_id=None), [encoded(IDS)], [0])
    with pytest.raises(InputError, match=f"{name} replaces tokens by the mask token"):
        get_method(name).score(problem)


# All of them.


@pytest.mark.parametrize("name", [*GRADIENTS, *PERTURBATIONS])
def test_whatever_mode_the_caller_is_in_the_scores_are_the_same(name):
    model = classifier(dtype=torch.float32)
    (expected,) = scores_of(name, model, IDS)
    assert not expected.requires_grad and expected.dtype == torch.float64
    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    for mode in (torch.no_grad(), torch.inference_mode(), autocast, torch.device("meta")):
        with mode:
            problem = Problem(model, TOKENIZER, [encoded_on_cpu(IDS)], [1])
            (found,) = get_method(name).score(problem)
        assert torch.equal(found, expected)
        assert not found.is_inference()


def encoded_on_cpu(ids: Sequence[int]) -> Encoded:
    with torch.device("cpu"):
        return encoded(ids)


@pytest.mark.parametrize("name", [*GRADIENTS, *PERTURBATIONS])
def test_the_model_is_left_as_it_was(name):
    (expected,) = scores_of(name, classifier(), IDS)
    model = classifier(hidden_dropout_prob=0.3)
    for n, module in enumerate(model.modules()):
        module.training = n % 2 == 0
    for n, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(n % 2 == 0)
    with unchanged(model):
        assert torch.equal(scores_of(name, model, IDS)[0], expected)
    with torch.inference_mode():
        model = classifier()
    with unchanged(model):
        assert torch.equal(scores_of(name, model, IDS)[0], expected)


@pytest.mark.parametrize("name", ["saliency-l1", "integrated-gradients-converged", "lime", "kernel-shap"])
def test_an_error_leaves_nothing_behind(name):
    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    model = classifier().train()
    model.bert.encoder.layer[1].output.forward = fail
    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt):
        scores_of(name, model, IDS)
    assert snapshot(model) == before


@pytest.mark.parametrize("name", [*GRADIENTS, *PERTURBATIONS])
def test_a_class_that_the_model_has_not_is_refused(name):
    with pytest.raises(InputError, match="classes holds 2, and the model has the classes 0 to 1"):
        scores_of(name, classifier(), IDS, classes=(2,))


def test_what_is_signed():
    for name in GRADIENTS[:2]:
        assert not get_method(name).signed
        assert (scores_of(name, classifier(), IDS)[0] >= 0).all()
    for name in (*GRADIENTS[2:], *PERTURBATIONS):
        assert get_method(name).signed
        assert get_method(name).needs == ("captum",)


def test_inputs_are_moved_to_the_model():
    moved = on_device(encoded(IDS), torch.device("meta"))
    assert moved["input_ids"].shape == (1, 7) and moved["input_ids"].is_meta
