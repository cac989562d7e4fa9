"""Methods that read attention weights and vectors, and DecompX's: against naive NumPy, golden files and hand counts.

Tolerance 1e-9 for models in float64, of which every method is far from ill-conditioned.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import golden
import naive
import numpy as np
import pytest
import torch
from models import classifier, logits_of, token_ids, unchanged
from naive_layers import NaiveLayer, naive_layers

from decompx_fast.config import DecompXConfig
from decompx_fast.errors import InputError
from decompx_fast.evaluation.method import Problem, get_method
from decompx_fast.evaluation.methods.attention import _max_flows
from decompx_fast.linearize.linearization import linearize
from decompx_fast.models.demo import load_demo
from decompx_fast.optional import MissingPackageError
from decompx_fast.request.encoded import Encoded
from decompx_fast.request.encoding import Reader

EXACT = 1e-9

#: Whether negative scores are allowed.
SIGNED = {
    "decompx": True,
    "decompx-no-bias": True,
    "decompx-no-ffn": True,
    "decompx-no-head": False,
    "decompx-released": True,
    "raw-attention": False,
    "effective-attention": False,
    "attention-rollout": False,
    "attention-flow": False,
    "value-norms": False,
    "value-norms-residual-ln": False,
    "globenc": False,
    "globenc-ffn": False,
    "alti": False,
    "value-zeroing": False,
}

#: Those whose scores are a row of a product of matrices with rows that sum to 1.
DISTRIBUTIONS = (
    "raw-attention",
    "attention-rollout",
    "value-norms",
    "value-norms-residual-ln",
    "globenc",
    "globenc-ffn",
    "alti",
    "value-zeroing",
)


def encoded(inputs: dict[str, torch.Tensor]) -> Encoded:
    """One row ``[1, i]`` of a batch."""
    row = {name: values[0] for name, values in inputs.items()}
    n = len(row["input_ids"])
    return Encoded(row, tuple(map(str, row["input_ids"].tolist())), (None,) * n, (False,) * n, ())


def problem(model, rows: list[torch.Tensor], classes: list[int] | None = None) -> Problem:
    """Of rows of token ids ``[1, i]``."""
    return Problem(model, None, [encoded({"input_ids": row}) for row in rows], classes or [1] * len(rows))


def score(name: str, p: Problem) -> list[np.ndarray]:
    return [scores.numpy() for scores in get_method(name).score(p)]


def gap(ours: np.ndarray, theirs: np.ndarray) -> float:
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max())


ROWS = [token_ids(7, seed=1), token_ids(4, seed=2), token_ids(7, seed=3), token_ids(9, seed=4)]


@pytest.fixture(scope="module")
def model():
    """Three layers, 4 heads of 4 dimensions: fewer than most texts have tokens."""
    return classifier(layers=3)


# Against naive NumPy.


def matrix(layer: NaiveLayer, entry: Callable[[int, int], float]) -> np.ndarray:
    return np.array([[entry(i, j) for j in range(layer.n)] for i in range(layer.n)])


def by_rows(m: np.ndarray) -> np.ndarray:
    return m / m.sum(1, keepdims=True)


def half(m: np.ndarray) -> np.ndarray:
    return (m + np.eye(len(m))) / 2


def product(matrices: list[np.ndarray]) -> np.ndarray:
    """The first row of ``matrices[-1] ... matrices[0]``."""
    total = np.eye(len(matrices[0]))
    for m in matrices:
        total = m @ total
    return total[0]


def proximity(layer: NaiveLayer, i: int, j: int) -> float:
    distance = np.abs(layer.y[i] - layer.block_part(i, j)).sum()
    return max(0.0, np.abs(layer.y[i]).sum() - distance)


def turned(layer: NaiveLayer) -> np.ndarray:
    """Cosine distances ``[i, j]``."""

    def distance(u: np.ndarray, v: np.ndarray) -> float:
        return 1 - u @ v / np.sqrt((u @ u) * (v @ v))

    changed = [layer.without_value(j) for j in range(layer.n)]
    return matrix(layer, lambda i, j: distance(changed[j][i], layer.output[i]))


def effective(layer: NaiveLayer) -> np.ndarray:
    """Each head's row less its projection on the left null space of ``V W_O``, from all of the singular vectors."""
    total = np.zeros(layer.n)
    for h in range(layer.heads):
        head = layer.columns(h)
        mixed = layer.values[:, head] @ layer.out.weight[head]
        left, singular, _ = np.linalg.svd(mixed)
        null = left[:, (singular > 1e-9 * singular[0]).sum() :]
        row = layer.alpha[h, 0]
        total += np.abs(row - null @ (null.T @ row))
    return total / layer.heads


NAIVE = {
    "raw-attention": lambda layers: layers[-1].alpha.mean(0)[0],
    "effective-attention": lambda layers: effective(layers[-1]),
    "attention-rollout": lambda layers: product([half(one.alpha.mean(0)) for one in layers]),
    "value-norms": lambda layers: product(
        [half(by_rows(matrix(one, lambda i, j: np.linalg.norm(one.part(i, j))))) for one in layers]  # noqa: B023
    ),
    "value-norms-residual-ln": lambda layers: product(
        [by_rows(matrix(one, lambda i, j: np.linalg.norm(one.block_part(i, j)))) for one in layers]  # noqa: B023
    ),
    "globenc": lambda layers: product([by_rows(globenc_norms(one, ffn=False)) for one in layers]),
    "globenc-ffn": lambda layers: product([by_rows(globenc_norms(one, ffn=True)) for one in layers]),
    "alti": lambda layers: product(
        [by_rows(matrix(one, lambda i, j: proximity(one, i, j))) for one in layers]  # noqa: B023
    ),
    "value-zeroing": lambda layers: product([by_rows(turned(one)) for one in layers]),
}


def globenc_norms(layer: NaiveLayer, *, ffn: bool) -> np.ndarray:
    return matrix(layer, lambda i, j: np.linalg.norm(layer.layer_part(i, j, ffn=ffn)))


def test_the_naive_layers_are_the_models(model) -> None:
    layers = naive_layers(model, {"input_ids": ROWS[0]})
    with torch.no_grad():
        state = model.base_model(input_ids=ROWS[0]).last_hidden_state[0].numpy()
    assert gap(layers[-1].output, state) < EXACT
    parts = sum(layers[-1].part(2, j) for j in range(7)) + layers[-1].out.bias
    assert gap(layers[-1].x[2] + parts, layers[-1].pre1[2]) < EXACT


@pytest.mark.parametrize("name", NAIVE)
def test_scores_match_naive(model, name) -> None:
    for row, scores in zip(ROWS, score(name, problem(model, ROWS)), strict=True):
        assert gap(scores, NAIVE[name](naive_layers(model, {"input_ids": row}))) < EXACT


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_globenc_matches_the_released_code(family) -> None:
    """The golden rollout is of norms as they are; the same norms, normalised by rows, are the method's."""
    model, rows, expected = golden.model(family), golden.inputs(family), golden.expected(family)
    found = score("globenc", Problem(model, None, [encoded(row) for row in rows], [0] * len(rows)))
    for n, row in enumerate(rows):
        norms = [globenc_norms(layer, ffn=False) for layer in naive_layers(model, row)]
        theirs = expected["rollout/aggregated.0"][n].numpy()
        length = row["input_ids"].shape[1]
        ours = norms[2] @ norms[1] @ norms[0]
        # relative, as the product is not normalised; the released code adds 1e-12 to denominators
        assert gap(ours, theirs[:length, :length]) < EXACT * theirs.max()
        assert gap(found[n], product([by_rows(m) for m in norms])) < EXACT


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_decompx_released_matches_the_released_code(family) -> None:
    rows, expected = golden.inputs(family), golden.expected(family)
    for target in (0, 2):
        p = Problem(golden.model(family), None, [encoded(row) for row in rows], [target] * len(rows))
        for n, scores in enumerate(score("decompx-released", p)):
            theirs = expected["default/classifier"][n, : len(scores), target].numpy()
            assert gap(scores, theirs) < EXACT * max(1, np.abs(theirs).max())


@pytest.mark.parametrize(
    ("name", "options"),
    [("decompx", {}), ("decompx-no-bias", {"bias": "none"}), ("decompx-no-ffn", {"ffn": False})],
)
def test_decompx_matches_naive(model, name, options) -> None:
    classes = [0, 1, 1, 0]
    found = score(name, problem(model, ROWS, classes))
    for row, target, scores in zip(ROWS, classes, found, strict=True):
        expected, _ = naive.decompose(linearize(model, {"input_ids": row}), DecompXConfig(**options))
        assert gap(scores, expected[:, target]) < EXACT
        if name == "decompx":
            assert abs(scores.sum() - logits_of(model, row)[0, target].item()) < EXACT


def test_decompx_without_head_matches_naive(model) -> None:
    for row, scores in zip(ROWS, score("decompx-no-head", problem(model, ROWS)), strict=True):
        _, states = naive.decompose(linearize(model, {"input_ids": row}), DecompXConfig())
        assert gap(scores, np.linalg.norm(states[-1][0], axis=-1)) < EXACT


# Attention flow and effective attention, by other means.


def least_cut(capacities: np.ndarray, j: int) -> float:
    """The least capacity of all cuts between position 0 above the last layer and ``j`` below the first."""
    layers, n, _ = capacities.shape
    levels = [[frozenset(s) for r in range(n + 1) for s in itertools.combinations(range(n), r)]] * (layers - 1)
    others = [below for r in range(n) for below in itertools.combinations([k for k in range(n) if k != j], r)]
    best = np.inf
    for sides in itertools.product(others, *levels):  # the source's side of each level, from below
        above = [*sides, (0,)]
        cut = 0.0
        for layer in range(layers):
            outside = [k for k in range(n) if k not in above[layer]]
            cut += capacities[layer][np.ix_(sorted(above[layer + 1]), outside)].sum()
        best = min(best, cut)
    return best


@pytest.mark.parametrize("seed", range(4))
def test_flow_is_the_least_cut(seed) -> None:
    generator = np.random.default_rng(seed)
    capacities = generator.dirichlet([0.3] * 3, size=(3, 3))
    found = _max_flows(torch.tensor(capacities), 0)
    # capacities are rounded to 2^-30
    assert gap(found.numpy(), np.array([least_cut(capacities, j) for j in range(3)])) < 1e-7


def test_flow_by_hand() -> None:
    """One token above sends 0.75 to itself and 0.25 to the other; below, 0.5 of each may go to either."""
    capacities = torch.tensor([[[0.5, 0.5], [0.5, 0.5]], [[0.75, 0.25], [0.0, 1.0]]], dtype=torch.float64)
    assert _max_flows(capacities, 0).tolist() == [0.75, 0.75]
    assert _max_flows(capacities, 1).tolist() == [0.5, 0.5]


def test_flow_lies_between_rollout_and_one(model) -> None:
    """What rollout sends along all paths to a token is a flow to it."""
    flow, rolled = (score(name, problem(model, ROWS)) for name in ("attention-flow", "attention-rollout"))
    for ours, least in zip(flow, rolled, strict=True):
        assert (ours >= least - 1e-7).all() and (ours <= 1 + 1e-7).all()


def test_flow_matches_the_cuts_of_a_model(model) -> None:
    row = token_ids(3, seed=5)
    layers = naive_layers(model, {"input_ids": row})
    capacities = np.stack([half(layer.alpha.mean(0)) for layer in layers])
    (found,) = score("attention-flow", problem(model, [row]))
    assert gap(found, np.array([least_cut(capacities, j) for j in range(3)])) < 1e-7


def test_flow_of_a_long_text_is_that_of_another_library() -> None:
    networkx = pytest.importorskip("networkx")
    layers, n, position = 4, 23, 5
    capacities = np.random.default_rng(0).dirichlet([0.05] * n, size=(layers, n))
    graph = networkx.DiGraph()
    for layer, i, j in itertools.product(range(layers), range(n), range(n)):
        graph.add_edge((layer + 1, i), (layer, j), capacity=capacities[layer, i, j])
    found = _max_flows(torch.tensor(capacities), position)
    for j in range(0, n, 4):
        assert abs(networkx.maximum_flow_value(graph, (layers, position), (0, j)) - found[j].item()) < 1e-7


def test_flow_needs_scipy(model, monkeypatch) -> None:
    assert get_method("attention-flow").needs == ("scipy",)
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(MissingPackageError, match="pip install scipy"):
        score("attention-flow", problem(model, ROWS))


def test_effective_attention_of_a_short_text_is_raw_attention(model) -> None:
    """Four tokens and heads of four dimensions: no null space. With nine there is one."""
    p = problem(model, ROWS)
    raw, effective = score("raw-attention", p), score("effective-attention", p)
    assert gap(effective[1], raw[1]) < EXACT
    assert gap(effective[3], raw[3]) > 1e-3


# What holds for all.


@pytest.mark.parametrize("name", SIGNED)
def test_scores_have_the_form_that_is_agreed(model, name) -> None:
    method = get_method(name)
    assert method.signed == SIGNED[name]
    found = method.score(problem(model, ROWS))
    for row, scores in zip(ROWS, found, strict=True):
        assert scores.shape == row.shape[1:]
        assert scores.dtype == torch.float64 and scores.device.type == "cpu" and not scores.requires_grad
        assert scores.isfinite().all()
        assert method.signed or bool((scores >= 0).all())
        if name in DISTRIBUTIONS:
            assert abs(scores.sum().item() - 1) < EXACT


@pytest.mark.parametrize("name", SIGNED)
def test_order_and_company_change_nothing(model, name) -> None:
    classes = [0, 1, 1, 0]
    found = score(name, problem(model, ROWS, classes))
    order = [2, 3, 0, 1]
    permuted = score(name, problem(model, [ROWS[n] for n in order], [classes[n] for n in order]))
    for place, n in enumerate(order):
        assert gap(permuted[place], found[n]) < 1e-12  # products of other shapes round differently
        (alone,) = score(name, problem(model, [ROWS[n]], [classes[n]]))
        assert gap(alone, found[n]) < 1e-12


@pytest.mark.parametrize("name", SIGNED)
def test_model_is_left_as_it_was(name) -> None:
    model = classifier().train()
    p = problem(model, ROWS[:2])
    with unchanged(model):
        found = score(name, p)
    assert gap(found[0], score(name, problem(classifier(), ROWS[:2]))[0]) == 0, "explained in eval mode"
    with unchanged(model), pytest.raises(InputError, match="2 classes"):
        get_method(name).score(problem(model, ROWS[:2], [0, 2]))


@pytest.mark.parametrize("name", SIGNED)
def test_token_types_reach_the_model(model, name) -> None:
    """A pair is not what its tokens are as one text."""
    types = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    items = [encoded({"input_ids": ROWS[0], "token_type_ids": t}) for t in (types, 0 * types)]
    pair, text = score(name, Problem(model, None, items, [1, 1]))
    assert gap(text, score(name, problem(model, ROWS[:1]))[0]) < 1e-12
    assert gap(pair, text) > 1e-6


@pytest.mark.parametrize("name", SIGNED)
def test_the_demo_model(name) -> None:
    """Trained weights in float32: scores as in float64, and DecompX's add up to the logit."""
    model, tokenizer = demo()
    reader = Reader(tokenizer, 512)
    texts = ["A gripping film!", "the acting is dreadful"]
    inputs = [reader.read_one(text, "the input") for text in texts]
    found = score(name, Problem(model, tokenizer, inputs, [1, 0]))
    for one, target, scores in zip(inputs, (1, 0), found, strict=True):
        row = {key: value[None] for key, value in one.inputs.items()}
        if name in NAIVE:
            expected = NAIVE[name](naive_layers(model, row))
            # float32 rounds to 6e-8; distances and cosines near 0 lose a few digits more
            assert gap(scores, expected) < 1e-4 * expected.max()
        elif name in ("decompx", "decompx-released"):
            with torch.no_grad():
                logit = model(**row).logits[0, target].item()
            assert abs(scores.sum() - logit) < 1e-4


_demo: list = []


def demo():
    if not _demo:
        _demo.extend(load_demo())
    return _demo
