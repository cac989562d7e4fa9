"""Cross attention: random encoder-decoders in float64, all engines, NumPy beside them."""

from __future__ import annotations

from itertools import product

import naive
import numpy as np
import pytest
import torch
from encoder_decoders import CASES, END, IN_FLOAT32, T5_LIKE, VOCABULARY, inputs, model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from live_bytes import LiveBytes

from decompx_fast import DecompXConfig, UnsupportedModelError
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.choose import cheaper_engine, choose_engine
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.forward.plan import plan
from decompx_fast.engines.forward.propagation import Propagation
from decompx_fast.engines.shape import ModelShape
from decompx_fast.engines.terms import Terms
from decompx_fast.errors import InputError, OptionError
from decompx_fast.linearize.architectures import describe
from decompx_fast.linearize.linearization import linearize, specification

#: What engines may differ by in float64, relative to the largest score: some hundred sums of rounded numbers.
ROUNDING = 1e-10

LINEAR = ("none", "bias_token", "equal", "cls")
READ = 7

#: Two places of the decoder and two outputs at each, of two inputs.
TERMS = Terms(torch.tensor([[READ, READ, 9, 9], [8, 8, 10, 10]]), torch.tensor([[3, 8, 5, 20], [0, 9, 2, 6]]))


def far(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("rule", ["absdot", "bias_token", "equal", "norm"])
@pytest.mark.parametrize("case", CASES)
def test_engines_agree_and_scores_sum_to_the_models_logits(case, rule):
    model, config = model_of(case), DecompXConfig(bias=rule)
    expected = reference.attribute(linearize(model, inputs()), config, terms=TERMS)
    assert expected.scores.shape == (2, READ + 4, 4)
    for engine, record in product((forward, adjoint) if rule in LINEAR else (forward,), (False, True)):
        found = engine.attribute(linearize(model, inputs(), record=record), config, terms=TERMS)
        assert far(found.scores, expected.scores) <= ROUNDING
    logits = model(**inputs()).logits
    own = logits[torch.arange(2)[:, None], TERMS.positions - READ, TERMS.outputs]
    total = expected.scores.sum(1) + (0 if expected.bias_token is None else expected.bias_token)
    assert far(total, own) <= IN_FLOAT32.get(case, ROUNDING)


@pytest.mark.parametrize("scales", [True, False])
@pytest.mark.parametrize("case", T5_LIKE)
def test_states_are_scaled_before_the_head_where_the_model_does_it(case, scales):
    model = model_of(case)
    # mT5 looks at nothing of the kind, and UMT5 of some versions at the second
    model.config.scale_decoder_outputs = model.config.tie_word_embeddings = scales
    logits = model(**inputs()).logits
    expected = logits[torch.arange(2)[:, None], TERMS.positions - READ, TERMS.outputs]
    found = reference.attribute(linearize(model, inputs()), DecompXConfig(), terms=TERMS).scores.sum(1)
    assert far(found, expected) <= IN_FLOAT32.get(case, ROUNDING)


def small_question(case: str):
    """A model, an input and terms; of BART, whose vocabulary has a bias that is shared by all of it, a classifier."""
    one = inputs(5, 3, b=1)
    if not case.endswith("bart"):
        return model_of(case, seed=2), one, Terms(torch.tensor([[6, 6, 6]]), torch.tensor([[2, 7, 11]]))
    one["input_ids"][:, -1] = END
    return model_of(case, "ForSequenceClassification", seed=2), {"input_ids": one["input_ids"]}, None


@pytest.mark.parametrize("rule", ["absdot", "equal", "abssim", "bias_token", "cls", "dot"])
@pytest.mark.parametrize("case", ["flan_t5", "umt5", "bart", "mbart", "m2m100"])
def test_a_second_decomposition_agrees(case, rule):
    config = DecompXConfig(bias=rule)
    model, one, terms = small_question(case)
    expected = reference.attribute(linearize(model, one), config, terms=terms).scores[0].numpy()
    found, _ = naive.decompose(linearize(model, one), config, terms=terms)
    found = found[:-1] if rule == "bias_token" else found
    assert np.abs(found - expected).max() <= ROUNDING * np.abs(expected).max()


OPTIONS = {
    "released": {"variant": "released", "bias": "equal"},
    "without norms": {"ln1": False, "bias": "norm"},
    "without the networks' norms": {"ln2": False, "bias": "cls"},
    "without networks": {"ffn": False, "bias": "equal"},
    "tangents": {"activation": "linear", "bias": "equal"},
    "half of the gate": {"gate": "half", "bias": "equal"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("case", ["flan_t5", "bart", "mbart"])
def test_engines_agree_with_every_option(case, options):
    config = DecompXConfig(**options)
    model, one, terms = small_question(case)
    expected, _ = naive.decompose(linearize(model, one), config, terms=terms)
    for engine in (reference, forward, *([adjoint] if config.bias in LINEAR else [])):
        found = engine.attribute(linearize(model, one), config, terms=terms).scores[0].numpy()
        assert np.abs(found - expected).max() <= ROUNDING * np.abs(expected).max()


@settings(max_examples=12, deadline=None)
@given(
    case=st.sampled_from(("flan_t5", "bart", "pegasus")),
    read=st.integers(1, 8),
    written=st.integers(1, 8),
    rule=st.sampled_from(("absdot", "equal", "cls", "none")),
)
def test_any_lengths(case, read, written, rule):
    model, config = model_of(case, seed=3), DecompXConfig(bias=rule)
    batch = inputs(read, written, seed=read)
    terms = Terms(torch.full((2, 1), read + written - 1), torch.tensor([[4], [9]]))
    expected = reference.attribute(linearize(model, batch), config, terms=terms).scores
    assert far(forward.attribute(linearize(model, batch), config, terms=terms).scores, expected) <= ROUNDING
    if rule in LINEAR:
        found = adjoint.attribute(linearize(model, batch), config, terms=terms)
        assert far(found.scores, expected) <= ROUNDING


@pytest.mark.parametrize("case", CASES)
def test_every_layer_is_checked_and_recorded(case):
    model = model_of(case, dtype=torch.float32)
    linearization = linearize(model, inputs(), record=True)
    layers = list(linearization.layers())
    read = CASES[case][1].get("num_layers", 2)
    assert linearization.encoder.layers == read and linearization.encoder.tokens == READ
    assert [layer.input.shape[1] for layer in layers] == [READ] * read + [4] * (len(layers) - read)
    assert linearization.recorded_layers == tuple(range(len(layers)))
    computed = linearize(model_of(case), inputs())
    for _layer in computed.layers():
        pass
    assert computed.max_gap <= IN_FLOAT32.get(case, ROUNDING)


@pytest.mark.parametrize("case", ["t5", "flan_t5", "bart", "mbart"])
def test_a_replaced_map_is_refused_in_encoder_and_decoder(case):
    model = model_of(case)
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and any(map(str.isdigit, name.split(".")))
    ]
    for name in (n for n in names if ".0." in n or ".1." in n):
        handle = model.get_submodule(name).register_forward_hook(lambda _m, _a, y: y + 0.01 * y.abs())
        try:
            with pytest.raises(UnsupportedModelError, match=r"layer \d does not compute"):
                for _layer in linearize(model, inputs()).layers():
                    pass
        finally:
            handle.remove()


@pytest.mark.parametrize("case", CASES)
def test_weights_are_not_copied(case):
    model = model_of(case)
    storages = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    names = ("value_weight", "w_out", "b_out", "w_in", "b_in", "w_gate", "b_gate")
    for layer in linearize(model, inputs()).layers():
        for op in (op for sublayer in layer.sublayers for op in sublayer.ops):
            for weight in (getattr(op, name, None) for name in names):
                assert weight is None or weight.untyped_storage().data_ptr() in storages
    lm_head = describe(model).head[-1].map
    assert lm_head.weight.untyped_storage().data_ptr() in storages


@pytest.mark.parametrize("rule", ["absdot", "abssim", "norm", "equal", "cls", "dot", "bias_token", "none"])
@pytest.mark.parametrize("case", T5_LIKE)
def test_t5_adds_no_bias_so_every_rule_is_the_same_and_the_adjoint_engine_answers(case, rule):
    model, config = model_of(case), DecompXConfig(bias=rule)
    spec = specification(model)
    assert not spec.has_bias
    assert choose_engine("auto", config, grouped=False, biased=spec.has_bias) == "adjoint"
    expected = adjoint.attribute(linearize(model, inputs()), DecompXConfig(bias="none"), terms=TERMS).scores
    assert far(forward.attribute(linearize(model, inputs()), config, terms=TERMS).scores, expected) <= ROUNDING
    shape = ModelShape.from_spec(spec, columns=4)
    assert cheaper_engine(shape, config.replace(bias="none"), tokens=11, sources=None, directions=4) == "adjoint"


def test_components_of_both_stacks_sum_to_the_logits():
    """Of a model without biases, so that there are no sites: whatever does not flow by a sublayer comes in later."""
    linearization = linearize(model_of("flan_t5"), inputs())
    found = adjoint.attribute(linearization, DecompXConfig(bias="none"), terms=TERMS)
    total = linearization.values(TERMS)

    def ways(name: str) -> torch.Tensor:
        return (found.components[name] + found.components[name.replace(".", "_residual.")]).sum(1)

    of_decoder = found.scores[:, READ:].sum(1)
    for layer in (0, 1):
        for kind in ("attention", "ffn"):
            assert far(ways(f"{kind}.{layer}") + of_decoder, total) <= ROUNDING
    for layer in (2, 3, 4):
        later = sum(found.components[f"cross_attention.{n}"].sum(1) for n in range(layer + 1, 5))
        own = found.components[f"cross_attention.{layer}"].sum(1)
        assert far(ways(f"attention.{layer}") + own + later, total) <= ROUNDING
        assert far(ways(f"cross_attention.{layer}") + later, total) <= ROUNDING
        assert far(ways(f"ffn.{layer}") + later, total) <= ROUNDING
        assert (found.components[f"cross_attention.{layer}"][:, READ:] == 0).all()
        assert (found.components[f"ffn.{layer}"][:, :READ] == 0).all()


@pytest.mark.parametrize("case", ["flan_t5", "bart"])
@pytest.mark.parametrize("room", [None, 60_000])
def test_small_blocks_and_groups_of_tokens_change_nothing(case, room):
    model, config = model_of(case), DecompXConfig()
    groups = torch.tensor([[0, 0, 1, 2, 2, 2, 3, 3, 3, 4, 0], [0, 1, 1, 1, 2, 3, 3, 4, 4, 4, 4]])
    expected = reference.attribute(linearize(model, inputs()), config, sources=groups, terms=TERMS).scores
    found = forward.attribute(
        linearize(model, inputs()), config, sources=groups, terms=TERMS, workspace_bytes=room
    ).scores
    assert far(found, expected) <= ROUNDING


@pytest.mark.parametrize("case", ["flan_t5", "bart"])
def test_an_encoder_carries_no_sources_of_the_decoder(monkeypatch, case):
    """They are zero there: so many as its tokens belong to, and the bias token; in the decoder all."""
    model, carried, apply = model_of(case), [], Propagation.apply

    def noted(self, layer):
        carried.append(self.x.shape[2])
        apply(self, layer)

    monkeypatch.setattr(Propagation, "apply", noted)
    groups = torch.tensor([[0, 0, 1, 1, 1, 1, 2, 2, 3, 4, 5], [0, 0, 0, 0, 0, 1, 1, 4, 3, 2, 5]])
    rules = {"absdot": (READ, 0), "bias_token": (READ + 1, 1), "equal": (READ + 4, 0)}
    for rule, (own, token) in rules.items():
        for sources, encoders, every in ((None, own, READ + 4 + token), (groups, 3 + token, 6 + token)):
            config = DecompXConfig(bias=rule)
            if rule == "equal" and sources is not None:
                encoders = every
            carried.clear()
            found = forward.attribute(linearize(model, inputs()), config, sources=sources, terms=TERMS)
            assert carried[0] == carried[1] == encoders and carried[-1] == every
            expected = reference.attribute(linearize(model, inputs()), config, sources=sources, terms=TERMS)
            assert far(found.scores, expected.scores) <= ROUNDING


def test_a_token_without_a_vector_shares_a_bias_among_all_sources():
    model = model_of("mbart")  # of which a norm comes before each attention
    linearization = linearize(model, inputs())
    embedding = linearization.embedding.clone()
    embedding[:, 2] = 0
    expected = reference.attribute(linearization.again(embedding), DecompXConfig(), terms=TERMS)
    found = forward.attribute(linearization.again(embedding), DecompXConfig(), terms=TERMS)
    assert far(found.scores, expected.scores) <= ROUNDING


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["flan_t5", "bart"])
def test_other_dtypes_are_as_exact_as_they_can_be(case, dtype):
    expected = reference.attribute(linearize(model_of(case), inputs()), DecompXConfig(), terms=TERMS).scores
    model = model_of(case, dtype=dtype)
    found = forward.attribute(linearize(model, inputs()), DecompXConfig(), dtype=dtype, terms=TERMS).scores
    # Of each number 24 or 8 bits are kept, and random weights of this size magnify that by a hundred.
    assert far(found.double(), expected) <= 100 * torch.finfo(dtype).eps


def test_vectors_of_positions_are_those_of_the_decoder():
    model, config = model_of("bart"), DecompXConfig(stage_output="vector")
    found = forward.attribute(linearize(model, inputs()), config, terms=TERMS, positions=[8, -1]).stages["rows"]
    stages = forward.attribute(linearize(model, inputs()), config.replace(stages=["encoder"]), terms=TERMS).stages
    assert far(found, stages["encoder.3"][:, [1, 3]]) <= ROUNDING
    assert stages["encoder.1"].shape == (2, READ, READ + 4, 12)  # the memory
    with pytest.raises(InputError, match="position 3 is one of the encoder"):
        forward.attribute(linearize(model, inputs()), config, terms=TERMS, positions=[3])


@pytest.mark.parametrize("rule", ["absdot", "none"])
@pytest.mark.parametrize("lengths", [(60, 60), (100, 10), (10, 100)])
def test_plan_foretells_the_peak(lengths, rule):
    sizes = {"d_model": 48, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "max_position_embeddings": 128}
    model, config = model_of("bart", dtype=torch.float32, **sizes), DecompXConfig(bias=rule)
    linearization = linearize(model, inputs(*lengths, b=1))
    terms = Terms(torch.full((1, 1), sum(lengths) - 1), torch.tensor([[3]]))
    counter = LiveBytes()
    with counter:
        forward.attribute(linearization, config, terms=terms, workspace_bytes=4 << 20)
    shape = ModelShape.from_linearization(linearization, next(linearization.layers()), terms)
    foretold = plan(shape, sum(lengths), config=config, workspace_bytes=4 << 20)
    assert foretold.peak_bytes == pytest.approx(counter.peak, rel=0.1)


def test_what_cannot_be_asked_is_refused():
    model = model_of("bart")
    with pytest.raises(InputError, match="give decoder_input_ids too"):
        linearize(model, {"input_ids": inputs()["input_ids"]})
    terms = Terms(torch.tensor([[2], [2]]), torch.tensor([[1], [1]]))
    for engine in (reference, forward, adjoint):
        with pytest.raises(InputError, match="position 2 is one of the encoder"):
            engine.attribute(linearize(model, inputs()), DecompXConfig(bias="none"), terms=terms)
    with pytest.raises(OptionError, match="a decoder's layers read two states"):
        reference.attribute(linearize(model, inputs()), DecompXConfig(aggregation="rollout", head=False), terms=TERMS)


@pytest.mark.parametrize("case", ["flan_t5", "bart", "mbart", "plbart"])
def test_classifiers_read_the_last_end_of_each_text(case):
    model = model_of(case, "ForSequenceClassification")
    ids = inputs(8)["input_ids"]
    ids[0, [2, -1]], ids[1, -3] = END, END  # not as many, so that transformers would refuse the batch
    config = DecompXConfig()
    linearization = linearize(model, {"input_ids": ids})
    found = forward.attribute(linearization, config)
    assert found.scores.shape == (2, 16, 3) and found.gap.max() <= ROUNDING
    for item in range(2):
        assert far(linearization.logits[item], model(input_ids=ids[item : item + 1]).logits[0]) <= ROUNDING
    with pytest.raises(InputError, match="the last end of a sequence, and a text has none"):
        linearize(model, {"input_ids": inputs(8)["input_ids"]})


@pytest.mark.parametrize("case", ["flan_t5", "mt5", "umt5", "bart", "mbart"])
def test_answers_are_read_in_the_decoder(case):
    model, given_ids = model_of(case, "ForQuestionAnswering"), {"input_ids": inputs()["input_ids"]}
    linearization = linearize(model, given_ids)
    terms = Terms(torch.tensor([[8, 11], [7, 13]]), torch.tensor([[0, 1], [0, 1]]))
    found = adjoint.attribute(linearization, DecompXConfig(bias="equal"), terms=terms)
    expected = reference.attribute(linearize(model, given_ids), DecompXConfig(bias="equal"), terms=terms)
    assert far(found.scores, expected.scores) <= ROUNDING
    outputs = model(**given_ids)
    own = torch.stack([outputs.start_logits[[0, 1], [1, 0]], outputs.end_logits[[0, 1], [4, 6]]], dim=1)
    assert far(found.scores.sum(1), own) <= IN_FLOAT32.get(case, ROUNDING)


@pytest.mark.parametrize("case", ["t5", "mt5", "umt5"])
def test_encoders_alone(case):
    ids = {"input_ids": inputs()["input_ids"]}
    model = model_of(case, "ForTokenClassification")
    terms = Terms(torch.tensor([[0, 3], [6, 2]]), torch.tensor([[2, 1], [0, 0]]))
    found = adjoint.attribute(linearize(model, ids), DecompXConfig(bias="equal"), terms=terms)
    own = model(**ids).logits[torch.arange(2)[:, None], terms.positions, terms.outputs]
    assert far(found.scores.sum(1), own) <= IN_FLOAT32.get(case, ROUNDING)
    encoder = linearize(model_of(case, "EncoderModel"), ids, read="mean")
    assert encoder.encoder is None
    assert forward.attribute(encoder, DecompXConfig()).gap.max() <= IN_FLOAT32.get(case, ROUNDING)


def test_an_encoder_and_a_decoder_of_other_vocabularies_are_limited_by_their_own():
    sizes = describe(model_of("marian")).limits.sizes
    assert sizes == {"input_ids": VOCABULARY, "decoder_input_ids": VOCABULARY}
