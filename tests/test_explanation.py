"""What an explanation is: its checks, what it says about the prediction, and its views as data."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from explanation_samples import sample, simple

from decompx_fast.errors import InputError
from decompx_fast.optional import MissingPackageError
from decompx_fast.result.explanation import Explanation
from decompx_fast.result.kinds import Site, TopToken


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": torch.zeros(2, 1)}, r"scores must have the shape \[3, 2\].*got \[2, 1\]"),
        ({"scores": torch.zeros(3, 2, dtype=torch.float16)}, "float32 or float64, got torch.float16"),
        (
            {"scores": torch.zeros(3, 2, dtype=torch.int64)},
            "floating-point tensor on the CPU, got torch.int64",
        ),
        ({"scores": torch.zeros(3, 2, device="meta")}, "on the CPU, got torch.float32 on meta"),
        ({"scores": [[1.0, 2.0]] * 3}, "tensor on the CPU, got list"),
        ({"target_logits": torch.zeros(3)}, r"target_logits must have the shape \[2\]"),
        ({"logits": torch.zeros(2, 2)}, r"logits must have the shape \[2\]"),
        ({"bias_token": torch.zeros(1)}, r"bias_token must have the shape \[2\]"),
        ({"bias_sites": (Site(0, "ln1", torch.zeros(3)),)}, r"site 'ln1' of layer 0 must have the shape \[2\]"),
        ({"spans": (None, None)}, "spans must have 3 entries"),
        ({"special": (True,)}, "special must have 3 entries"),
        ({"target_ids": (0,)}, "target_ids must have 2 entries"),
        ({"target_ids": (0, 2)}, "target_ids must be None or from 0 to 1, got 2"),
        ({"token_ids": (1, 2)}, "token_ids must have 3 entries"),
        ({"texts": ("a", "b", "c")}, "got 3"),
        ({"spans": ((0, 0, 1), (1, 0, 1), None)}, r"spans\[1\].*within the texts.*\(1, 0, 1\)"),
        ({"spans": ((0, 0, 1), (0, 3, 2), None)}, r"spans\[1\]"),
        ({"spans": ((0, 0, 6), None, None)}, r"spans\[0\]"),
        ({"problem_type": "binary"}, "problem_type must be one of 'single_label'.*got 'binary'"),
        ({"engine": "fast"}, "engine must be one of"),
        ({"source_unit": "letter"}, "source_unit must be one of"),
        ({"labels": "ab"}, "labels must be a tuple.*the string 'ab'"),
        (
            {"targets": (), "target_ids": (), "scores": torch.zeros(3, 0), "target_logits": torch.zeros(0)},
            "at least",
        ),
    ],
)
def test_explanation_rejects_what_does_not_fit(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(simple([[1, 2], [3, 4], [5, 6]]), **changes)


def test_explanation_accepts_lists_and_drops_gradients() -> None:
    scores = torch.ones(2, 1, requires_grad=True)
    explanation = replace(
        simple([1, 2]), scores=scores, tokens=["a", "b"], spans=[[0, 0, 1], None], special=[False, False]
    )
    assert not explanation.scores.requires_grad
    assert explanation.tokens == ("a", "b")
    assert explanation.spans == ((0, 0, 1), None)


def test_predicted_single_label() -> None:
    explanation = simple([[1.0, 2.0, 0.0]])
    exponentials = [math.e, math.e**2, 1.0]
    assert explanation.probabilities.tolist() == pytest.approx([x / sum(exponentials) for x in exponentials])
    assert (explanation.predicted, explanation.predicted_label) == (1, "class 1")


def test_predicted_multi_label() -> None:
    explanation = simple([[1.0, -2.0, 0.5, 0.0]], problem_type="multi_label")
    assert explanation.probabilities.tolist() == pytest.approx([1 / (1 + math.exp(-x)) for x in (1, -2, 0.5, 0)])
    assert (explanation.predicted, explanation.predicted_label) == ((0, 2), ("class 0", "class 2"))
    assert simple([[-1.0]], problem_type="multi_label").predicted == ()


def test_predicted_regression() -> None:
    explanation = simple([1.0, 2.0], problem_type="regression")
    assert explanation.probabilities is explanation.predicted is explanation.predicted_label is None


def test_totals_are_scores_and_bias_token() -> None:
    explanation = simple([[1, 2], [3, 4]], bias_token=torch.tensor([10.0, 20.0]))
    assert explanation.totals.tolist() == [14, 26]
    assert explanation.totals.dtype == torch.float64


def test_column_finds_names_and_classes() -> None:
    explanation = sample("good", labels=("no", "maybe", "yes"), target_ids=(2, None, 0))
    assert explanation.column("yes") == explanation.column(2) == explanation.column(torch.tensor(2)) == 0
    assert explanation.column("difference") == 1
    assert explanation.column("no") == explanation.column(0) == 2


@pytest.mark.parametrize("target", ["maybe", 1, -1, 3, True, 1.0, ["yes"]])
def test_column_lists_what_exists(target) -> None:
    explanation = sample("good", labels=("no", "maybe", "yes"), target_ids=(2, None, 0))
    with pytest.raises(InputError, match=re.escape("explained were: 'yes' (2), 'difference', 'no' (0).")):
        explanation.column(target)


def test_column_is_the_prediction_if_explained() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0])
    wanted = {
        "scores": torch.zeros(1, 2),
        "targets": ("x", "y"),
        "target_logits": torch.zeros(2),
        "logits": logits,
    }
    single = {"problem_type": "single_label"}
    several = {"problem_type": "multi_label"}
    explanation = simple([[0.0, 0.0, 0.0]])
    assert replace(explanation, **wanted, **single, target_ids=(0, 1)).column() == 1
    assert replace(explanation, **wanted, **single, target_ids=(0, 2)).column() == 0  # 1 was not explained
    assert replace(explanation, **wanted, **single, target_ids=(None, 1)).column() == 1
    assert replace(explanation, **wanted, **several, target_ids=(0, 2)).column() == 1  # 2 is surer than 0
    assert simple([[1.0, 2.0]], problem_type="regression").column() == 0


def test_source_text_is_what_stands_in_the_text() -> None:
    explanation = simple([1, 2], tokens=("##fi", "[SEP]"), spans=((0, 1, 3), None), texts=("\ufb01ne",))
    assert [explanation.source_text(k) for k in range(2)] == ["ne", "[SEP]"]


def test_top_orders() -> None:
    explanation = simple([1, -4, 0, 3, -2, 3])
    assert explanation.top(3) == [("b", -4, 1), ("d", 3, 3), ("f", 3, 5)]
    assert explanation.top(by="positive") == [("d", 3, 3), ("f", 3, 5), ("a", 1, 0)]
    assert explanation.top(by="negative") == [("b", -4, 1), ("e", -2, 4)]
    assert explanation.top(1)[0] == TopToken(token="b", score=-4, position=1)
    assert explanation.top(0) == []
    assert simple([[1, 5], [2, 1]]).top(1, target=1) == [("a", 5, 0)]


def test_top_rejects_unknown_orders() -> None:
    with pytest.raises(InputError, match="by must be one of 'magnitude', 'positive', 'negative', got 'absolute'"):
        simple([1]).top(by="absolute")
    with pytest.raises(InputError, match="n must be 0 or more, got -1"):
        simple([1]).top(-1)


def test_len_and_repr_are_short() -> None:
    explanation = sample("a very long text " * 50)
    assert len(explanation) == 4 * 50 + 2
    assert re.fullmatch(
        r"Explanation\(202 tokens, predicted=\w+ \(\d+\.\d%\), targets=\['NEGATIVE', 'POSITIVE'\], "
        r"engine='forward', completeness_error=0.0e\+00\)",
        repr(explanation),
    )
    assert "class 0=3" in repr(simple([1, 2], problem_type="regression"))
    assert "predicted=none" in repr(simple([-1, -2], problem_type="multi_label"))
    for problem_type in ("single_label", "multi_label", "regression"):
        many = simple([[1.0] * 1000], problem_type=problem_type)
        assert len(repr(many)) < 500 and "'class 4', ... 995 more]" in repr(many)
    assert "'class 5']" in repr(simple([[1.0] * 6])), "one more is shown rather than counted"


def test_explanation_is_its_own_identity() -> None:
    assert simple([1]) != simple([1])
    assert len({simple([1]), simple([1])}) == 2


def test_to_dataframe_columns() -> None:
    explanation = sample(["Good film", "token"], labels=("token", "<b>"))
    frame = explanation.to_dataframe()
    assert list(frame.columns) == [
        "token",
        "text",
        "segment",
        "start",
        "end",
        "special",
        "score_token",
        "score_<b>",
    ]
    assert frame.index.name == "position"
    assert frame["text"].tolist()[1:3] == ["Good", "film"]
    assert frame["text"].isna().tolist() == frame["start"].isna().tolist() == list(explanation.special)
    assert frame["segment"].tolist()[4] == 1
    assert frame[["score_token", "score_<b>"]].to_numpy().tolist() == explanation.scores.tolist()


@pytest.mark.parametrize(
    ("package", "call"),
    [("pandas", Explanation.to_dataframe), ("matplotlib.pyplot", Explanation.plot)],
)
def test_missing_package_says_what_to_install(package: str, call, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingPackageError, match=f"pip install {package.split('.')[0]}`") as caught:
        call(simple([1]))
    assert isinstance(caught.value, ImportError)


def test_to_dict_is_json_and_complete() -> None:
    explanation = sample(
        ["Good", "film"],
        bias_token=torch.tensor([0.5, -0.25]),
        stages={"attention.0": torch.zeros(3, 3)},
        bias_sites=(Site(-1, "head.0", torch.tensor([0.5, -0.25])),),
    )
    short = explanation.to_dict()
    data = json.loads(json.dumps(explanation.to_dict(details=True), allow_nan=False))
    assert {**data, **short} == data and data.keys() - short.keys() == {"bias_sites", "component_shares"}
    assert data["scores"] == explanation.scores.tolist()
    assert data["spans"][:2] == [None, [0, 0, 4]]
    assert data["stages"] == {"attention.0": [3, 3]}
    assert data["bias_sites"] == [{"layer": -1, "place": "head.0", "value": [0.5, -0.25]}]
    assert data["predicted"] == explanation.predicted
    assert sum(data["probabilities"]) == pytest.approx(1)
    assert data["metadata"] == {"model": "sample"}


def test_to_dict_rejects_what_is_no_json() -> None:
    with pytest.raises(InputError, match="options must hold plain JSON values only"):
        simple([1], options={"dtype": torch.float32}).to_dict()
