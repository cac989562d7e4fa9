"""Every encoder with every head: the model's own outputs, three engines, and a decomposition in NumPy beside them."""

from __future__ import annotations

import naive
import numpy as np
import pytest
import torch
import transformers
from encoder_heads import CASE_OF, classes, inputs_of, model_of, outputs_of, parted
from naive import array
from refusals import refuses
from test_families import IN_FLOAT32
from torch import Tensor

from decompx_fast import DecompXConfig, UnsupportedModelError
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.terms import Terms
from decompx_fast.linearize.architectures import describe, find_family
from decompx_fast.linearize.families.unsupported import UNSUPPORTED
from decompx_fast.linearize.linearization import linearize

#: Rounding of float64 through two layers and a head of random weights.
ROUNDING = 1e-10

#: What transformers has for encoders and is no task here: they generate, or give several losses at once.
OTHER_TASKS = ("ForCausalLM", "LMHeadModel", "ForProteinFolding")


def rounding(name: str) -> float:
    return IN_FLOAT32.get(CASE_OF[parted(name)[0]], ROUNDING)


def terms_of(name: str, each: bool, count: int) -> Terms:
    """Two outputs, at another position of each input where there are several."""
    outputs = torch.tensor([[0, count - 1], [count // 2, 0]])
    return Terms(torch.tensor([[4, 1], [2, 5]]) if each else None, outputs)


def second_head(u: np.ndarray, steps, config: DecompXConfig) -> np.ndarray:
    """The whole head on the parts ``[k, d]`` of one row, with its constants from their sum: ``[k, C]``."""
    for step in steps:
        if step.map is not None:
            u = naive.add_bias(u @ array(step.map.matrix), array(step.map.bias), config.bias)
        true = u.sum(0)
        if step.activation is not None:
            kind = config.tanh if step.activation == "tanh" else config.activation
            slope, _ = naive.slope_and_intercept(step.activation, true, kind)
            u = u * slope
            true = naive.ACTIVATIONS[step.activation](true)
        if step.norm is not None:
            centred = u - u.mean(-1, keepdims=True)
            u = naive.add_bias(
                centred / np.sqrt(true.var() + step.norm.eps) * array(step.norm.weight),
                array(step.norm.bias),
                config.bias,
            )
    return u


@pytest.mark.slow
def test_every_head_of_transformers_is_supported_or_refused_with_a_reason():
    supported = classes(sequence=True)
    for prefix in CASE_OF:
        for name in dir(transformers):
            if not name.startswith(prefix) or name.endswith(("Config", "PreTrainedModel")):
                continue
            suffix = name.removeprefix(prefix)
            if suffix.startswith(("For", "WithLM", "LMHead")) and not suffix.endswith(OTHER_TASKS):
                assert name in supported or name in UNSUPPORTED, name


@pytest.mark.parametrize("name", classes())
def test_engines_and_a_second_decomposition_agree_with_the_model(name):
    model, given = model_of(name), inputs_of(name)
    own, each = outputs_of(model, name, given)
    terms = terms_of(name, each, own.shape[-1])
    where = torch.arange(2)[:, None]
    expected = own[where, terms.positions, terms.outputs] if each else own[where, terms.outputs]
    size = own.abs().max().item()
    for rule in ("absdot", "bias_token"):
        config = DecompXConfig(bias=rule)
        linearization = linearize(model, given)
        truth = reference.attribute(linearization, config, terms=terms)
        assert (linearization.values(terms) - expected).abs().max() <= ROUNDING * size
        assert linearization.max_gap <= rounding(name)
        total = truth.scores.sum(1) + (0 if truth.bias_token is None else truth.bias_token)
        # Relative to all that is added up: outputs may cancel.
        added = truth.scores.abs().sum(1).max().item()
        assert (total - expected).abs().max() <= rounding(name) * max(size, added)
        engines = (forward,) if rule == "absdot" else (forward, adjoint)
        for engine in engines:
            found = engine.attribute(linearize(model, given, record=True), config, terms=terms)
            assert (found.scores - truth.scores).abs().max() <= ROUNDING * added
        if rule == "absdot":
            _check_second(model, given, config, truth.scores[0], terms, 10 * rounding(name) * added)


def _check_second(model, given, config, scores: Tensor, terms: Terms, tolerance: float) -> None:
    """The first input's scores ``[k, t]``, by loops."""
    spec, tokens = describe(model), given["input_ids"].shape[1]
    linearization = linearize(model, {key: value[:1] for key, value in given.items()})
    walk = naive.Naive(config, list(range(tokens)))
    x = walk.start(array(linearization.embedding, row=True))
    for layer in linearization.layers():
        x = walk.layer(x, layer, first=layer.index == 0)
    for term in range(2):
        if terms.positions is not None:
            row = x[int(terms.positions[0, term])]
        else:
            row = x.mean(0) if spec.read == "mean" else x[spec.read]
        found = second_head(row, spec.head, config)[:, int(terms.outputs[0, term])]
        assert np.abs(found - scores[:, term].numpy()).max() <= tolerance


@pytest.mark.parametrize("name", ["ModernBertForMultipleChoice", "XLMForMultipleChoice"])
def test_a_choice_by_the_mean(name):
    option = {"classifier_pooling": "mean"} if name.startswith("Modern") else {"summary_type": "mean"}
    model, given = model_of(name, **option), inputs_of(name)
    if name.startswith("Modern"):
        given["attention_mask"] = torch.ones(2, 6, dtype=torch.long)  # the model needs one then
    own, _ = outputs_of(model, name, given)
    for engine in (forward, adjoint, reference):
        result = engine.attribute(linearize(model, given), DecompXConfig(bias="bias_token"))
        total = result.scores.sum(1) + result.bias_token
        assert (total - own).abs().max() <= rounding(name) * own.abs().max()


def test_questions_of_longformer_are_global_and_need_a_pair():
    name = "LongformerForQuestionAnswering"
    model, given = model_of(name), inputs_of(name)
    (layer, _) = linearize(model, given).layers()
    where = layer.sublayers[0].ops[0].pattern.hubs.where
    assert where.int().tolist() == [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]]
    single = {"input_ids": torch.arange(5, 11).expand(2, -1)}
    refuses(linearize, model, single, match=("three separators", "token 2", "[0, 0]", "give pairs"))


@pytest.mark.parametrize(
    "name",
    ["BertForMaskedLM", "EsmForMaskedLM", "ElectraForMultipleChoice", "XLMForMultipleChoice"]
    + ["BigBirdForQuestionAnswering"],
)
def test_a_changed_head_is_refused(name):
    model, given = model_of(name), inputs_of(name)
    last = [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]
    own, each = outputs_of(model, name, given)
    last.register_forward_hook(lambda _module, _args, output: output * 1.01)
    with pytest.raises(UnsupportedModelError, match="head"):
        forward.attribute(linearize(model, given), DecompXConfig(), terms=terms_of(name, each, own.shape[-1]))


@pytest.mark.parametrize("name", ["XLMForQuestionAnswering", "FlaubertForQuestionAnswering"])
def test_heads_that_are_refused_are_told_why(name):
    model = torch.nn.Module.__new__(getattr(transformers, name))
    torch.nn.Module.__init__(model)
    refuses(find_family, model, match=("two positions at once", "ends in Simple"), error=UnsupportedModelError)
