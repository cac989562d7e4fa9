"""The rows and stages that the forward engine gives on demand, and what it refuses."""

from __future__ import annotations

import pytest
import synthetic
import torch
from exactness import relative
from random_models import LAYERS, random_model

from decompx_fast.config import DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.forward import run as forward
from decompx_fast.engines.forward.propagation import Propagation
from decompx_fast.errors import BackendError, InputError, OptionError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aggregation": "rollout", "head": False}, "aggregation='rollout'"),
        ({"stages": ("ln1",)}, "'ln1'"),
        ({"stages": ("encoder",), "stage_output": "distance"}, "distance"),
    ],
)
def test_forward_names_the_engine_that_can(options, words):
    with pytest.raises(OptionError, match="engine='reference'") as error:
        forward.attribute(synthetic.hugging_face(), DecompXConfig(**options))
    assert words in str(error.value)


@pytest.mark.parametrize("sources", [torch.zeros(1, 6, dtype=torch.long), torch.zeros(1, 7), torch.full((1, 7), -1)])
def test_forward_refuses_sources_that_are_not_numbered(sources):
    with pytest.raises(InputError, match="sources"):
        forward.attribute(synthetic.hugging_face(n=7), DecompXConfig(), sources=sources)


@pytest.mark.parametrize("shape", LAYERS)
def test_forward_says_why_a_layer_shape_has_no_operator(shape):
    with pytest.raises(OptionError, match="path='operator' cannot be taken, since its layers are not"):
        forward.attribute(random_model(shape, position=-1, layers=3), DecompXConfig(), path="operator")


def test_forward_refuses_an_unknown_path():
    with pytest.raises(OptionError, match="path='sideways'"):
        forward.attribute(synthetic.hugging_face(), DecompXConfig(), path="sideways")


def test_forward_refuses_a_backend_that_is_not_there():
    with pytest.raises(BackendError, match="nonsense"):
        forward.attribute(synthetic.hugging_face(), DecompXConfig(), backend="nonsense")


@pytest.mark.parametrize("config", [{}, {"head": False}, {"bias": "bias_token"}, {"stages": "aggregated"}], ids=str)
@pytest.mark.parametrize("shape", ["bert", "gpt", "biased_branch_norms", "networks_only"])
@pytest.mark.parametrize("positions", [(3,), (0, -1, 2), (5, 4, 3, 2, 1, 0)])
def test_forward_gives_the_rows_of_any_positions(shape, config, positions):
    model = synthetic.hugging_face() if shape == "bert" else random_model(shape, position=-1, layers=3)
    n = model.embedding.shape[1]
    config = DecompXConfig(**config, stage_output="vector")
    ours = forward.attribute(model, config, positions=positions)
    theirs = reference.attribute(model, config.replace(stages=("encoder",)))
    whole = theirs.stages[f"encoder.{model.num_layers - 1}"]
    assert relative(ours.stages["rows"], whole[:, [position % n for position in positions]]) < 1e-10
    assert relative(ours.scores, theirs.scores) < 1e-10
    assert ours.gap.max() < 1e-10 * whole.abs().max()


@pytest.mark.parametrize("stages", [("encoder",), ("aggregated",), ("pooler",), ("encoder", "aggregated", "pooler")])
@pytest.mark.parametrize("output", ["norm", "vector"])
@pytest.mark.parametrize("shape", ["bert", *LAYERS])
def test_forward_gives_stages_and_rows_together(shape, output, stages):
    model = synthetic.hugging_face() if shape == "bert" else random_model(shape, position=-1, layers=3)
    config = DecompXConfig(stages=stages, stage_output=output)
    ours, theirs = forward.attribute(model, config, positions=(0, -1, 2)), reference.attribute(model, config)
    whole = reference.attribute(model, config.replace(stages=("encoder",))).stages[f"encoder.{model.num_layers - 1}"]
    expected = theirs.stages | {"rows": whole[:, [0, -1, 2]]}
    assert ours.stages.keys() == expected.keys()
    for name, value in expected.items():
        assert relative(ours.stages[name], value) < 1e-9, name
    assert relative(ours.scores, theirs.scores) < 1e-10


def test_forward_takes_all_positions_where_rows_would_cost_more(monkeypatch):
    model, config = synthetic.hugging_face(), DecompXConfig()
    expected = forward.attribute(model, config, positions=[1, 4]).stages["rows"]
    monkeypatch.setattr(Propagation, "_rows_are_cheaper", lambda *_: False)
    assert relative(forward.attribute(model, config, positions=[1, 4]).stages["rows"], expected) < 1e-10


@pytest.mark.parametrize("positions", [(6,), (-7,), (1.0,), (True,), ("0",)])
def test_forward_refuses_positions_that_do_not_exist(positions):
    model = random_model("gpt", n=6, position=-1, layers=3)
    with pytest.raises(InputError, match="whole numbers from -6 to 5 for 6 tokens"):
        forward.attribute(model, DecompXConfig(), positions=positions)
