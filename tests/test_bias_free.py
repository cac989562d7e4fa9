"""Models that add no biases: every rule gives the same scores, so the adjoint engine answers; and padded inputs."""

from __future__ import annotations

import pytest
import torch
from llama_like import CASES, decoder, inputs

from decompx_fast import DecompX, DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.errors import OptionError
from decompx_fast.linearize.architectures import describe
from decompx_fast.linearize.linearization import linearize

EVERY_RULE = ("absdot", "abssim", "norm", "equal", "cls", "dot", "bias_token", "none")

#: Cases whose models add a bias somewhere between the embedding and the logits.
BIASED = {"llama_biases", "qwen2", "qwen2_moe", "glm", "gpt_oss"}

#: Ids of one input.
TEXT = [5, 9, 33, 12, 41, 7]


@pytest.mark.parametrize("case", CASES)
def test_a_description_knows_whether_there_are_biases(case):
    assert describe(decoder(case)).has_bias == (case in BIASED)


@pytest.mark.parametrize("rule", EVERY_RULE)
@pytest.mark.parametrize("case", ["llama", "olmo2", "gemma2", "qwen3_moe"])
def test_every_rule_gives_what_the_adjoint_engine_gives(case, rule):
    linearization, config = linearize(decoder(case), inputs()), DecompXConfig(bias=rule)
    expected = adjoint.attribute(linearization, DecompXConfig(bias="none")).scores
    for engine in (reference, forward):
        found = engine.attribute(linearization, config).scores
        assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()


@pytest.mark.parametrize("sources", ["token", [0, 0, 1, 1, 2, 2]], ids=["tokens", "groups"])
@pytest.mark.parametrize("rule", EVERY_RULE)
def test_auto_takes_the_adjoint_engine_and_says_so(rule, sources):
    explainer = DecompX(decoder("llama"))
    found = explainer.explain(TEXT, bias=rule, sources=sources)
    assert found.engine == "adjoint"
    assert found.metadata["biases"] == "none, so that every rule gives the same scores"
    assert found.options["bias"] == rule
    expected = explainer.explain(TEXT, bias=rule, sources=sources, engine="reference")
    assert (found.scores - expected.scores).abs().max() <= 1e-12 * expected.scores.abs().max()
    assert found.completeness_error <= 1e-10 * found.target_logits.abs().max()


def test_plans_are_of_the_adjoint_engine_and_say_so():
    plan = DecompX(decoder("llama")).plan(30)
    assert ("biases", "none, so that every rule gives the same scores") in plan.rows
    assert dict(plan.rows)["engine"].startswith("adjoint")
    assert dict(DecompX(decoder("qwen2")).plan(30).rows)["engine"] == "forward"


def test_where_there_are_biases_the_forward_engine_answers():
    found = DecompX(decoder("qwen2")).explain(TEXT)
    assert found.engine == "forward" and "biases" not in found.metadata
    with pytest.raises(OptionError, match="weighs biases by the vectors"):
        DecompX(decoder("qwen2"), engine="adjoint")
    with pytest.raises(OptionError, match="weighs biases by the vectors"):
        DecompX(decoder("qwen2")).explain(TEXT, engine="adjoint")


def test_intercepts_of_tangents_are_shared_like_biases():
    options = {"activation": "linear", "gate": "half"}
    explainer = DecompX(decoder("llama"), **options)
    assert explainer.explain(TEXT).engine == "forward"
    with pytest.raises(OptionError, match="weighs biases by the vectors"):
        DecompX(decoder("llama"), engine="adjoint", **options)


def test_the_adjoint_engine_can_be_named_under_every_rule():
    explainer = DecompX(decoder("llama"), engine="adjoint")
    assert explainer.explain(TEXT).engine == "adjoint"


def test_errors_are_measured_by_the_engine_that_answers():
    found = DecompX(decoder("llama", dtype=torch.float32)).explain(TEXT, check="thorough")
    assert found.engine == "adjoint" and 0 < found.score_error < 1e-2


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", ["llama", "olmo2", "gemma3", "glm", "phi3", "smollm3", "qwen2_moe", "gpt_oss"])
def test_padding_on_either_side_changes_nothing(case, side):
    """The logits are those of the model on the padded batch, so what it reads is found as it finds it."""
    model, short = decoder(case), TEXT[:4]
    padding = [1] * (len(TEXT) - len(short))
    rows = [TEXT, padding + short if side == "left" else short + padding]
    given = {"input_ids": torch.tensor(rows)}
    given["attention_mask"] = (given["input_ids"] != 1).long()
    with torch.no_grad():
        logits = model(**given).logits
    found = DecompX(model).explain(given, bias="bias_token")
    for number, (explanation, text) in enumerate(zip(found, (TEXT, short), strict=True)):
        alone = DecompX(model).explain(text, bias="bias_token")
        assert (explanation.scores - alone.scores).abs().max() <= 1e-10 * alone.scores.abs().max()
        total = explanation.scores.sum(0) + explanation.bias_token
        assert (total - logits[number]).abs().max() <= 1e-5 * logits[number].abs().max()


def test_the_head_reads_the_last_token_that_is_no_padding_even_within_the_text():
    """A text that ends with the padding token, which is the end of sequence of many models: transformers skips it."""
    model, text = decoder("llama"), [*TEXT, 1]
    explanation = DecompX(model).explain({"input_ids": text, "attention_mask": [1] * len(text)})
    with torch.no_grad():
        expected = model(torch.tensor([text])).logits[0]
    assert (explanation.scores.sum(0) - expected).abs().max() <= 1e-10 * expected.abs().max()
    assert explanation.scores[-1].abs().max() == 0  # nothing before it attends it


def test_a_batch_needs_no_padding_token():
    model = decoder("llama", pad_token_id=None)
    found = DecompX(model).explain([TEXT, TEXT[::-1]], batch_size=2)
    with torch.no_grad():
        expected = model(torch.tensor([TEXT[::-1]])).logits[0]
    assert (found[1].scores.sum(0) - expected).abs().max() <= 1e-10 * expected.abs().max()
    assert model.config.pad_token_id is None
