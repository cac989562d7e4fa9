"""Models of two heads: which one is explained is said by the task."""

from __future__ import annotations

import models
import pytest
import torch
import transformers
from refusals import refuses

from decompx_fast import DecompX
from decompx_fast.errors import ModelLoadError, OptionError

EXACT = 1e-10  # in float64, relative to values of order 1
SIZES = {
    "vocab_size": models.WORD_PIECES,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
OPTIONS: dict[str, dict] = {
    "Albert": {"embedding_size": 8},
    "Bert": {},
    "BigBird": {"block_size": 4, "num_random_blocks": 1},
    "Ernie": {},
    "MegatronBert": {},
    "MobileBert": {"intra_bottleneck_size": 8, "embedding_size": 10, "num_feedforward_networks": 2},
}
PAIR = ("The man was ill.", "He saw a doctor.")


def made(architecture: str, dtype: torch.dtype = torch.float64):
    config = getattr(transformers, f"{architecture}Config")(**SIZES, **OPTIONS[architecture])
    model = getattr(transformers, f"{architecture}ForPreTraining")(config).eval().to(dtype)
    return models.randomized(model, 3, 0.1)


@torch.no_grad()
def own_outputs(model, explanation):
    """What the model itself gives for the masks, and for the two texts."""
    types = [int(span is not None and span[0] == 1) for span in explanation.spans]
    types[-1] = int(any(types))
    found = model(input_ids=torch.tensor([explanation.token_ids]), token_type_ids=torch.tensor([types]))
    relation = found.sop_logits if hasattr(found, "sop_logits") else found.seq_relationship_logits
    return found.prediction_logits[0], relation[0]


@pytest.mark.parametrize("engine", ["reference", "forward", "adjoint"])
@pytest.mark.parametrize("architecture", OPTIONS)
def test_whether_a_text_follows(architecture, engine):
    model = made(architecture)
    explainer = DecompX(model, models.word_piece(), task="next-sentence-prediction", bias="bias_token", engine=engine)
    found = explainer(PAIR)
    assert explainer.task == found.task == "next-sentence-prediction"
    assert found.targets == ("follows", "does not follow") and found.completeness_error < EXACT
    assert found.target_logits.tolist() == pytest.approx(own_outputs(model, found)[1].tolist(), abs=EXACT)


def test_one_text_follows_nothing():
    """transformers would compute an answer, and it would mean nothing."""
    explainer = DecompX(made("Bert"), models.word_piece(), task="next-sentence-prediction")
    asked = {"match": ("is one text", "whether a second text follows a first", "as a tuple, (first, second)")}
    refuses(explainer, PAIR[0], **asked)
    refuses(explainer, [PAIR, PAIR[0]], **asked)
    refuses(explainer, [PAIR[0].split()], is_split_into_words=True, **asked)
    refuses(explainer, dict(models.word_piece()(PAIR[0], return_tensors="pt")), **asked)
    encoded = models.word_piece()(*PAIR)
    expected = explainer(PAIR).scores
    assert torch.equal(explainer(dict(encoded)).scores, expected)
    whole, failed = explainer([PAIR, PAIR[0]], on_error="skip")
    assert torch.equal(whole.scores, expected) and "is one text" in failed.error
    assert explainer(encoded["input_ids"]).scores.shape == expected.shape  # of ids alone nobody knows


@pytest.mark.parametrize("engine", ["reference", "forward", "adjoint"])
@pytest.mark.parametrize("architecture", OPTIONS)
def test_what_fits_at_a_mask(architecture, engine):
    model = made(architecture)
    model.train()
    model.get_submodule(next(name for name, _ in model.named_children())).eval()
    with models.unchanged(model):
        explainer = DecompX(model, models.word_piece(), task="masked-lm", bias="bias_token", engine=engine)
        found = explainer("He saw a [MASK] today.", top_k=2)
    assert explainer.task == found.task == "fill-mask" and found.completeness_error < EXACT
    (place,) = [n for n, token in enumerate(found.tokens) if token == "[MASK]"]
    best = own_outputs(model.eval(), found)[0][place].topk(2)
    assert [one.output for one in found.predictions] == best.indices.tolist()
    assert found.target_logits.tolist() == pytest.approx(best.values.tolist(), abs=EXACT)


def test_the_modules_of_both_heads_are_the_user_s():
    model = made("Bert")
    ours = DecompX(model, models.word_piece(), task="fill-mask").model
    assert ours.bert is model.bert and ours.cls.predictions is model.cls.predictions
    with torch.no_grad():
        model.cls.predictions.bias.add_(1.0)
    explainer = DecompX(model, models.word_piece(), task="fill-mask")
    before = explainer("a [MASK]").target_logits
    with torch.no_grad():
        model.cls.predictions.bias.add_(1.0)
    assert (explainer("a [MASK]").target_logits - before - 1.0).abs().max() < EXACT


def test_a_head_has_to_be_named():
    tokenizer = models.word_piece()
    refuses(DecompX, made("Bert"), tokenizer, match=("two heads", "task='fill-mask'"), error=OptionError)
    refuses(
        *(DecompX, made("Albert"), tokenizer),
        match=("task='text-classification' is none of them", "task='next-sentence-prediction'"),
        error=OptionError,
        task="sentiment-analysis",
    )
    refuses(DecompX, made("Bert"), tokenizer, match=("task='x' is no task",), error=OptionError, task="x")
    one = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))
    assert DecompX(one, tokenizer, task="fill-mask").task == "fill-mask"
    refuses(
        *(DecompX, one, tokenizer),
        match=("task='token-classification'", "BertForMaskedLM has a head for fill-mask", "leave it out"),
        error=OptionError,
        task="ner",
    )
    refuses(
        *(DecompX, transformers.BertModel(one.config), tokenizer),
        match=("has no head", "load a model with such a head"),
        error=OptionError,
        task="ner",
        pooling="mean",
    )


@pytest.mark.parametrize("architecture", ["Albert", "Bert", "BigBird"])
def test_saved_models_of_two_heads(architecture, tmp_path):
    model = made(architecture, torch.float32)
    model.save_pretrained(tmp_path)
    models.word_piece().save_pretrained(tmp_path)
    refuses(DecompX.from_pretrained, tmp_path, match=("saved with two heads", "task='fill-mask'"), error=ModelLoadError)
    follows = DecompX.from_pretrained(tmp_path, task="sentence-order-prediction")(PAIR)
    assert follows.target_logits.tolist() == pytest.approx(own_outputs(model, follows)[1].tolist(), abs=1e-5)
    filled = DecompX.from_pretrained(tmp_path, task="fill-mask")("a [MASK]")
    assert filled.predictions[0].output == int(own_outputs(model, filled)[0][filled.tokens.index("[MASK]")].argmax())


def test_a_saved_model_of_another_head_is_not_loaded_as_a_follower(tmp_path):
    config = transformers.ElectraConfig(**SIZES, embedding_size=8)
    transformers.ElectraForPreTraining(config).save_pretrained(tmp_path)
    models.word_piece().save_pretrained(tmp_path)
    refuses(
        *(DecompX.from_pretrained, tmp_path),
        match=("ElectraForPreTraining, which is no model for next-sentence prediction",),
        error=ModelLoadError,
        task="next-sentence-prediction",
    )
