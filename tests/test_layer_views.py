"""Layers as plots and on the page: what is drawn are the numbers of stages and components; what is missing is said."""

from __future__ import annotations

import base64
import re

import matplotlib
import pytest
import torch
from explanation_samples import simple

from decompx_fast import DecompX, plot_components, plot_layers, plot_river
from decompx_fast.errors import InputError
from decompx_fast.result.layer_plots import component_totals, layer_norms, river
from decompx_fast.result.png import decode

TEXT = "The plot is thin, but fun."
matplotlib.use("Agg")


@pytest.fixture(scope="module")
def staged():
    return DecompX.demo()(TEXT, stages=("encoder", "attention"), stage_output="norm")


@pytest.fixture(scope="module")
def told():
    return DecompX.demo()(TEXT, bias="none")


@pytest.fixture(autouse=True)
def closed():
    yield
    matplotlib.pyplot.close("all")


def test_layers_are_drawn_as_the_stages_are(staged):
    figure = plot_layers(staged)
    drawn = [ax.images[0].get_array() for ax in figure.axes if ax.images]
    assert len(drawn) == 6
    for layer, image in enumerate(drawn):
        torch.testing.assert_close(torch.as_tensor(image.data), staged.stages[f"encoder.{layer}"].double())
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels[1:4] == ["The", "plot", "is"]


def test_vectors_are_drawn_by_their_length():
    vectors = torch.randn(2, 2, 5)
    norms = layer_norms(simple([1.0, 2.0], stages={"encoder.0": vectors, "pooler": torch.ones(2)}))
    torch.testing.assert_close(norms[0], vectors.norm(dim=-1))


def test_river_begins_with_the_scores_and_ends_where_the_head_reads(told):
    mass = river(told, "POSITIVE")
    torch.testing.assert_close(mass[0], told.scores[:, 1].double(), atol=1e-5, rtol=1e-4)
    assert mass.shape == (7, len(told)) and mass[-1, 0] != 0 and not mass[-1, 1:].any()
    # What biases add is the only thing that changes the sum; it ends before the last layer's network.
    totals = mass.sum(1).tolist()
    for layer, (before, after) in enumerate(zip(totals, totals[1:], strict=False)):
        sites = [
            site for site in told.sites() if site.layer == layer and (layer < 5 or site.place in ("attention", "ln1"))
        ]
        assert after - before == pytest.approx(sum(float(site.value[1]) for site in sites), abs=1e-4)
    ax = plot_river(told, target="POSITIVE", top=3)
    assert len(ax.get_legend().get_texts()) == 4


def test_components_are_the_bars(told):
    totals = component_totals(told, "POSITIVE")
    ax = plot_components(told, target="POSITIVE")
    widths = [bar.get_width() for bar in ax.patches]
    for of in totals.values():
        for value in of.values():
            assert not value or any(abs(width - value) < 1e-9 for width in widths)
    both = totals[0]["attention"] + totals[0]["attention_residual"]
    assert both == pytest.approx(float(told.scores[:, 1].sum()), abs=1e-4)


def test_page_has_maps_of_layers_and_bars_of_components(staged, told):
    page = staged.to_html(full=True)
    assert page.count('<details class="dx-layers"') == 2 and page.count("<figure><img") == 12
    first = re.search(r'base64,([^"]+)" alt="encoder of layer 0', page)[1]
    pixels = decode(base64.b64decode(first))
    norms = staged.stages["encoder.0"]
    expected = 255 - norms / norms.max() * 255  # of the red, which is 0 in the full colour
    torch.testing.assert_close(pixels[..., 0].float(), expected.round().float(), atol=1.0, rtol=0)
    bars = told.to_html("POSITIVE", full=True)
    shown = dict(re.findall(r'title="(attention|ffn) ([+-][\d.]+)"', bars)[:2])
    of = component_totals(told, "POSITIVE")[0]
    for part in ("attention", "ffn"):
        assert float(shown[part]) == pytest.approx(of[part], abs=1e-3)
    assert "dx-layers" not in simple([1.0]).to_html().split("</style>")[-1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda one: plot_layers(one, "ffn"), r"has no stage 'ffn', only none: explain with stages=\('ffn',\)"),
        (lambda one: plot_components(one), "does not tell what each component carries: explain with engine='adjoint'"),
        (lambda one: plot_river(one), "does not tell what each component carries"),
        (lambda one: plot_river(one, top=0), "top must be 1 or more, got 0"),
        (lambda one: plot_layers(one, columns=0), "columns must be 1 or more, got 0"),
    ],
)
def test_what_is_missing_is_said(call, message):
    with pytest.raises(InputError, match=message):
        call(simple([1.0, 2.0]))
