"""Classifiers of pictures: all engines, and a decomposition in NumPy read from the model's own modules."""

from __future__ import annotations

import naive_vision
import numpy as np
import pytest
import torch
import transformers
from exactness import (
    ROUNDING,
    WEIGHTS,
    all_layers_are_recorded,
    engines_agree,
    is_decomposition,
    item_for,
    weights_are_views,
    with_rules,
)
from torch import nn
from vision_models import CASES, OF_ONE_SIZE, SIZES, classifier, inputs

from decompx_fast import DecompX, DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.errors import InputError, OptionError, UnsupportedModelError
from decompx_fast.linearize.families import PICTURES
from decompx_fast.linearize.linearization import linearize


def own_logits(model: nn.Module, given: dict[str, torch.Tensor], **more) -> torch.Tensor:
    with torch.no_grad():
        return model(**given, **more).logits


def test_every_family_has_a_case():
    covered = {f"{name}ForImageClassification{suffix}" for name, suffix, _ in CASES.values()}
    assert covered == set(PICTURES)


@pytest.mark.parametrize(("case", "rule"), with_rules(CASES))
def test_engines_and_a_second_decomposition_agree(case, rule):
    model, given = classifier(case), inputs(case)
    expected = engines_agree(model, given, rule)
    size = expected.abs().max().item()
    item = item_for(rule)
    scores, logits = naive_vision.decompose(model, given["pixel_values"][item : item + 1], rule)
    is_decomposition(scores, expected[item], rule, size)
    assert np.abs(logits - own_logits(model, given)[item].numpy()).max() <= ROUNDING * size


#: A picture that is higher than wide, one that is wider than high and as large as the model's, and a single patch; all
#: but the second also have pixels at the edge that are in no patch.
SHAPES = [(22, 13), (8, 32), (5, 7)]


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("case", [case for case in CASES if case not in OF_ONE_SIZE])
def test_pictures_of_other_shapes_are_complete(case, size):
    model, given = classifier(case, seed=1), inputs(case, 2, size)
    asks = not case.startswith(("dinov2", "beit", "data2vec"))
    truth = own_logits(model, given, **({"interpolate_pos_encoding": True} if asks else {}))
    linearization = linearize(model, given)
    for engine, rule in ((reference, "absdot"), (forward, "absdot"), (adjoint, "equal")):
        result = engine.attribute(linearization, DecompXConfig(bias=rule))
        assert (result.scores.sum(1) - truth).abs().max() <= ROUNDING * truth.abs().max()
    assert linearization.max_gap <= ROUNDING


def test_a_grid_that_cannot_be_interpolated_is_refused():
    explainer = DecompX(classifier("vit_wide"))
    with pytest.raises(InputError, match="12 x 20"):
        explainer(inputs("vit_wide", 1, (20, 12)))


@pytest.mark.parametrize("case", CASES)
def test_all_layers_are_recorded(case):
    all_layers_are_recorded(classifier(case), inputs(case))


@pytest.mark.parametrize("case", CASES)
def test_weights_are_not_copied_but_for_what_a_scale_is_folded_into(case):
    scaled = case.startswith("dinov2") or case in ("beit", "beit_absolute", "data2vec")
    folded = ("w_out", "b_out") if scaled else ()
    weights_are_views(classifier(case), inputs(case), [name for name in WEIGHTS if name not in folded])


def of_layers(model: nn.Module) -> list[str]:
    """The paths of the linear maps and scales in the layers."""
    kinds = ("Linear", "Dinov2LayerScale", "Dinov2WithRegistersLayerScale")
    found = [name for name, module in model.named_modules() if type(module).__name__ in kinds]
    return [name for name in found if ".layers." in name or ".layer." in name]


@pytest.mark.parametrize("record", [False, True], ids=["computed", "recorded"])
@pytest.mark.parametrize("case", CASES)
def test_a_replaced_module_is_refused(case, record):
    model = classifier(case)
    for name in of_layers(model)[::3]:
        handle = model.get_submodule(name).register_forward_hook(lambda _m, _a, output: output * 1.01)
        try:
            with pytest.raises(UnsupportedModelError):
                for _layer in linearize(model, inputs(case), record=record).layers():
                    pass
        finally:
            handle.remove()


def test_the_plain_attention_of_transformers_takes_its_softmax_in_float32():
    model = classifier("vit")
    model.set_attn_implementation("eager")
    explanation = DecompX(model)(inputs("vit", 1))[0]
    assert explanation.completeness_error < 1e-5
    assert torch.allclose(explanation.logits, own_logits(model, inputs("vit", 1))[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["vit", "dinov2", "beit", "deit_teacher"])
def test_other_dtypes(case, dtype):
    expected = DecompX(classifier(case))(inputs(case, 1))[0].scores
    found = DecompX(classifier(case, dtype=dtype))(inputs(case, 1))[0].scores
    # Of each number 24 or 8 bits are kept, and random weights of this size magnify that by a hundred.
    assert (found - expected).abs().max() <= 100 * torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.parametrize("case", ["dinov2_registers", "clip"])
@pytest.mark.parametrize("split", ["absdot", "norm", "equal", "cls"])
def test_collected_biases_are_shared_where_a_head_reads_means(case, split):
    config = DecompXConfig(bias="bias_token", bias_token_split=split)
    linearization = linearize(classifier(case), inputs(case))
    results = [engine.attribute(linearization, config) for engine in (reference, forward, adjoint)]
    for result in results:
        assert torch.allclose(result.scores.sum(1), linearization.logits, rtol=0, atol=ROUNDING)
        assert (result.scores - results[0].scores).abs().max() <= ROUNDING * results[0].scores.abs().max()


def test_thorough_checks_measure_the_error_of_scores():
    explanation = DecompX(classifier("dinov2_registers", dtype=torch.float32))(
        inputs("dinov2_registers", 1), check="thorough"
    )[0]
    assert 0 < explanation.score_error < 1e-3


def test_rollout_is_refused_where_a_head_reads_two_rows():
    with pytest.raises(OptionError, match="rollout"):
        config = DecompXConfig(aggregation="rollout", head=False)
        reference.attribute(linearize(classifier("dinov2"), inputs("dinov2")), config)


@pytest.mark.parametrize("name", ["Swin", "Swinv2", "ConvNext", "ResNet"])
def test_what_is_no_plain_vision_transformer_is_refused_with_the_reason(name):
    small = {
        "Swin": {"image_size": 16, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2]},
        "ConvNext": {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
        "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
    }
    config = getattr(transformers, f"{name}Config")(**small["Swin" if name.startswith("Swin") else name])
    model = getattr(transformers, f"{name}ForImageClassification")(config)
    with pytest.raises(UnsupportedModelError, match="merges neighbouring patches|convolutions over a picture"):
        DecompX(model)


def test_a_wide_model_is_cut_as_it_cuts():
    """The grid is the model's: the root of 15 patches is no number of rows."""
    assert SIZES["patch_size"] == 4
    explanation = DecompX(classifier("vit_wide"))(inputs("vit_wide", 1))[0]
    assert explanation.picture.grid == (3, 5)
    assert tuple(explanation.patches().shape) == (3, 5)
    column = explanation.column()
    assert torch.equal(explanation.patches()[1, 2], explanation.scores[1 + 5 + 2, column])
