"""Models that write a text from a text, and those whose decoder reads the text again: what a user asks and sees."""

from __future__ import annotations

import copy

import pytest
import torch
from encoder_decoders import CASES, END, GERMAN, PAD, T5_LIKE, model_of, tokenizer

from decompx_fast import DecompX
from decompx_fast.errors import InputError, OptionError
from decompx_fast.result.explanation import Explanation

TEXT, OUTPUT = "the cat sat on mat .", "die katze sitzt auf matte"
EXACT = 1e-10


def explainer(case: str = "flan_t5", head: str | None = None, **options) -> DecompX:
    return DecompX(model_of(case, head), tokenizer(), **options)


def ids_of(text: str, *, end: bool = False) -> list[int]:
    return tokenizer()(text, add_special_tokens=end)["input_ids"]


def own_logits(model, read: list[int], fed: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([read]), decoder_input_ids=torch.tensor([fed])).logits[0]


@pytest.mark.parametrize("case", CASES)
def test_the_first_token_is_explained_by_what_encoder_and_decoder_read(case):
    e = explainer(case)
    found = e.explain(TEXT)
    start = e.model.config.decoder_start_token_id
    assert e.task == found.task == "text2text-generation"
    assert found.token_ids == (*ids_of(TEXT, end=True), start)
    assert found.metadata["encoder_sources"] == len(found) - 1
    assert found.engine == ("adjoint" if case in T5_LIKE else "forward")
    logits = own_logits(e.model, ids_of(TEXT, end=True), [start])[0]
    assert found.predictions[0].output == int(logits.argmax())
    assert abs(found.scores.sum().item() - logits.max().item()) < (1e-5 if case == "umt5" else EXACT)


ASKED = [
    (case, engine, bias)
    for case in ("flan_t5", "bart", "marian")
    for engine in ("reference", "forward", "adjoint")
    for bias in ("absdot", "equal")
    if engine != "adjoint" or bias == "equal" or case in T5_LIKE  # which weighs no biases by vectors
]


@pytest.mark.parametrize(("case", "engine", "bias"), ASKED)
def test_each_token_of_a_given_output_is_a_column(case, engine, bias):
    e = explainer(case, engine=engine, bias=bias)
    found = e.explain(TEXT, continuation=OUTPUT)
    written, start = ids_of(OUTPUT), e.model.config.decoder_start_token_id
    assert found.targets == tuple(OUTPUT.split()) and found.texts == (TEXT, OUTPUT)
    logits = own_logits(e.model, ids_of(TEXT, end=True), [start, *written[:-1]])
    assert (found.scores.sum(0) - logits[range(5), written]).abs().max() < EXACT
    assert found.completeness_error < EXACT
    later = torch.arange(len(found))[:, None] > len(ids_of(TEXT, end=True)) + torch.arange(5)
    assert (found.scores[later] == 0).all()  # a token of the output owes nothing to what comes after it
    assert found.source_text(len(found) - 1).strip() == "auf"


@pytest.mark.parametrize("head", [None, "ForSequenceClassification"])
def test_types_of_tokens_that_a_tokenizer_makes_and_the_model_does_not_take_are_left_out(head):
    typed = copy.copy(tokenizer())
    typed.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    model = model_of("flan_t5", head)
    asked = [{}] if head else [{}, {"continuation": OUTPUT}, {"generate": 3}]
    for question in asked:
        found, expected = (DecompX(model, one).explain(TEXT, **question) for one in (typed, tokenizer()))
        assert torch.equal(found.scores, expected.scores) and found.tokens == expected.tokens
    with pytest.raises(InputError, match="holds token_type_ids, which a model with a decoder does not take: leave it"):
        DecompX(model, typed).explain(typed(TEXT))


def test_a_text_and_its_ids_are_the_same_output():
    e = explainer("bart")
    by_text, by_ids = e.explain(TEXT, continuation=OUTPUT), e.explain(TEXT, continuation=ids_of(OUTPUT))
    assert torch.equal(by_text.scores, by_ids.scores)
    last = e.explain(TEXT, continuation=OUTPUT, at=-1)
    assert (last.scores[:, 0] - by_text.scores[:, -1]).abs().max() < EXACT
    whole = e.explain(TEXT, continuation=OUTPUT, answer="sum").scores[:, 0]
    assert (whole - by_text.scores.sum(1)).abs().max() < EXACT


@pytest.mark.parametrize("case", ["flan_t5", "bart", "m2m100"])
def test_the_model_writes_and_is_left_as_it_was(case):
    e = explainer(case)
    before = {name: value.clone() for name, value in e.model.state_dict().items()}
    config = e.model.generation_config.to_dict()
    found = e.explain(TEXT, generate=4)
    ids = torch.tensor([ids_of(TEXT, end=True)])
    # With a cache transformers cannot generate by a T5 whose decoder has more layers than its encoder.
    expected = e.model.generate(ids, max_new_tokens=4, do_sample=False, num_beams=1, use_cache=False)[0, 1:].tolist()
    assert [one.output for one in found.predictions] == expected
    assert found.metadata["generate"] == 4 and found.completeness_error < EXACT
    assert e.model.generation_config.to_dict() == config
    assert all(torch.equal(before[name], value) for name, value in e.model.state_dict().items())


def test_a_forced_first_token_is_no_output():
    e = explainer("m2m100")
    e.model.generation_config.forced_bos_token_id = GERMAN
    for arguments in ({}, {"continuation": OUTPUT}, {"generate": 3}):
        found = e.explain(TEXT, **arguments)
        read = found.metadata["encoder_sources"]
        assert found.token_ids[read : read + 2] == (END, GERMAN) and found.special[read : read + 2] == (True, True)
        assert found.completeness_error < EXACT
    ids = torch.tensor([ids_of(TEXT, end=True)])
    expected = e.model.generate(ids, max_new_tokens=4, do_sample=False, num_beams=1)[0].tolist()
    assert expected[:2] == [END, GERMAN] and [one.output for one in found.predictions] == expected[2:]
    first = e.explain(TEXT).predictions[0].output
    assert first == int(own_logits(e.model, ids_of(TEXT, end=True), [END, GERMAN])[-1].argmax())
    assert e.explain(TEXT, generate=1).predictions[0].output == first


@pytest.mark.parametrize("case", ["t5", "bart"])
def test_a_start_in_a_list_of_one_is_that_token(case):
    e = explainer(case)
    e.model.generation_config.decoder_start_token_id = [9]
    found = e.explain(TEXT, generate=3)
    assert found.token_ids[found.metadata["encoder_sources"]] == 9
    written: list[int] = []
    for one in found.predictions:
        written.append(one.output)
        assert one.output == int(own_logits(e.model, ids_of(TEXT, end=True), [9, *written[:-1]])[-1].argmax())
    e.model.generation_config.decoder_start_token_id = [9, 8]
    with pytest.raises(OptionError, match=r"decoder_start_token_id is \[9, 8\]"):
        e.explain(TEXT)


@pytest.mark.parametrize("case", ["bart", "m2m100", "marian"])
def test_nothing_is_written_beyond_the_positions(case):
    e = explainer(case)
    e.model.generation_config.eos_token_id = None
    with pytest.raises(InputError, match="the output of input 0 has 41 tokens"):
        e.explain(TEXT, generate=500)
    assert e.explain(TEXT, generate=40).scores.shape[1] == 40


def test_rows_of_a_batch_are_those_of_each_alone_and_padding_is_dropped():
    e = explainer("flan_t5")
    texts, outputs = [TEXT, "where sat the cat", "a b c"], ["der hund", "wo", "eine katze und"]
    alone = [e.explain(text, continuation=output) for text, output in zip(texts, outputs, strict=True)]
    for side in ("left", "right"):
        encoding = tokenizer()(texts, padding=True, padding_side=side, return_tensors="pt")
        for found in (e.explain(texts, continuation=outputs), e.explain(encoding, continuation=outputs)):
            for one, expected in zip(found, alone, strict=True):
                assert (one.scores - expected.scores).abs().max() < EXACT


@pytest.fixture(scope="module")
def written() -> Explanation:
    return explainer("bart").explain(TEXT, continuation=OUTPUT)


def test_words_groups_and_saved_results_keep_the_blocks(written, tmp_path):
    assert written.words().metadata["encoder_sources"] == written.metadata["encoder_sources"] == 7
    e = explainer("bart")
    sentences = e.explain(TEXT, continuation=OUTPUT, sources="sentence")
    assert sentences.metadata["encoder_sources"] == 2 and len(sentences) == 4
    groups = [0] * 4 + [1] * 3 + [2] * 5
    assert e.explain(TEXT, continuation=OUTPUT, sources=groups).metadata["encoder_sources"] == 2
    mixed = e.explain(TEXT, continuation=OUTPUT, sources=[0] * 4 + [1] * 3 + [0] * 5)
    assert "encoder_sources" not in mixed.metadata
    written.save(tmp_path / "written.safetensors")
    assert Explanation.load(tmp_path / "written.safetensors").metadata["encoder_sources"] == 7


def test_views_say_which_block_a_source_is_in(written, capsys):
    written.show()
    shown = capsys.readouterr().out
    assert "Input" in shown and OUTPUT in shown
    assert "encoder: cat" in shown and "decoder: katze" in shown
    page = written.to_html()
    assert "Encoder: " in page and "Decoder: " in page and "decoder: katze" in page
    found = explainer("bart", "ForSequenceClassification").explain(TEXT)
    found.show()
    rows = capsys.readouterr().out.splitlines()
    assert any(row.startswith("Encoder  the cat") for row in rows)
    assert any(row.startswith("Decoder  </s> the cat") for row in rows)


@pytest.mark.parametrize("case", ["flan_t5", "bart", "mbart", "plbart"])
def test_classes_need_nothing_but_the_text(case):
    e = explainer(case, "ForSequenceClassification")
    found = e.explain([TEXT, ("the cat", "sat on mat"), "a b"])
    for one, text in zip(found, [(TEXT,), ("the cat", "sat on mat"), ("a b",)], strict=True):
        logits = e.model(**tokenizer()(*text, return_tensors="pt")).logits[0]
        assert (one.logits - logits).abs().max() < EXACT and one.completeness_error < EXACT
        assert one.texts == text * 2 and len(one) == 2 * one.metadata["encoder_sources"]
    assert found[1].words().tokens[:7] == ("the", "cat", "</s>", "sat", "on", "mat", "</s>")


@pytest.mark.parametrize("case", ["flan_t5", "bart"])
def test_answers_are_of_the_text(case):
    e = explainer(case, "ForQuestionAnswering")
    found = e.explain(("who sat", TEXT))
    outputs = e.model(**tokenizer()("who sat", TEXT, return_tensors="pt"))
    first, last = found.answer.tokens
    assert found.answer.text == TEXT[found.answer.start : found.answer.end]
    assert abs(found.target_logits[0] - outputs.start_logits[0, first]) < EXACT
    assert abs(found.target_logits[1] - outputs.end_logits[0, last]) < EXACT
    assert found.completeness_error < EXACT


def test_labels_of_words_and_vectors_of_texts_come_from_the_encoder_alone():
    labels = explainer("t5", "ForTokenClassification").explain(TEXT, at="all")
    assert "encoder_sources" not in labels.metadata and labels.completeness_error < EXACT
    pair = DecompX(model_of("t5", "EncoderModel"), tokenizer(), pooling="mean").similarity("the cat", "a b c")
    assert pair.completeness_error < EXACT


def test_vectors_of_texts_come_from_the_encoder_of_a_saved_t5(tmp_path):
    model_of("t5", dtype=torch.float32).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    e = DecompX.from_pretrained(tmp_path, pooling="mean")
    expected = DecompX(model_of("t5", dtype=torch.float32), tokenizer()).model.encoder
    a, b = (expected(**tokenizer()(text, return_tensors="pt"))[0].mean(1)[0] for text in ("the cat", "a b c"))
    found = e.similarity("the cat", "a b c")
    assert abs(found.scores.sum() - torch.nn.functional.cosine_similarity(a, b, dim=0)) < 1e-5


def test_a_saved_model_is_loaded_for_its_task(tmp_path):
    model_of("flan_t5", dtype=torch.float32).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    e = DecompX.from_pretrained(tmp_path)
    assert e.task == "text2text-generation"
    assert DecompX.from_pretrained(tmp_path, task="translation").explain(TEXT).task == "text2text-generation"


def test_too_long_texts_and_outputs_are_refused_or_cut():
    e = explainer("bart")
    with pytest.raises(InputError, match="the output of input 0 has 41 tokens"):
        e.explain(TEXT, continuation="a " * 41)
    with pytest.raises(InputError, match="has positions for 40"):
        e.explain("a " * 50)
    with pytest.warns(UserWarning, match="cut"):
        assert e.explain("a " * 50, truncate=True).metadata["encoder_sources"] == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"continuation": "", "texts": TEXT}, "has no tokens"),
        ({"continuation": [999], "texts": TEXT}, "holds the token 999"),
        ({"continuation": "a", "generate": 2, "texts": TEXT}, "give one of them"),
        ({"texts": ("a", "b")}, "is a pair of texts"),
        (
            {"texts": {"input_ids": [[9, 1]], "decoder_input_ids": [[1]]}},
            "what the decoder reads is given by continuation",
        ),
        ({"texts": {"input_ids": [[9, 1]], "position_ids": [[0, 1]]}}, "a model with a decoder does not take"),
    ],
)
def test_what_cannot_be_asked_is_refused(arguments, message):
    with pytest.raises((InputError, OptionError), match=message):
        explainer("bart").explain(**arguments)


def test_a_decoder_without_a_start_is_refused_by_name():
    model = model_of("flan_t5")
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = None
    model.config.bos_token_id = model.generation_config.bos_token_id = None
    with pytest.raises(OptionError, match="does not say what its decoder starts with"):
        DecompX(model, tokenizer()).explain(TEXT)


def test_faithfulness_of_two_places_for_a_token_is_not_measured():
    from decompx_fast.evaluation.classifier import Classifier

    with pytest.raises(InputError, match="each token of a text has two places"):
        Classifier(explainer("bart", "ForSequenceClassification"))


def test_padding_tokens_inside_of_a_text_are_tokens():
    e = explainer("mbart", "ForSequenceClassification")
    ids = [10, 11, PAD, 12, END]
    found = e.explain(ids)
    assert (found.logits - e.model(input_ids=torch.tensor([ids])).logits[0]).abs().max() < EXACT
