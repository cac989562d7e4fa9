"""Transformers' plain attention, which rounds to float32 in many architectures: every family with it, in float64."""

from __future__ import annotations

import encoder_decoders
import llama_like
import pytest
import test_decoders
import test_families
from refusals import refuses

from decompx_fast import DecompXConfig
from decompx_fast.engines.forward import run as forward
from decompx_fast.errors import UnsupportedModelError
from decompx_fast.linearize.linearization import linearize

#: Rounding of float32 in the attention of a few layers of random weights.
ROUNDING = 1e-5

MAKERS = {
    **{case: (test_families.classifier, test_families.inputs(case)) for case in test_families.CASES},
    **{case: (test_decoders.classifier, test_decoders.inputs()) for case in test_decoders.CASES},
    **{case: (llama_like.decoder, llama_like.inputs()) for case in llama_like.CASES},
}


@pytest.mark.parametrize("case", MAKERS)
def test_every_family_can_be_explained_with_it(case):
    maker, given = MAKERS[case]
    model = maker(case)
    model.set_attn_implementation("eager")
    linearization = linearize(model, given)
    result = forward.attribute(linearization, DecompXConfig())
    size = max(linearization.logits.abs().max().item(), result.scores.abs().sum(1).max().item())
    assert result.gap.max().item() <= ROUNDING * size
    assert linearization.max_gap <= ROUNDING


def test_a_decoder_that_attends_to_what_comes_after_is_refused():
    """As UMT5's do in some versions of transformers, where PyTorch's fused attention is not told of the order."""
    model, given = encoder_decoders.model_of("umt5"), encoder_decoders.inputs()
    linearize(model, given)  # with the plain attention it is told by the mask
    for stack in (model, model.decoder):
        stack.config._attn_implementation = "sdpa"
    for block in model.decoder.block:
        block.layer[0].SelfAttention.is_causal = False
    asked = {"match": ("decoder.block.0 attends to what comes after", "attn_implementation='eager'")}
    refuses(linearize, model, given, **asked, error=UnsupportedModelError)
