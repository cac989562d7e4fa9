"""LayoutLM: the boxes of tokens on a page, from an encoding to the scores, and what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import refuses
from test_families import IN_FLOAT32, classifier

from decompx_fast import DecompX

IDS = [[5, 6, 7, 8], [9, 10, 11, 12]]
BOXES = [[[0, 0, 0, 0], [1, 2, 3, 4], [3, 2, 9, 4], [29, 29, 29, 29]], [[0, 0, 2, 2], [4, 4, 8, 9], [1, 1, 1, 1]] * 2]
BOXES[1] = BOXES[1][:4]


@pytest.fixture(scope="module")
def layout() -> DecompX:
    return DecompX(classifier("layoutlm"))


def logits(layout: DecompX, boxes: list[list[list[int]]]) -> torch.Tensor:
    with torch.no_grad():
        return layout.model(input_ids=torch.tensor(IDS), bbox=torch.tensor(boxes)).logits


@pytest.mark.parametrize("engine", ["reference", "forward", "adjoint"])
def test_scores_sum_to_the_logits_of_these_boxes(layout, engine):
    expected = logits(layout, BOXES)
    moved = [[[0, 0, 1, 1]] * 4] * 2
    assert (expected - logits(layout, moved)).abs().max() > 1e-3
    found = layout.explain({"input_ids": IDS, "bbox": BOXES}, engine=engine, bias="bias_token")
    for explanation, row in zip(found, expected, strict=True):
        assert (explanation.logits - row).abs().max() < 1e-10
        total = explanation.scores.sum(0) + explanation.bias_token
        assert (total - row).abs().max() < IN_FLOAT32.get("layoutlm", 1e-10)


@pytest.mark.parametrize("form", [list, torch.tensor, np.array])
def test_boxes_in_every_form(layout, form):
    expected = logits(layout, BOXES)
    found = layout.explain({"input_ids": form(IDS), "bbox": form(BOXES)})
    assert (torch.stack([one.logits for one in found]) - expected).abs().max() < 1e-10
    single = layout.explain({"input_ids": form(IDS[0]), "bbox": form(BOXES[0])})
    assert (single.logits - expected[0]).abs().max() < 1e-10


def test_padding_takes_its_boxes_along(layout):
    ids = [[1, 1, *row] for row in IDS]
    boxes = [[[0, 0, 0, 0]] * 2 + row for row in BOXES]
    found = layout.explain({"input_ids": ids, "bbox": boxes, "attention_mask": [[0, 0, 1, 1, 1, 1]] * 2})
    assert (torch.stack([one.logits for one in found]) - logits(layout, BOXES)).abs().max() < 1e-10


def test_ragged_rows_keep_their_boxes(layout):
    found = layout.explain({"input_ids": [IDS[0], IDS[1][:3]], "bbox": [BOXES[0], BOXES[1][:3]]})
    with torch.no_grad():
        short = layout.model(input_ids=torch.tensor([IDS[1][:3]]), bbox=torch.tensor([BOXES[1][:3]])).logits[0]
    assert (found[0].logits - logits(layout, BOXES)[0]).abs().max() < 1e-10
    assert (found[1].logits - short).abs().max() < 1e-10


def test_tokens_that_are_cut_take_their_boxes_along(layout):
    ids, boxes = list(range(5, 50)), [[n % 15, 0, 15 + n % 15, 20] for n in range(45)]
    with pytest.warns(UserWarning, match="was cut"):
        found = layout.explain({"input_ids": ids, "bbox": boxes}, truncate=True)
    with torch.no_grad():
        kept = layout.model(input_ids=torch.tensor([ids[:40]]), bbox=torch.tensor([boxes[:40]])).logits[0]
    assert (found.logits - kept).abs().max() < 1e-10


def test_without_boxes_the_model_puts_every_token_at_the_origin(layout):
    found = layout.explain(IDS[0])
    assert (found.logits - logits(layout, [[[0, 0, 0, 0]] * 4] * 2)[0]).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("boxes", "match"),
    [
        ([[0, 0, 1, 30]] * 4, ("holds 30 in bbox", "embeddings for 0 to 29")),
        ([[0, -1, 1, 3]] * 4, ("holds -1 in bbox",)),
        ([[0, 0, 1, 3]] * 3 + [[5, 0, 1, 3]], ("the box [5, 0, 1, 3] in bbox for token 3", "x0 <= x1")),
        ([[0, 7, 1, 3]] * 4, ("for token 0", "y0 <= y1")),
        ([[0, 0, 1, 3]] * 3, ("differ in shape", "'bbox': [[3, 4]]")),
        ([[0, 0, 1]] * 4, ("bbox must be [i, 4] or [b, i, 4] whole numbers", "[4, 3]")),
        ([[0.0, 0.5, 1.0, 1.0]] * 4, ("bbox must be [i, 4]", "float32")),
        ([0, 1, 2, 3], ("bbox cannot be read as rows of boxes",)),
        (None, ("bbox cannot be read as rows of boxes",)),
        ([[0, 0, 1, 3], [0, 0, 1]], ("bbox cannot be read as rows of boxes",)),
    ],
)
def test_wrong_boxes_are_refused(layout, boxes, match):
    refuses(layout.explain, {"input_ids": IDS[0], "bbox": boxes}, match=match)


def test_boxes_are_refused_where_the_model_takes_none():
    bert = DecompX(classifier("bert"))
    refuses(bert.explain, {"input_ids": IDS[0], "bbox": BOXES[0]}, match=("the encoding holds 'bbox'", "not supported"))
