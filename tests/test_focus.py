"""Sources of which cheap scores name the tokens that stay by themselves: the same as groups given by hand."""

from __future__ import annotations

import dataclasses
import json
import re
from io import StringIO

import models
import numpy
import pytest
import torch
import vision_models
from encoder_decoders import model_of, tokenizer
from explainers import EXACT, LABELS, assert_close, logits_of
from generation_models import PROMPT, byte_level, llama
from models import classifier
from refusals import refuses
from rich.console import Console

from decompx_fast import DecompX, Explanation, Failure, difference
from decompx_fast.bulk import load_results
from decompx_fast.calls.job import Job
from decompx_fast.cli import main
from decompx_fast.errors import OptionError, PlanError
from decompx_fast.request.encoded import Encoded
from decompx_fast.request.focus import WINDOW, focused_sources, kept_tokens
from decompx_fast.result.display import layout_text

TEXT = "It is good. I'd watch it again, from the first scene to the last! The acting is not bad at all. Why?"
SHORT = "a gripping film, and a moving one."


def member_ids(explainer: DecompX, text, kept: list[int]) -> list[int]:
    """A group id for each token: its own for special and kept ones, else the number of the sentence, by its end."""
    encoding = explainer.tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    ends = [found.end() for found in re.finditer(r"[.!?](?=\s|$)", text)]
    ids = []
    for n, ((start, _), special) in enumerate(
        zip(encoding["offset_mapping"], encoding["special_tokens_mask"], strict=True)
    ):
        ids.append(100 + n if special or n in kept else sum(end <= start for end in ends))
    return ids


def most_important(explainer: DecompX, text, count: int, **options) -> list[int]:
    """The tokens of the largest share of any target's magnitude, from scores without biases."""
    found = explainer.explain(text, bias="none", engine="reference", **options)
    size = found.scores.abs() * ~torch.tensor(found.special)[:, None]
    shares = (size / size.sum(0)).amax(1)
    return sorted(sorted(range(len(found)), key=lambda n: -shares[n])[:count])


@pytest.mark.parametrize("engine", ["reference", "forward"])
@pytest.mark.parametrize("count", [4, 9])
def test_the_sources_are_the_groups_that_one_would_give_by_hand(bert, engine, count):
    found = bert.explain(TEXT, sources="focus", focus=count, engine=engine)
    kept = most_important(bert, TEXT, count)
    by_hand = bert.explain(TEXT, sources=member_ids(bert, TEXT, kept), engine=engine)
    assert found.metadata["focus"]["kept"] == kept
    assert torch.equal(found.scores, by_hand.scores) and found.tokens == by_hand.tokens
    assert found.spans == by_hand.spans and found.stretches == by_hand.stretches
    assert_close(found.scores.sum(0), logits_of(bert, TEXT))
    tokens = bert.explain(TEXT).tokens
    assert [found.tokens[k].lower() for k in found.metadata["focus"]["sources"]] == [
        tokens[n].removeprefix("##") for n in kept
    ]


@pytest.mark.parametrize("bias", ["none", "equal", "bias_token", "cls", "norm"])
def test_scores_add_up_under_every_rule(bert, bias):
    found = bert.explain(TEXT, sources="focus", focus=5, bias=bias)
    total = found.totals
    if bias == "none":
        total = total + sum(site.value for site in bert.explain(TEXT, bias="none", engine="adjoint").sites())
    assert_close(total, logits_of(bert, TEXT))


def test_what_is_kept_and_the_share_that_it_holds_are_told(bert):
    found = bert.explain(TEXT, sources="focus", focus=5, targets=["POSITIVE", {"POSITIVE": 1, "NEGATIVE": -1}])
    focus = found.metadata["focus"]
    plain = bert.explain(TEXT, bias="none", targets=["POSITIVE", {"POSITIVE": 1, "NEGATIVE": -1}])
    size = plain.scores.abs() * ~torch.tensor(plain.special)[:, None]
    assert focus["tokens"] == 5 == len(focus["kept"]) == len(focus["sources"])
    for c, target in enumerate(found.targets):
        assert abs(focus["share"][target] - (size[focus["kept"], c].sum() / size[:, c].sum()).item()) < EXACT
    assert found.source_unit == "group" and found.special == tuple(
        token in ("[CLS]", "[SEP]") for token in found.tokens
    )


def test_a_budget_for_all_tokens_is_the_plain_explanation(bert, monkeypatch):
    plain = bert.explain(SHORT)
    ordinary = [n for n, special in enumerate(plain.special) if not special]
    passes = []
    monkeypatch.setattr("decompx_fast.calls.job.Job._linearize", _counted(passes))
    found = bert.explain(SHORT, sources="focus", focus=len(ordinary))
    assert len(passes) == 1
    assert torch.equal(found.scores, plain.scores) and found.token_ids == plain.token_ids
    assert (found.source_unit, found.tokens, found.stretches) == ("token", plain.tokens, None)
    assert found.metadata["focus"] == {"tokens": len(ordinary), "kept": ordinary, "sources": ordinary}
    assert len(bert.explain(SHORT, sources="focus", focus=len(ordinary) - 1)) == len(plain)  # a group of one
    assert len(passes) == 3


def _counted(passes: list):
    run = Job._linearize
    return lambda self, *arguments: passes.append(self) or run(self, *arguments)


def test_a_number_of_another_kind_is_kept_as_json_has_it(bert):
    found = bert.explain(SHORT, sources="focus", focus=numpy.int64(3))
    assert json.loads(json.dumps(found.to_dict()))["metadata"]["focus"]["tokens"] == 3


def test_of_words_too_it_is_told_which_are_kept(bert):
    """Where all tokens stay, they may be merged, and words are counted anew."""
    found = bert.explain("unbelievably good", sources="focus")
    assert len(found.words()) < len(found)
    table = found.words().to_dataframe()
    assert table["kept"].tolist() == [not special for special in found.words().special]
    assert found.words().metadata["focus"]["kept"] == found.metadata["focus"]["kept"]


def test_a_list_has_what_each_text_has_by_itself(bert):
    texts = [TEXT, SHORT, TEXT.replace("good", "dull"), "fine", SHORT.replace("moving", "gripping")]
    for size in (None, 1, 2):
        found = list(bert.explain_iter(texts, sources="focus", focus=4, batch_size=size))
        for one, text in zip(found, texts, strict=True):
            alone = bert.explain(text, sources="focus", focus=4)
            assert one.tokens == alone.tokens and one.metadata["focus"]["kept"] == alone.metadata["focus"]["kept"]
            assert_close(one.scores, alone.scores)
    again = bert.explain(TEXT, sources="focus", focus=4)
    assert torch.equal(again.scores, bert.explain(TEXT, sources="focus", focus=4).scores)


def test_a_stream_is_read_no_further_than_without_a_focus(bert):
    read = []
    texts = (read.append(n) or TEXT for n in range(3))
    found = bert.explain_iter(texts, sources="focus", focus=4, batch_size=1)
    next(found)
    assert read == [0]


def test_pairs_and_special_tokens_are_kept_apart(bert):
    pair = (TEXT, SHORT)
    tokens = bert.explain(pair)
    found = bert.explain(pair, sources="focus", focus=2)
    assert sum(found.special) == 3 and found.metadata["focus"]["kept"] == most_important(bert, pair, 2)
    assert not any(tokens.special[n] for n in found.metadata["focus"]["kept"])
    for spans in found.stretches:
        assert len({span[0] for span in spans}) <= 1
    assert len(found) <= 2 + 2 + 3  # kept tokens, as many groups, special tokens
    assert_close(found.scores.sum(0), logits_of(bert, *pair))


def encoded(length: int, *, texts: tuple[str, ...] = (), spans=None, special: int = 1, encoder: int | None = None):
    """An input of so many tokens, of which some at both ends are special."""
    inputs = {"input_ids": torch.arange(length)}
    ends = {*range(special), *range(length - special, length)}
    return Encoded(
        inputs,
        tuple(map(str, range(length))),
        spans or (None,) * length,
        tuple(n in ends for n in range(length)),
        texts,
        encoder=encoder,
    )


def test_there_are_no_more_groups_than_kept_tokens():
    for length, count in ((1000, 3), (300, 64), (2000, 7)):
        kept = [5, 6, 250]
        sources = focused_sources(encoded(length), kept, count)
        groups = [group.positions for group in sources.groups]
        assert sorted(position for group in groups for position in group) == list(range(length))
        assert all((position,) in groups for position in (0, length - 1, *kept))
        assert len(groups) <= 2 + len(kept) + count
        assert groups == sorted(groups)


def test_ids_without_a_text_are_grouped_by_windows():
    sources = focused_sources(encoded(2 + 3 * WINDOW), [1], 64)
    sizes = [len(group.positions) for group in sources.groups]
    assert sizes == [1, 1, WINDOW - 1, WINDOW, WINDOW, 1]


def test_a_long_sentence_is_cut_into_equal_windows():
    text = " ".join(["word"] * (WINDOW + 10))
    spans = (None, *((0, 5 * n, 5 * n + 4) for n in range(WINDOW + 10)), None)
    sources = focused_sources(encoded(WINDOW + 12, texts=(text,), spans=spans), [3], 64)
    assert sorted(len(group.positions) for group in sources.groups) == [1, 1, 1, 36, 37]


def test_no_group_is_both_of_the_encoder_and_of_the_decoder():
    sources = focused_sources(encoded(40, encoder=25), [10], 2)
    groups = [group.positions for group in sources.groups if len(group.positions) > 1]
    assert groups == [(*range(1, 10), *range(11, 25)), tuple(range(25, 39))]


def test_targets_share_the_budget_by_their_largest_share():
    shares = torch.tensor([[0.9, 0.9], [0.1, 0.3], [0.2, 0.0], [0.4, 0.1], [0.2, 0.3], [0.9, 0.9]])
    assert kept_tokens(shares, encoded(6), 1) == [3]
    assert kept_tokens(shares, encoded(6), 2) == [1, 3]  # the first of equals
    assert kept_tokens(shares, encoded(6), 9) == [1, 2, 3, 4]


def test_all_of_many_classes_are_named_by_the_likeliest():
    explainer = DecompX(classifier(labels=12, vocab=200))
    ids = [*range(20, 50)]
    found = explainer.explain(ids, sources="focus", focus=4)
    logits = models.logits_of(explainer.model, torch.tensor([ids]))[0]
    best = [explainer.labels[n] for n in logits.topk(5).indices]
    assert sorted(found.metadata["focus"]["share"]) == sorted(best) and len(found.targets) == 12
    one = explainer.explain(ids, sources="focus", focus=4, targets=3)
    assert [*one.metadata["focus"]["share"]] == [explainer.labels[3]]


def test_models_that_answer_at_positions():
    e = DecompX(model_of("bart", None), tokenizer())
    text = "the cat sat on mat . the dog sat on the mat ."
    found = e.explain(text, continuation="die katze sitzt auf matte", sources="focus", focus=3)
    assert found.completeness_error < 1e-10 and len(found.targets) == 5 == len(found.metadata["focus"]["share"])
    assert 0 < found.metadata["encoder_sources"] < len(found)
    lm = DecompX(llama(), byte_level())
    said = lm.explain(PROMPT, continuation=" Paris", sources="focus", focus=3)
    assert said.completeness_error < 1e-10 and len(said.metadata["focus"]["kept"]) == 3


def test_scores_along_paths_of_what_is_in_focus(bert):
    found = bert.explain(TEXT, sources="focus", focus=4, steps=2, targets="POSITIVE", engine="forward")
    same = bert.explain(
        TEXT,
        sources=member_ids(bert, TEXT, found.metadata["focus"]["kept"]),
        steps=2,
        targets="POSITIVE",
        engine="forward",
    )
    assert torch.equal(found.scores, same.scores)


def test_failures_stand_in_their_places(bert):
    long = " ".join(["good"] * 100)
    found = bert.explain([TEXT, long, SHORT], sources="focus", focus=3, on_error="skip")
    assert [one.ok for one in found] == [True, False, True] and isinstance(found[1], Failure)


# What is seen of it.


@pytest.fixture(scope="module")
def focused(bert) -> Explanation:
    return bert.explain(TEXT, sources="focus", focus=4)


def test_it_is_kept_by_every_file(focused, tmp_path):
    focused.save(tmp_path / "one.safetensors")
    for again in (
        Explanation.load(tmp_path / "one.safetensors"),
        Explanation.from_dict(json.loads(json.dumps(focused.to_dict()))),
    ):
        assert again.stretches == focused.stretches and again.metadata["focus"] == focused.metadata["focus"]
        assert torch.equal(again.scores, focused.scores)
    table = focused.to_dataframe()
    assert [*table.index[table["kept"]]] == focused.metadata["focus"]["sources"]
    several = next(k for k, spans in enumerate(focused.stretches) if len(spans) > 1)
    assert table["text"][several] == focused.tokens[several] and " … " in focused.tokens[several]


def test_the_views_colour_each_token_as_its_source(focused, bert):
    (pieces,) = layout_text(focused)
    assert "".join(piece.text for piece in pieces if not piece.is_marker) == TEXT
    source_of = member_ids(bert, TEXT, focused.metadata["focus"]["kept"])
    group_of = {group: k for k, group in enumerate(dict.fromkeys(source_of))}
    tokens = bert.explain(TEXT)
    at = 0
    for piece in pieces:
        if piece.is_marker:
            continue
        inside = [
            group_of[source_of[n]]
            for n, span in enumerate(tokens.spans)
            if span and at <= span[1] and span[2] <= at + len(piece.text) and span[1] < span[2]
        ]
        assert {*inside} == {*piece.positions}
        at += len(piece.text)
    page = focused.to_html(full=True)
    assert page.count("data-k=") == sum(bool(piece.positions) for piece in pieces)
    assert "4 tokens by themselves" in page
    stream = StringIO()
    focused.show(console=Console(file=stream, width=200))
    assert "4 tokens by themselves" in stream.getvalue() and "I'd watch it again" in stream.getvalue()


def test_groups_by_hand_are_shown_where_their_tokens_are(bert):
    found = bert.explain("good film. bad film.", sources=[0, 1, 2, 1, 3, 2, 1, 0])
    assert found.stretches == ((), ((0, 0, 4), (0, 9, 10), (0, 19, 20)), ((0, 5, 9), (0, 15, 19)), ((0, 11, 14),))
    assert found.tokens[1:] == ("good … . … .", "film … film", "bad")
    assert found.spans[2] is None and found.special == (True, False, False, False)


def test_stretches_that_cannot_be(focused):
    for stretches, match in (
        (focused.stretches[1:], ("stretches must have",)),
        ((((0, 0, 999),), *focused.stretches[1:]), ("stretches[0][0] must be",)),
    ):
        refuses(dataclasses.replace, focused, stretches=stretches, match=match)


def test_differences_of_the_same_focus_and_of_another(bert, focused):
    same = difference(focused, bert.explain(TEXT, sources="focus", focus=4, bias="equal"), names=("a", "b"))
    assert same.stretches == focused.stretches
    other = bert.explain(TEXT, sources="focus", focus=3)
    refuses(difference, focused, other, names=("a", "b"), match=("several stretches", "same groups"))


# Arguments.


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"focus": 5}, ("focus=5", "sources='focus'", "'token'")),
        ({"focus": 5, "sources": [0, 1]}, ("focus=5", "leave focus out")),
        ({"sources": "focus", "focus": 0}, ("focus=0", "whole number from 1")),
        ({"sources": "focus", "focus": 2.5}, ("focus=2.5", "whole number from 1")),
        ({"sources": "focus", "head": False}, ("head=False", "leave one of them out")),
        ({"sources": "focusses"}, ("sources='focusses'", "'focus'")),
    ],
)
def test_arguments_that_cannot_be(bert, options, match):
    refuses(bert.explain, TEXT, error=OptionError, match=match, **options)


def test_pictures_have_no_focus():
    explainer = DecompX(vision_models.classifier(next(iter(vision_models.CASES))))
    refuses(explainer.explain, [], sources="focus", error=OptionError, match=("is for texts",))


# Before anything is allocated.


def test_a_plan_has_both_passes():
    explainer = DecompX(classifier(labels=3, id2label=LABELS, positions=4096))
    plan = explainer.plan(2000, focus=30)
    naming = explainer.plan(2000, bias="none", engine="adjoint")
    by_groups = explainer.plan(2000, sources=60)
    assert plan.total_flops == naming.total_flops + by_groups.total_flops
    assert plan.peak_bytes == max(naming.peak_bytes, by_groups.peak_bytes)
    assert "30 tokens by themselves" in str(plan) and str(by_groups.n) in str(plan) and plan.fits
    plan.check()
    assert str(explainer.plan(20, focus=30)) == str(explainer.plan(20))
    refuses(explainer.plan, 20, focus=3, sources=4, error=OptionError, match=("sources=4", "focus=3"))
    refuses(explainer.plan, 20, focus=0, error=OptionError, match=("focus=0",))
    refuses(explainer.plan, 20, focus=3, head=False, error=OptionError, match=("head=False",))
    refuses(explainer.plan(9000, focus=3).check, match=("positions for 4096",), error=PlanError)


# On the command line.


def test_commands_take_it(explain, capsys, cli_folder, tmp_path):
    code, out, _ = explain(SHORT, "--sources", "focus", "--focus", 3, "--json", "-")
    assert code == 0 and len(json.loads(out)[0]["metadata"]["focus"]["kept"]) == 3
    code, _, err = explain(SHORT, "--focus", 3)
    assert code == 2 and "--focus=3" in err and "--sources" in err
    assert main(["plan", "--model", cli_folder, "--tokens", "60", "--focus", "7"]) == 0
    assert "7 tokens by themselves" in capsys.readouterr().out
    (tmp_path / "texts.txt").write_text(f"{SHORT}\nfine\n")
    asked = ["--sources", "focus", "--focus", "3", "--out", str(tmp_path / "out"), "--model", cli_folder]
    assert main(["bulk", str(tmp_path / "texts.txt"), *asked, "--workers", "0", "--quiet"]) == 0
    first, second = load_results(tmp_path / "out")
    assert first.metadata["focus"]["tokens"] == 3 and first.stretches is not None
    assert second.metadata["focus"]["kept"] == [1]
