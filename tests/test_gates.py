"""The benchmark of rules for products: what is measured is kept, and told by the number of texts it is of."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from generation_models import llama

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import gates

COUNT = 2 * gates.TOGETHER


@pytest.fixture(scope="module")
def asked() -> list[tuple[str, list[int]]]:
    ids = torch.randint(2, 300, (COUNT, gates.LENGTH), generator=torch.Generator().manual_seed(0))
    return [("editorials", row) for row in ids.tolist()]


@pytest.fixture(scope="module")
def model():
    return llama().float()


def test_a_run_goes_on_where_it_was(asked, model, tmp_path, monkeypatch):
    begun = []

    def measure(model, judge, ids, names):
        begun.append((len(ids), tuple(names)))
        return [{name: {"most": [2.0], "least": [1.0]} for name in names} for _ in ids]

    monkeypatch.setattr(gates, "measure", measure)
    everywhere, few = {"DecompX": range(COUNT)}, {"occlusion": range(gates.TOGETHER)}
    assert not gates.run(model, asked, everywhere, tmp_path, -1.0) and not begun  # no time
    assert gates.run(model, asked, everywhere, tmp_path, 60.0)
    assert gates.run(model, asked, everywhere | few, tmp_path, 60.0)
    assert begun == [(gates.TOGETHER, ("DecompX",))] * 2 + [(gates.TOGETHER, ("occlusion",))]
    kept = [json.loads((tmp_path / f"{number:04d}.json").read_text()) for number in range(COUNT)]
    assert [sorted(one["methods"]) for one in kept] == [["DecompX", "occlusion"]] * 8 + [["DecompX"]] * 8
    assert [one["ids"] for one in kept] == [ids for _, ids in asked]


def test_a_folder_of_other_texts_is_refused(asked, model, tmp_path):
    (tmp_path / "0000.json").write_text(json.dumps({"source": "editorials", "ids": [1], "methods": {}}))
    with pytest.raises(ValueError, match="0000.json is of another text .*--work"):
        gates.run(model, asked, {"DecompX": range(COUNT)}, tmp_path, 60.0)


def test_what_is_lost_is_the_output_without_the_tokens(asked, model, monkeypatch):
    """Of scores that fall with the place: the first 4, and 10, of 20 tokens are the most important."""
    ids = asked[0][1]
    falling = gates.Method(
        lambda model, said: -torch.arange(said.fed.shape[1], dtype=torch.float64).expand(said.fed.shape)
    )
    monkeypatch.setitem(gates.METHODS, "falling", falling)
    (found,) = gates.measure(model, model, [ids], ["falling"])

    def said(text: list[int]) -> float:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([text])).logits[0].log_softmax(-1)
        return logits[range(-1 - gates.OUTPUT, -1), text[-gates.OUTPUT :]].sum().item()

    most, least = (
        [said(ids) - said(ids[n:]) for n in (4, 10)],
        [said(ids) - said(ids[: 20 - n] + ids[20:]) for n in (4, 10)],
    )
    assert found["falling"]["most"] == pytest.approx(most, abs=1e-4)
    assert found["falling"]["least"] == pytest.approx(least, abs=1e-4)


def test_the_judge_says_what_the_model_does_up_to_rounding(asked, model):
    ids = torch.tensor([asked[0][1]])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    judge = gates.judge_of(model)
    with torch.no_grad():
        expected, found = model(input_ids=ids).logits, judge(input_ids=ids).logits
    assert found.dtype == torch.float32 and (found - expected).abs().max() < 0.05 * expected.abs().max()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_methods_of_few_texts_are_compared_on_these():
    rows = {
        number: {"source": "editorials", "methods": {"DecompX": {"most": [2.0 + number], "least": [1.0]}}}
        for number in range(4)
    }
    rows[3]["methods"]["occlusion"] = {"most": [6.0], "least": [2.0]}
    lines = gates.table(rows, ["DecompX", "occlusion", "AttnLRP"], list(rows))
    default, few = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:])
    assert default[:3] == ["DecompX", "4", "3.500 [2.500, 4.500]"] and default[-1] == ""
    assert few == ["occlusion", "1", *(f"{x:.3f} [{x:.3f}, {x:.3f}]" for x in (6.0, 2.0, 4.0, 0.0))]
