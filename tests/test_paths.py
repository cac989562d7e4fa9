"""Scores along paths (``steps=``): complete to the difference to the baseline, and what they are made of."""

from __future__ import annotations

import json

import models
import numpy
import pytest
import task_models
import torch
import transformers
from explainers import bert, roberta
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from decompx_fast import DecompX, Explanation
from decompx_fast.bulk import explain_dataset, load_results
from decompx_fast.cli import main
from decompx_fast.engines.path import TRIED, Path, mean_scores, pooled, random_sets, step_sizes, trials_of
from decompx_fast.errors import InputError, OptionError
from decompx_fast.evaluation.method import Problem, get_method
from decompx_fast.request.encoding import Reader
from decompx_fast.request.versions import generator_of
from decompx_fast.result.account import account
from decompx_fast.result.difference import difference

TEXT, OTHER = models.TEXTS[:2]


@pytest.fixture(scope="module")
def explainer() -> DecompX:
    found = bert(40)
    return DecompX(found.model, found.tokenizer)


def model_says(explainer: DecompX, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return explainer.model(torch.tensor([ids])).logits[0]


def nothing_left(explainer: DecompX, ids: list[int], baseline: str) -> list[int]:
    special = explainer.tokenizer.all_special_ids
    if baseline == "remove":
        return [i for i in ids if i in special]
    fill = explainer.tokenizer.mask_token_id if baseline == "mask" else explainer.tokenizer.pad_token_id
    return [i if i in special else fill for i in ids]


@pytest.mark.parametrize("baseline", ["mask", "pad", "remove"])
@pytest.mark.parametrize("steps", [1, 3, 50])
def test_scores_add_up_to_the_difference_to_the_baseline(explainer, baseline, steps) -> None:
    found = explainer(TEXT, steps=steps, baseline=baseline)
    ids = list(found.token_ids)
    value, end = model_says(explainer, ids), model_says(explainer, nothing_left(explainer, ids, baseline))
    assert (found.target_logits - value).abs().max() < 1e-12
    assert (found.baseline_logits - end).abs().max() < 1e-12
    assert (found.scores.sum(0) - (value - end)).abs().max() < 1e-12
    assert found.completeness_error < 1e-12
    assert (found.scores[list(found.special)] == 0).all()
    free = len(ids) - sum(found.special)
    assert found.metadata["versions"] == steps + 3 * min(steps, free)


def test_scores_are_what_versions_say(explainer) -> None:
    """The definition once more, with a call of the explainer for each version."""
    steps, target = 3, "POSITIVE"
    whole = explainer(TEXT, targets=target)
    ids = torch.tensor(whole.token_ids)
    free = [k for k, special in enumerate(whole.special) if not special]
    mask = explainer.tokenizer.mask_token_id

    def version(absent) -> tuple[torch.Tensor, float]:
        changed = ids.clone()
        changed[list(absent)] = mask
        encoding = {"input_ids": changed.tolist(), "special_tokens_mask": [int(one) for one in whole.special]}
        found = explainer(encoding, targets=target, bias="none")
        return found.scores[:, 0], float(found.target_logits[0])

    gone: list[int] = []
    scores, value = whole.scores[:, 0], float(whole.target_logits[0])
    drops, along = [], torch.zeros(len(ids), dtype=torch.float64)
    for step in range(1, steps + 1):
        order = sorted((k for k in free if k not in gone), key=lambda k: -float(scores[k]))
        leaving = order[: round(len(free) * step / steps) - len(gone)]
        gone += leaving
        later_scores, later = version(gone)
        along[leaving] = scores[leaving] - scores[leaving].mean()
        drops.append((leaving, value - later))
        scores, value = later_scores, later
    levels = isotonic_regression(
        [drop / len(leaving) for leaving, drop in drops], weights=[len(x) for x, _ in drops], increasing=False
    ).x
    for (leaving, _), level in zip(drops, levels, strict=True):
        along[leaving] += level

    present = random_sets(len(free), steps, generator_of(ids.tolist(), 7, "paths"))
    total, count = torch.zeros(len(free), dtype=torch.float64), torch.zeros(len(free))
    for row in present:
        scores, _ = version([k for k, there in zip(free, row, strict=True) if not there])
        total += scores[free] * row
        count += row
    mean = torch.where(count > 0, total / count.clamp_min(1), whole.scores[free, 0])
    mean += (float(whole.target_logits[0]) - value - mean.sum()) / len(free)

    found = explainer(TEXT, targets=target, steps=steps, seed=7)
    assert (found.scores[free, 0] - (along[free] + mean) / 2).abs().max() < 1e-12


def test_a_path_of_one_step_has_the_scores_of_the_text_up_to_a_constant() -> None:
    scores = torch.tensor([3.0, -1.0, 0.5], dtype=torch.float64)
    path = Path(scores, 4.0)
    path.leave(3)
    path.arrive(1.0, torch.zeros(3))
    assert torch.allclose(path.shared(), scores + (3.0 - scores.sum()) / 3)


def test_words_leave_together(explainer) -> None:
    found = explainer((TEXT, OTHER), steps=4, sources="word", targets="POSITIVE")
    assert found.source_unit == "word" and len(found) == len(explainer((TEXT, OTHER), sources="word"))
    assert found.completeness_error < 1e-12
    assert (found.words().scores == found.scores).all()


def test_a_seed_says_which_tokens_are_drawn(explainer) -> None:
    first, again, other = (explainer(TEXT, steps=4, seed=seed) for seed in (0, None, 1))
    assert (first.scores == again.scores).all() and first.metadata["seed"] == again.metadata["seed"] == 0
    assert (first.scores - other.scores).abs().max() > 1e-6 and other.metadata["seed"] == 1
    assert 0 < first.metadata["standard_error"] < first.scores.abs().max()


@pytest.mark.parametrize("baseline", ["mask", "remove"])
def test_a_batch_gives_what_each_text_gives_alone(explainer, baseline) -> None:
    ids = explainer.tokenizer(TEXT)["input_ids"]
    same_length = [ids[0], *reversed(ids[1:-1]), ids[-1]]
    inputs = [ids, explainer.tokenizer(OTHER)["input_ids"], same_length]
    for found, alone in zip(explainer(inputs, steps=3, baseline=baseline), inputs, strict=True):
        assert (found.scores - explainer(alone, steps=3, baseline=baseline).scores).abs().max() < 1e-12


def test_a_column_does_not_depend_on_the_others(explainer) -> None:
    all_classes, one = explainer(TEXT, steps=3), explainer(TEXT, steps=3, targets="NEUTRAL")
    assert (all_classes.scores[:, 1] - one.scores[:, 0]).abs().max() < 1e-12
    difference = explainer(TEXT, steps=3, targets={"POSITIVE": 1, "NEGATIVE": -1})
    assert difference.completeness_error < 1e-12


def test_the_rest_of_a_result_knows_the_baseline(explainer, tmp_path) -> None:
    found = explainer(TEXT, steps=2)
    found.save(tmp_path / "one.safetensors")
    for back in (
        Explanation.load(tmp_path / "one.safetensors"),
        Explanation.from_dict(json.loads(json.dumps(found.to_dict()))),
    ):
        assert (back.baseline_logits == found.baseline_logits).all()
        assert (back.totals - found.target_logits).abs().max() < 1e-12
    said = account(found, 1)
    assert (said.status, said.apart_name, said.is_sound) == ("Complete", "baseline", True)
    assert said.extent.endswith("of the model's value less the baseline's")
    assert account(explainer(TEXT, steps=2, bias="none"), 1).status == "Complete"
    assert "Baseline" in found.to_html() and "baseline" in found.to_html(full=True)
    assert (found.at("POSITIVE").baseline_logits == found.baseline_logits[2:]).all()
    assert "baseline_logits" not in explainer(TEXT).to_dict()


def test_a_decoder_whose_texts_begin_with_a_special_token() -> None:
    config = transformers.GPT2Config(
        vocab_size=models.WORD_PIECES, n_positions=40, n_embd=8, n_layer=2, n_head=2, num_labels=2, pad_token_id=0
    )
    torch.manual_seed(0)
    model = transformers.GPT2ForSequenceClassification(config).eval().double()
    explainer = DecompX(model, models.word_piece())
    inputs = {"input_ids": [2, 5, 6, 7], "special_tokens_mask": [1, 0, 0, 0]}
    found = explainer(inputs, steps=2, baseline="remove")
    with torch.no_grad():
        end = model(torch.tensor([[2]])).logits[0]
    assert (found.baseline_logits - end).abs().max() < 1e-12 and found.completeness_error < 1e-12
    with pytest.raises(OptionError, match="baseline='pad' moves the position that this model reads.*baseline='remove'"):
        explainer(inputs, steps=2, baseline="pad")


def test_what_cannot_be_asked_is_refused_with_what_to_do(explainer) -> None:
    refusals = {
        r"steps=0: use a whole number from 1": {"steps": 0},
        r"steps=True: use a whole number from 1": {"steps": True},
        r"baseline='zero': use one of 'mask', 'pad', 'remove'": {"steps": 2, "baseline": "zero"},
        r"baseline='mask' is where the paths of steps= end: give steps too": {"baseline": "mask"},
        r"seed=-1: use a whole number from 0": {"steps": 2, "seed": -1},
        r"seed=1 is for language models that write, and scores along paths \(steps=\)": {"seed": 1},
        r"head=False cannot be had along a path \(steps=2\): norms": {"steps": 2, "head": False},
        r"stages=\['ln1'\] cannot be had along a path": {"steps": 2, "stages": ["ln1"]},
        r"positions=\[0\] cannot be had along a path": {"steps": 2, "positions": [0]},
        r"check='thorough' cannot be had along a path": {"steps": 2, "check": "thorough"},
    }
    refusals[r"steps=array\(\[1, 2\]\): use a whole number from 1, 'auto'"] = {"steps": numpy.array([1, 2])}
    for message, arguments in refusals.items():
        with pytest.raises(OptionError, match=message):
            explainer(TEXT, **arguments)
    with pytest.raises(InputError, match=r"baseline='mask' puts the mask token.*use baseline='remove' or 'pad'"):
        DecompX(explainer.model)([2, 5, 6, 3], steps=2)
    with pytest.raises(InputError, match=r"baseline='remove' takes out all tokens at last.*use baseline='mask'"):
        DecompX(explainer.model)([5, 6, 7], steps=2, baseline="remove")


def test_models_that_answer_at_positions_are_refused() -> None:
    with pytest.raises(OptionError, match="steps=2 needs a head that answers once.*token-classification"):
        DecompX(task_models.model("token-classification"))([2, 5, 6, 3], steps=2, baseline="remove")


def test_differences_are_of_two_that_were_made_alike(explainer) -> None:
    first, second = explainer(TEXT, steps=2, targets="POSITIVE"), explainer(TEXT, steps=3, targets="POSITIVE")
    found = difference(first, second)
    assert found.baseline_logits.abs().max() < 1e-12 and found.completeness_error < 1e-12
    with pytest.raises(InputError, match="one of a and b has scores along paths.*explain both with the same steps"):
        difference(first, explainer(TEXT, targets="POSITIVE"))


def test_failures_stand_in_their_places(explainer) -> None:
    found = explainer([TEXT, "", OTHER], steps=2, on_error="skip")
    assert [one.ok for one in found] == [True, False, True]


def test_float32_models_are_complete_to_their_rounding() -> None:
    source = roberta(40)
    explainer = DecompX(source.model.float(), source.tokenizer)
    found = explainer(TEXT, steps=4)
    assert found.scores.dtype == torch.float64  # so that the sum is exact
    assert found.completeness_error < 1e-12


def test_the_command_line_and_bulk_take_steps(explainer, tmp_path) -> None:
    folder = tmp_path / "model"
    explainer.model.save_pretrained(folder)
    explainer.tokenizer.save_pretrained(folder)
    out = tmp_path / "one.json"
    asked = ["--model", str(folder), "--steps", "2", "--baseline", "remove", "--seed", "3"]
    assert main(["explain", TEXT, *asked, "--json", str(out), "--quiet"]) == 0
    (said,) = json.loads(out.read_text())
    explain_dataset(
        [{"text": TEXT}],
        str(folder),
        out=tmp_path / "bulk",
        workers=0,
        steps=2,
        baseline="remove",
        seed=3,
        progress=False,
    )
    (row,) = load_results(tmp_path / "bulk")
    assert said["metadata"]["steps"] == 2 and said["metadata"]["baseline"] == "remove"
    assert row.scores.tolist() == said["scores"] and row.baseline_logits.tolist() == said["baseline_logits"]


@pytest.mark.parametrize(("name", "steps"), [("decompx-paths", 10), ("decompx-paths-3", 3)])
def test_the_methods_of_the_evaluation_are_the_same(explainer, name, steps) -> None:
    reader = Reader(explainer.tokenizer, None)
    inputs = [reader.read_one(text, text) for text in (TEXT, OTHER)]
    scores = get_method(name).score(Problem(explainer.model, explainer.tokenizer, inputs, [2, 0], seed=5))
    for row, text, target in zip(scores, (TEXT, OTHER), (2, 0), strict=True):
        assert (row - explainer(text, targets=target, steps=steps, seed=5).scores[:, 0]).abs().max() < 1e-12


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 4)), min_size=1, max_size=12))
def test_pooled_is_isotonic_regression(pairs) -> None:
    values, weights = [value for value, _ in pairs], [weight for _, weight in pairs]
    expected = isotonic_regression(values, weights=weights, increasing=False).x
    assert pooled(values, weights) == pytest.approx(list(expected), abs=1e-12)


@given(st.integers(1, 40), st.integers(1, 60))
def test_steps_take_all_sources(sources, steps) -> None:
    sizes = step_sizes(sources, steps)
    assert sum(sizes) == sources and min(sizes) >= 1 and len(sizes) == min(sources, steps)


@given(st.integers(1, 12), st.integers(1, 9))
def test_random_sets_come_in_pairs_that_complete_each_other(sources, count) -> None:
    present = random_sets(sources, count, torch.Generator().manual_seed(0))
    assert present.shape == (count, sources)
    for first, second in zip(present[::2], present[1::2], strict=False):
        assert (first ^ second).all()


def test_standard_errors_are_those_of_means() -> None:
    present = torch.tensor([[True, True], [True, False], [True, False], [True, False]])
    scores = torch.tensor([[1.0, 9.0], [2.0, 7.0], [4.0, 7.0], [5.0, 7.0]], dtype=torch.float64)[..., None]
    found, error = mean_scores(present, scores, torch.zeros(2, 1), torch.tensor([12.0]))
    assert found[:, 0].tolist() == [3.0, 9.0]
    own = scores[:, 0, 0]
    assert error[0, 0].item() == pytest.approx((own.std() / 2).item()) and error[1, 0].isnan()


def test_auto_is_the_number_of_steps_from_which_on_little_changes(explainer) -> None:
    """Again from calls with fixed numbers; each text of a batch has its own."""
    texts, target = list(models.TEXTS[:3]), "POSITIVE"
    for text, found in zip(texts, explainer(texts, steps="auto", targets=target), strict=True):
        steps, before = 3, explainer(text, steps=3, targets=target)
        versions = before.metadata["versions"]
        while True:
            steps *= 2
            now = explainer(text, steps=steps, targets=target)
            versions += now.metadata["versions"]
            change = float((now.scores - before.scores).norm() / now.scores.norm())
            if change <= 0.1 or steps == 48:
                break
            before = now
        assert (found.scores - now.scores).abs().max() < 1e-12 and found.completeness_error < 1e-12
        assert (found.metadata["steps"], found.metadata["versions"]) == (steps, versions)
        assert found.metadata["steps_change"] == pytest.approx(change, rel=0.05)
        assert found.metadata["standard_error"] == now.metadata["standard_error"]


def test_scores_that_do_not_settle_are_said(explainer, monkeypatch) -> None:
    monkeypatch.setattr("decompx_fast.calls.path_job.TOLERANCE", 0.0)
    monkeypatch.setattr("decompx_fast.calls.path_job.MOST_STEPS", 6)
    with pytest.warns(UserWarning, match="input 0: with 6 steps its scores still change by .*give steps= a larger"):
        found = explainer(TEXT, steps="auto", targets="POSITIVE")
    assert found.metadata["steps"] == 6
    with pytest.raises(OptionError, match="steps='many': use a whole number from 1, 'auto', 'search', or leave it out"):
        explainer(TEXT, steps="many")


def test_the_command_line_and_bulk_take_auto_and_search(explainer, tmp_path, capsys) -> None:
    folder = tmp_path / "model"
    explainer.model.save_pretrained(folder)
    explainer.tokenizer.save_pretrained(folder)
    asked = ["--model", str(folder), "--target", "POSITIVE", "--steps"]
    assert main(["explain", TEXT, *asked, "auto", "--json", str(tmp_path / "one.json"), "--quiet"]) == 0
    (said,) = json.loads((tmp_path / "one.json").read_text())
    out = tmp_path / "bulk"
    explain_dataset([{"text": TEXT}], str(folder), out=out, workers=0, steps="auto", targets="POSITIVE", progress=False)
    (row,) = load_results(out)
    assert row.metadata["steps"] == said["metadata"]["steps"] >= 6
    assert main(["explain", TEXT, *asked, "search", "--json", str(tmp_path / "one.json"), "--quiet"]) == 0
    (said,) = json.loads((tmp_path / "one.json").read_text())
    explain_dataset(
        [{"text": TEXT}],
        str(folder),
        out=tmp_path / "searched",
        workers=0,
        steps="search",
        targets="POSITIVE",
        progress=False,
    )
    (row,) = load_results(tmp_path / "searched")
    assert row.metadata["versions"] == said["metadata"]["versions"]
    trials = trials_of(len(said["tokens"]) - 2, TRIED)  # all but [CLS] and [SEP]
    assert said["metadata"]["versions"] == 2 * (1 + 2 * trials)  # masked and removed; without some, and these alone
    for wrong in ("many", "0"):
        assert main(["explain", TEXT, *asked, wrong]) == 2
        assert f"{wrong!r}: use a whole number from 1, 'auto' or 'search'" in capsys.readouterr().err


def test_a_plan_of_auto_is_of_the_most_that_it_may_take(explainer) -> None:
    plans = [explainer.plan(12, steps=steps, targets="POSITIVE") for steps in (3, 6, 12, 24, 48)]
    most = explainer.plan(12, steps="auto", targets="POSITIVE")
    assert most.versions_along == sum(plan.versions_along for plan in plans)
    assert most.versions_of_sets == sum(plan.versions_of_sets for plan in plans) == 93
