"""Explanations come back from JSON as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from explanation_samples import sample, simple
from models import classifier
from refusals import refuses
from test_export import assert_same, rich_explanation

from decompx_fast import DecompX, Explanation, Failure, read_json


def computed(**options) -> Explanation:
    dtype = options.pop("dtype", torch.float32)
    return DecompX(classifier(dtype=dtype)).explain([7, 8, 9], **options)


@pytest.mark.parametrize(
    "explanation",
    [
        rich_explanation(),
        sample("Good").words(),
        simple([1, 2], texts=(), spans=(None, None), problem_type="regression"),
        simple([[0.1, float("nan")], [float("inf"), -0.0]]),
        simple([1.5, 0.1], target_logits=torch.tensor([1.6], dtype=torch.float16)),
        computed(),
        computed(dtype=torch.float64, targets={0: 1, 1: -1}),
        computed(bias="none"),
        computed(bias="bias_token", sources=[0, 1, 1]),
    ],
    ids=["everything", "words", "ids only", "no numbers", "half", "float32", "float64", "adjoint", "groups"],
)
def test_json_and_back_is_the_same(explanation: Explanation) -> None:
    found = Explanation.from_dict(json.loads(json.dumps(explanation.to_dict(details=True))))
    without_stages = Explanation(**({name: getattr(explanation, name) for name in vars(explanation)} | {"stages": {}}))
    if not bool(torch.isfinite(explanation.scores).all()):
        assert str(found.scores) == str(explanation.scores)
        return
    assert_same(found, without_stages)
    assert found.to_dict(details=True) | {"stages": {}} == explanation.to_dict(details=True) | {"stages": {}}


def test_the_dictionary_itself_can_be_read() -> None:
    explanation = sample("Good film")
    assert_same(Explanation.from_dict(explanation.to_dict()), explanation)


def test_without_dtypes_tensors_are_float64() -> None:
    data = simple([1.0, 0.1]).to_dict()
    del data["dtypes"]
    found = Explanation.from_dict(data)
    assert found.scores.dtype == torch.float64 and found.scores.tolist() == [[1.0], [0.1]]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"scores": [[1.0]]}, ("scores must have the shape [2, 1]",)),
        ({"scores": "x"}, ("damaged",)),
        ({"scores": [[1.0, 2.0, 3.0]]}, ("scores must have the shape",)),
        ({"dtypes": {"scores": "int4"}}, ("damaged",)),
        ({"targets": 5}, ("damaged",)),
        ({"bias_sites": [{}]}, ("damaged",)),
        ({"engine": "magic"}, ("engine must be one of",)),
    ],
)
def test_what_does_not_fit_is_refused(change: dict, match: tuple[str, ...]) -> None:
    refuses(Explanation.from_dict, simple([1.0, 2.0]).to_dict() | change, match=match)


def test_what_is_no_explanation() -> None:
    refuses(Explanation.from_dict, {"tokens": ["a"]}, match=("holds no explanation", "scores", "missing"))
    refuses(Explanation.from_dict, [1], match=("from a dictionary", "[1]"))


@pytest.mark.parametrize("form", ["lines", "array", "spread", "one"])
def test_files_of_json_are_read(form: str, tmp_path: Path) -> None:
    results = [sample("Good film"), Failure(1, "too \u2028 long", "InputError"), sample("Bad")]
    results = results[:1] if form == "one" else results
    data = [one.to_dict() for one in results]
    texts = {
        "lines": "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in data),
        "array": "[\n" + ",\n".join(json.dumps(one) for one in data) + "\n]\n",
        "spread": json.dumps(data, indent=1),
        "one": json.dumps(data[0]),
    }
    path = tmp_path / "results"
    path.write_text(texts[form], encoding="utf-8")
    found = read_json(path)
    assert [one.ok for one in found] == [one.ok for one in results]
    for ours, theirs in zip(found, results, strict=True):
        if isinstance(theirs, Failure):
            assert ours == theirs
        else:
            assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"", ("is empty",)),
        (b'{"input": 0, "error": "e", "error_type": "E"}\n{', ("is no JSON (line 2",)),
        (b"[1]", ("entry 0: an explanation is read from a dictionary",)),
        (b'{"a": 1}\n{"b": 2}', ("line 1: this holds no explanation",)),
        (b"\xff\xfe", ("is not UTF-8",)),
    ],
)
def test_files_that_cannot_be_read(text: bytes, match: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "results").write_bytes(text)
    refuses(read_json, tmp_path / "results", match=("results", *match))
    refuses(read_json, tmp_path / "missing", match=("missing cannot be read: No such file",))
    (tmp_path / "json").write_text("[\n]")
    refuses(Explanation.load, tmp_path / "json", match=("looks like JSON, which decompx_fast.read_json(path) reads",))
    refuses(read_json, tmp_path, match=("cannot be read: Is a directory",))
