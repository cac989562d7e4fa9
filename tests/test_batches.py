"""Explanations added to tables: which columns there are, and what is in them; without a cluster."""

from __future__ import annotations

import evaluation_samples
import numpy as np
import pandas
import pyarrow
import pytest
import torch

from decompx_fast import DecompX, Failure
from decompx_fast.errors import InputError, OptionError
from decompx_fast.ray import ADDED, Explainer, explanation_of

TEXTS = ["good film", "", "a fine film, warm and not dull", None, "dull " * 90]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return evaluation_samples.save_classifier(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def explainer(model) -> Explainer:
    return Explainer(model, text_column="review", id_column="n", bias="none")


def table(texts: list, **more) -> pyarrow.Table:
    return pyarrow.table(
        {
            "review": pyarrow.array(texts, pyarrow.string()),
            "n": pyarrow.array(range(len(texts)), pyarrow.int64()),
            **more,
        }
    )


def test_columns_are_added_and_all_others_kept(model, explainer):
    given = table(TEXTS, label=pyarrow.array([None] * 5, pyarrow.int8()))
    found = explainer(given)
    assert found.column_names == [*given.column_names, *ADDED]
    assert found.select(given.column_names).equals(given, check_metadata=True)
    results = [explanation_of(row) for row in found.to_pylist()]
    assert [one.ok for one in results] == [True, False, True, False, False]
    assert "row 1 of the batch has an empty text" in results[1].error
    assert "row 4 of the batch (id 4) has 92 tokens" in results[4].error
    own = DecompX.from_pretrained(model).explain([TEXTS[0], TEXTS[2]], bias="none")
    for one, other in zip((results[0], results[2]), own, strict=True):
        torch.testing.assert_close(one.scores, other.scores, rtol=1e-4, atol=1e-6)  # batches of other sizes
        assert (one.tokens, one.targets, one.options, one.spans) == (
            (other.tokens, other.targets, other.options, other.spans)
        )
    assert isinstance(results[1], Failure) and results[1].error_type == "InputError"


@pytest.mark.parametrize("texts", [[], [None], ["", ""], ["good"], TEXTS])
def test_the_schema_is_the_same_whatever_the_batch_holds(explainer, texts):
    assert explainer(table(texts)).schema.equals(explainer(table(["good film"])).schema, check_metadata=True)


def test_data_frames_are_taken_too(explainer):
    frame = pandas.DataFrame({"review": ["good film"], "n": [3]}, index=[7])
    before = frame.copy()
    found = explainer(frame)
    assert found.column_names == ["review", "n", *ADDED] and found["error"].to_pylist() == [None]
    pandas.testing.assert_frame_equal(frame, before)


def test_columns_of_the_same_names_are_refused_or_told_apart_by_a_prefix(model):
    given = pyarrow.table({"text": ["good film"], "tokens": [3], "labels": [1]})
    with pytest.raises(OptionError, match="prefix=''.*columns named tokens, labels"):
        Explainer(model)(given)
    found = Explainer(model, prefix="decompx_", bias="none")(given)
    assert found["tokens"].to_pylist() == [3]
    assert explanation_of(found.to_pylist()[0], prefix="decompx_").tokens[1:-1] == ("good", "film")
    with pytest.raises(InputError, match="no columns error"):
        explanation_of({"text": "good film"})


def test_what_cannot_be_used_is_refused(model, explainer):
    with pytest.raises(OptionError, match="text_column='review'"):
        explainer(pyarrow.table({"text": ["good film"]}))
    with pytest.raises(OptionError, match="on_error='ignore'"):
        Explainer(model, on_error="ignore")
    with pytest.raises(InputError, match="row 1 of the batch"):
        Explainer(model, text_column="review", on_error="raise")(table(["good film", ""]))
    with pytest.raises(OptionError, match="stages="):
        Explainer(model, stages=("encoder",))


def test_arrays_that_may_not_be_written_are_taken(explainer):
    pytest.importorskip("ray", reason="makes tables of NumPy's arrays; pip install 'decompx-fast[ray]'")
    batch = {"review": np.array(["good film", "dull"], object), "n": np.arange(2), "vectors": np.ones((2, 3))}
    for array in batch.values():
        array.flags.writeable = False
    found = explainer(batch)
    assert found.column_names == [*batch, *ADDED]
    assert np.array_equal(found["vectors"].combine_chunks().to_numpy_ndarray(), batch["vectors"])
    assert found["error"].to_pylist() == [None, None]
