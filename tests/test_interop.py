"""What other libraries make of our results: shap's plots, captum's views, LIT; and pipelines of transformers."""

from __future__ import annotations

import sys

import matplotlib
import numpy as np
import pytest
import torch
from captum.attr import visualization
from explanation_samples import sample
from matplotlib import pyplot
from transformers import pipeline

from decompx_fast import DecompX, to_shap
from decompx_fast.errors import InputError
from decompx_fast.interop.captum import DecompXAttribution
from decompx_fast.interop.lit import lit_interpreter
from decompx_fast.optional import MissingPackageError

TEXTS = ["A joy to watch, really!", "Not bad, but unbelievably dull.", "Fine."]


@pytest.fixture(scope="module")
def explainer():
    return DecompX.demo()


@pytest.fixture
def figures():
    """No window is opened, and no figure is left."""
    matplotlib.use("Agg")
    yield
    pyplot.close("all")


# shap


@pytest.mark.parametrize("bias", ["absdot", "none", "bias_token"])
def test_shap_values_and_base_add_up_to_the_logits(explainer, bias):
    one = explainer(TEXTS[0], bias=bias)
    found = to_shap(one)
    np.testing.assert_allclose(found.values.sum(0) + found.base_values, one.target_logits.numpy(), atol=1e-5)
    assert (np.abs(found.base_values) > 1e-3).any() == (bias != "absdot")
    assert list(found.output_names) == ["NEGATIVE", "POSITIVE"]
    assert "".join(found.data[1:-1]) == TEXTS[0]


def test_shap_own_functions_take_one_and_several(explainer, figures):
    import shap

    several = to_shap(explainer(TEXTS))
    assert several.shape[0] == len(TEXTS)
    page = shap.plots.text(several[:, :, "POSITIVE"], display=False)
    assert "joy" in page and "dull" in page
    one = several[0, :, "POSITIVE"]
    shap.plots.waterfall(one, show=False)
    shap.plots.bar(one, show=False)
    shap.plots.bar(several[:, :, "POSITIVE"].mean(0), show=False)
    assert len(pyplot.get_fignums()) >= 1
    equal = to_shap(explainer([TEXTS[2]] * 3))
    assert equal.values.shape == (3, 4, 2) and equal.base_values.shape == (3, 2)


def test_shap_refuses_what_has_no_values(explainer):
    with pytest.raises(InputError, match="at least one explanation, got none"):
        to_shap([])
    with pytest.raises(InputError, match=r"explanations\[1\] must be an Explanation of a text, got str: leave out"):
        to_shap([sample("A film."), "x"])
    with pytest.raises(InputError, match=r"explanations\[1\] has the targets \['POSITIVE'\], and the first has"):
        to_shap([sample("A film."), sample("A film.", target_ids=[1])])
    with pytest.raises(InputError, match=r"explanations\[0\] holds norms"):
        to_shap(explainer(TEXTS[0], head=False, engine="reference"))


# captum


def test_captum_call_gives_the_scores_of_each_row(explainer):
    encoding = explainer.tokenizer(TEXTS, padding=True, return_tensors="pt")
    method = DecompXAttribution(explainer)
    ids, mask = encoding["input_ids"], encoding["attention_mask"]
    found, delta = method.attribute(ids, target=[1, 0, 1], attention_mask=mask, return_convergence_delta=True)
    assert method.has_convergence_delta() and delta.abs().max() < 1e-5
    assert found.shape == ids.shape and not found[mask == 0].any()
    for row, (one, column) in enumerate(zip(explainer(TEXTS), [1, 0, 1], strict=True)):
        torch.testing.assert_close(found[row][: len(one)], one.scores[:, column], atol=1e-5, rtol=1e-4)
    words = explainer.tokenizer.convert_ids_to_tokens(ids[0])
    shown = visualization.format_word_importances(words, (found[0] / found[0].abs().max()).tolist())
    assert "> joy " in shown


def test_captum_call_left_padding_and_no_target(explainer):
    encoding = explainer.tokenizer(TEXTS, padding=True, padding_side="left", return_tensors="pt")
    method = DecompXAttribution(explainer, bias="none")
    found, delta = method.attribute(
        encoding["input_ids"], attention_mask=encoding["attention_mask"], return_convergence_delta=True
    )
    for row, one in enumerate(explainer(TEXTS, bias="none")):
        scores = one.scores[:, one.column()]
        torch.testing.assert_close(found[row][-len(one) :], scores, atol=1e-5, rtol=1e-4)
        assert float(delta[row]) == pytest.approx(float(scores.sum() - one.target_logits[one.column()]), abs=1e-5)


def test_captum_call_refuses_other_inputs(explainer):
    method = DecompXAttribution(explainer)
    with pytest.raises(InputError, match=r"inputs must be token ids, integers \[b, k\], got torch.float32 \[1, 3, 8\]"):
        method.attribute(torch.zeros(1, 3, 8))
    with pytest.raises(InputError, match=r"target must be one class, or one for each of the 2 rows, got \[1\]"):
        method.attribute(torch.tensor([[101, 102], [101, 102]]), target=[1])
    with pytest.raises(InputError, match="target 7 was not explained"):
        method.attribute(torch.tensor([[101, 2307, 102]]), target=7)


# LIT


def test_lit_interpreter_gives_signed_salience(explainer):
    pytest.importorskip("lit_nlp", reason="lit-nlp asks for numpy 1, and is no package of the tests")
    from lit_nlp.api import components, dataset, dtypes, types

    interpreter = lit_interpreter(explainer)
    assert isinstance(interpreter, components.Interpreter)
    examples = [{"sentence": text} for text in TEXTS]
    data = dataset.Dataset(spec={"sentence": types.TextSegment()}, examples=examples)
    assert interpreter.is_compatible(None, data)
    assert not interpreter.is_compatible(None, dataset.Dataset(spec={"text": types.TextSegment()}, examples=[]))
    assert interpreter.meta_spec()["saliency"].signed and list(interpreter.config_spec()) == ["Class"]
    found = interpreter.run(examples, None, data)
    for one, row in zip(explainer(TEXTS), found, strict=True):
        ((name, salience),) = row.items()
        assert name == f"DecompX: {one.predicted_label}" and isinstance(salience, dtypes.TokenSalience)
        np.testing.assert_allclose(salience.salience, one.scores[:, one.column()], atol=1e-5)
        assert len(salience.tokens) == len(one)
    chosen = interpreter.run(examples[:1], None, data, config={"Class": "NEGATIVE"})
    assert list(chosen[0]) == ["DecompX: NEGATIVE"] and interpreter.run([], None, data) == []
    with pytest.raises(InputError, match="example 0 has no text in the field 'sentence', only 'text': name the field"):
        interpreter.run([{"text": "x"}], None, data)


@pytest.mark.parametrize(("package", "call"), [("shap", to_shap), ("lit_nlp.api.components", lit_interpreter)])
def test_missing_packages_say_how_to_install_them(monkeypatch, package, call):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=f"needs {package.split('.')[0]}, which cannot be imported here"):
        call(sample("A film."))


# transformers


def test_pipeline_is_taken_as_its_model_and_tokenizer(explainer):
    pipe = pipeline("text-classification", model=explainer.model, tokenizer=explainer.tokenizer, device="cpu")
    of_pipe = DecompX(pipe)
    assert of_pipe.model is explainer.model and of_pipe.tokenizer is pipe.tokenizer
    torch.testing.assert_close(of_pipe(TEXTS[0]).scores, explainer(TEXTS[0]).scores)
    said = pipe(TEXTS[0])[0]
    assert said["label"] == of_pipe(TEXTS[0]).predicted_label
