"""Options: every value that exists is accepted, everything else is refused with the choices."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decompx_fast.config import STAGES, DecompXConfig
from decompx_fast.errors import DecompXError, InputError, OptionError

CHOICES = {
    "bias": ["absdot", "abssim", "norm", "equal", "cls", "dot", "bias_token", "none"],
    "bias_token_split": ["absdot", "abssim", "norm", "equal", "cls", "dot", None],
    "variant": ["paper", "released"],
    "activation": ["zero_origin", "linear", "relu"],
    "tanh": ["zero_origin", "linear"],
    "gate": ["half", "value"],
    "ln1": [True, False],
    "ffn": [True, False],
    "ln2": [True, False],
    "head": [True, False],
    "aggregation": ["vector", "rollout", "none"],
    "row_normalize": [True, False, None],
    "stage_output": ["norm", "vector", "distance"],
}

OPTIONS = st.fixed_dictionaries(
    {},
    optional={name: st.sampled_from(values) for name, values in CHOICES.items()}
    | {"stages": st.lists(st.sampled_from(STAGES), max_size=3).map(tuple)},
)


def exists(**options) -> bool:
    """The combinations, said once more."""
    o = dict(dataclasses.asdict(DecompXConfig()), **options)
    return not (
        (o["bias_token_split"] and (o["bias"] != "bias_token" or not o["head"]))
        or (o["aggregation"] != "vector" and (o["head"] or o["bias"] == "bias_token"))
        or (o["row_normalize"] is not None and o["aggregation"] != "rollout")
        or ("aggregated" in o["stages"] and o["aggregation"] == "none")
        or ("pooler" in o["stages"] and not o["head"])
        or ("ffn" in o["stages"] and not o["ffn"])
    )


def test_defaults_are_the_papers_full_method():
    config = DecompXConfig()
    assert (config.bias, config.variant, config.aggregation) == ("absdot", "paper", "vector")
    assert (config.activation, config.tanh, config.stages) == ("zero_origin", "zero_origin", ())
    assert config.ln1 and config.ffn and config.ln2 and config.head


@given(OPTIONS)
def test_every_combination_is_accepted_or_refused_with_an_option_error(options):
    if exists(**options):
        config = DecompXConfig(**options)
        assert all(getattr(config, name) == value for name, value in options.items())
    else:
        with pytest.raises(OptionError):
            DecompXConfig(**options)


@given(OPTIONS.filter(lambda options: exists(**options)))
def test_options_survive_json(options):
    config = DecompXConfig(**options)
    assert DecompXConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.replace() == config
    assert hash(config.replace()) == hash(config)


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("value", ["", "ABSDOT", 0, 1, 2.0, b"absdot", ["absdot"], object(), float("nan")])
def test_values_that_do_not_exist_are_refused_with_the_choices(name, value):
    with pytest.raises(OptionError, match=rf"{name}=.* is not an option: use one of {CHOICES[name][0]!r}, ") as caught:
        DecompXConfig(**{name: value})
    for choice in CHOICES[name]:
        assert repr(choice) in str(caught.value)


@pytest.mark.parametrize("name", [name for name in CHOICES if None not in CHOICES[name]])
def test_none_is_refused_where_it_means_nothing(name):
    with pytest.raises(OptionError, match=f"{name}=None is not an option"):
        DecompXConfig(**{name: None})


def test_stages_may_be_one_name_or_several():
    assert DecompXConfig(stages="ln1").stages == ("ln1",)
    assert DecompXConfig(stages=["ln1", "ffn"]).stages == ("ln1", "ffn")
    assert DecompXConfig(stages=STAGES).stages == STAGES


@pytest.mark.parametrize("stages", [None, 5, {"ln1": 1}, {"ln1"}])
def test_stages_that_are_no_list_are_refused(stages):
    with pytest.raises(OptionError, match="stages=.* is not a list of stages: use some of 'attention', 'res1'"):
        DecompXConfig(stages=stages)


@pytest.mark.parametrize("stages", ["ln3", ["ln1", "x"], [None], [["ln1"]]])
def test_stages_that_do_not_exist_are_refused(stages):
    with pytest.raises(OptionError, match="stages=.* is not an option: use one of 'attention'"):
        DecompXConfig(stages=stages)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(bias_token_split="dot"), "needs bias='bias_token', but bias is 'absdot': set bias='bias_token'"),
        (dict(bias="bias_token", bias_token_split="dot", head=False), "needs head=True: set head=True"),
        (dict(aggregation="rollout"), "aggregation='rollout' .* set head=False, or aggregation='vector'"),
        (dict(aggregation="none", head=False, bias="bias_token"), "bias='bias_token' needs aggregation='vector'"),
        (dict(row_normalize=True), "row_normalize=True needs aggregation='rollout'"),
        (dict(aggregation="none", head=False, stages="aggregated"), "'aggregated' does not .*: ask for 'encoder'"),
        (dict(head=False, stages="pooler"), "'pooler' does not exist with head=False"),
        (dict(ffn=False, stages="ffn"), "'ffn' does not exist with ffn=False"),
    ],
)
def test_combinations_that_do_not_exist_say_what_to_do(options, message):
    with pytest.raises(OptionError, match=message):
        DecompXConfig(**options)


def test_options_are_keyword_only_and_frozen():
    with pytest.raises(TypeError):
        DecompXConfig("absdot")
    with pytest.raises(dataclasses.FrozenInstanceError):
        DecompXConfig().bias = "none"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bais", "unknown option 'bais': did you mean 'bias'"),
        ("row_normalise", "did you mean 'row_normalize'"),
        ("xyz", "unknown option 'xyz': options are bias, bias_token_split, .*stage_output"),
        (7, "unknown option 7: options are"),
    ],
)
def test_unknown_options_suggest_the_nearest(name, message):
    with pytest.raises(OptionError, match=message):
        DecompXConfig.from_dict({name: 1})
    if isinstance(name, str):
        with pytest.raises(OptionError, match=message):
            DecompXConfig().replace(**{name: 1})


def test_row_normalisation_follows_the_variant():
    rollout = DecompXConfig(aggregation="rollout", head=False)
    assert rollout.normalizes_rows and not rollout.replace(variant="released").normalizes_rows
    for chosen in (True, False):
        for variant in CHOICES["variant"]:
            assert rollout.replace(variant=variant, row_normalize=chosen).normalizes_rows is chosen


def test_option_errors_are_input_errors_and_value_errors():
    assert issubclass(OptionError, InputError) and issubclass(InputError, ValueError)
    assert issubclass(OptionError, DecompXError)
