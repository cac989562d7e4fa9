"""The table of architectures: no class is left out, and what cannot be measured is a row that says why."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from decompx_fast.linearize.families import FAMILIES
from decompx_fast.linearize.families.towers import PAIRED
from decompx_fast.linearize.families.unsupported import UNSUPPORTED

FILE = Path(__file__).parent.parent / "tools" / "architectures.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("architectures", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_class_that_is_registered_or_refused_has_a_row(tool):
    assert set(tool.names([])) == {*FAMILIES, *PAIRED, *UNSUPPORTED}
    assert set(tool.names(["MPNet"])) == {name for name in FAMILIES if name.startswith("MPNet")}


def test_the_committed_table_has_a_row_of_each():
    """What is registered later is added by ``python tools/architectures.py --missing``."""
    table = json.loads((FILE.parent.parent / "bench" / "results" / "architectures.json").read_text())
    rows = {row["class"]: row for row in table["rows"]}
    assert set(rows) == {*FAMILIES, *PAIRED, *UNSUPPORTED}
    assert {name: row["refused"] for name, row in rows.items() if "refused" in row} == UNSUPPORTED
    assert [name for name, row in rows.items() if "failed" in row] == []


def test_rows_that_are_there_are_kept(tool, tmp_path, monkeypatch):
    asked = ["--only", "MPNetModel", "MPNetForT", "--configurations", "1", "--missing", "--out", str(tmp_path)]
    assert tool.main(asked) == 0
    first = json.loads((tmp_path / "architectures.json").read_text())
    monkeypatch.setattr(tool, "measure", lambda *_: pytest.fail("measured again"))
    monkeypatch.setitem(UNSUPPORTED, "MPNetForTwo", "it is none")
    assert tool.main(asked) == 0
    second = json.loads((tmp_path / "architectures.json").read_text())
    assert [row for row in second["rows"] if "engines" in row] == first["rows"]
    assert [row["class"] for row in second["rows"]] == ["MPNetForTokenClassification", "MPNetForTwo", "MPNetModel"]
    (tmp_path / "architectures.json").write_text(json.dumps(first | {"torch": "1.0"}))
    with pytest.raises(SystemExit, match=r"--missing.*'torch': '1.0'.*measure all rows"):
        tool.main(asked)


def test_names_are_taken_apart(tool):
    assert tool.parted("XLMRobertaForMaskedLM") == ("XLMRoberta", "ForMaskedLM")
    assert tool.parted("FlaubertWithLMHeadModel") == ("Flaubert", "WithLMHeadModel")
    assert tool.parted("BertModel") == ("Bert", "Model")


def test_what_is_measured_refused_and_failed_is_told(tool, tmp_path, monkeypatch):
    monkeypatch.setitem(FAMILIES, "MPNetConfig", FAMILIES["MPNetModel"])  # no model, so that it cannot be made
    monkeypatch.setitem(UNSUPPORTED, "MPNetForNothing", "it is | none")
    assert tool.main(["--only", "MPNet", "--configurations", "1", "--out", str(tmp_path)]) == 1
    rows = {row["class"]: row for row in json.loads((tmp_path / "architectures.json").read_text())["rows"]}
    assert set(rows) == set(tool.names(["MPNet"])) and len(rows) == 8
    assert rows["MPNetForNothing"]["refused"] == "it is | none"
    assert "MPNetConfig" in rows["MPNetConfig"]["failed"] or "config_class" in rows["MPNetConfig"]["failed"]
    for name in ("MPNetModel", "MPNetForMaskedLM", "MPNetForTokenClassification"):
        engines = rows[name]["engines"]
        assert set(engines) == {"reference", "forward", "adjoint"} and rows[name]["configurations"] == 1
        for values in engines.values():
            assert values["completeness_float64"] < 1e-12 and values["difference"] < 1e-12
            assert 1e-9 < values["completeness_float32"] < 1e-4
            assert values["layer_gap"] < 1e-12
    text = (tmp_path / "architectures.md").read_text()
    assert "8 classes" in text and "6 explained, 1 refused by name, 1 failed" in text
    assert "| MPNet | ForMaskedLM | 1 |" in text
    assert "| MPNetForNothing | it is / none |" in text
