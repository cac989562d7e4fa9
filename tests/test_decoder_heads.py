"""Heads of decoders with biases at each position, by all engines and by NumPy from the heads' own modules."""

from __future__ import annotations

import importlib

import naive
import numpy as np
import pytest
import torch
import transformers
from test_decoders import CASES, IN_FLOAT32, LANGUAGE_MODELS, ROUNDING, classifier, inputs
from torch import nn

from decompx_fast import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.terms import Terms
from decompx_fast.linearize.architectures import supported_architectures
from decompx_fast.linearize.linearization import linearize

#: Of each architecture the case that stands for it.
STANDS_FOR = {name: case for case, (name, _) in reversed((CASES | LANGUAGE_MODELS).items())}
STANDS_FOR["OPT"] = "opt_narrow_words"

#: The maps of each head, by the name of its class less the prefix.
MAPS = {
    "LMHeadModel": ["lm_head"],
    "ForCausalLM": ["lm_head"],
    "ForTokenClassification": ["classifier", "score"],
    "ForQuestionAnswering": ["qa_outputs"],
}
HEADS = [
    (prefix, kind)
    for prefix in sorted(STANDS_FOR)
    for kind in MAPS
    if prefix + kind in supported_architectures() and hasattr(transformers, prefix + kind)
]


def with_head(prefix: str, kind: str, seed: int = 0) -> nn.Module:
    options = {"num_labels": 2} if kind == "ForQuestionAnswering" else {}  # the start and the end
    return classifier(STANDS_FOR[prefix], seed, head=kind, **options)


def own_outputs(model: nn.Module, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the model gives when it is run as a whole, ``[b, i, C]``."""
    with torch.no_grad():
        found = model(**given)
    logits = getattr(found, "logits", None)
    return torch.stack([found.start_logits, found.end_logits], dim=-1) if logits is None else logits


def test_every_head_of_transformers_is_there():
    """Each class of these architectures in transformers, but for those that read otherwise."""
    other = {"GPT2DoubleHeadsModel", "GPTNeoXLayer"}
    for prefix in STANDS_FOR:
        module = importlib.import_module(getattr(transformers, f"{prefix}Model").__module__)
        names = [name for name in module.__all__ if not name.endswith("PreTrainedModel")]
        assert [name for name in names if name not in other | set(supported_architectures())] == []


@pytest.mark.parametrize(
    ("prefix", "kind", "rule"),
    [(*head, rule) for n, head in enumerate(HEADS) for rule in ("absdot", ("bias_token", "equal")[n % 2])],
)
def test_outputs_at_positions_by_all_engines_and_by_numpy(prefix, kind, rule):
    model, given, config = with_head(prefix, kind), inputs(), DecompXConfig(bias=rule)
    truth = own_outputs(model, given)
    positions, outputs = torch.tensor([[6, 2, 2], [4, 0, 3]]), torch.tensor([[0, 1, 0], [1, 1, 0]])
    columns = torch.tensor([[[1.0, 0, 0], [0, 1, -1]], [[0, 0, 2], [1, 0, 0.5]]], dtype=torch.float64)
    items, terms = torch.arange(2)[:, None], Terms(positions, outputs, columns)
    engines = [reference, forward] + ([] if rule == "absdot" else [adjoint])
    results = [engine.attribute(linearize(model, given), config, terms=terms) for engine in engines]
    wanted = (columns @ truth[items, positions, outputs].unsqueeze(-1)).squeeze(-1)  # [b, m]
    size = results[0].scores.abs().max().item()
    for result in results:
        assert (result.scores - results[0].scores).abs().max().item() <= ROUNDING * size
        total = result.scores.sum(1) + (0 if result.bias_token is None else result.bias_token)
        assert (total - wanted).abs().max().item() <= IN_FLOAT32.get(STANDS_FOR[prefix], ROUNDING) * size
    item = int(rule == "absdot")
    expected = np.zeros((7 + (rule == "bias_token"), 2))
    one = {name: value[item : item + 1] for name, value in given.items()}
    state = naive_state(linearize(model, one), config)
    for t in range(3):
        rows = by_numpy(model, kind, state, positions[item, t].item(), rule)
        expected += rows[:, outputs[item, t], None] * columns[item, :, t].numpy()
    assert np.abs(expected[:7] - results[0].scores[item].numpy()).max() <= ROUNDING * size


def naive_state(linearization, config: DecompXConfig) -> np.ndarray:
    """The decomposed state after the last layer, ``[i, k, d]``."""
    embedding = naive.array(linearization.embedding, row=True)
    by_hand = naive.Naive(config, list(range(len(embedding))))
    x = by_hand.start(embedding)
    for layer in linearization.layers():
        x = by_hand.layer(x, layer, first=layer.index == 0)
    return x


def by_numpy(model: nn.Module, kind: str, state: np.ndarray, position: int, rule: str) -> np.ndarray:
    """All outputs at a position, ``[k, C]``, by the weights of the model's own modules."""
    u = state[position]
    maps = [getattr(model, name) for name in MAPS[kind] if hasattr(model, name)]
    narrow = getattr(getattr(getattr(model, "model", None), "decoder", None), "project_out", None)
    for linear in ([narrow] if narrow is not None else []) + maps:
        bias = None if linear.bias is None else naive.array(linear.bias)
        u = naive.add_bias(u @ naive.array(linear.weight).T, bias, rule)
    return u
