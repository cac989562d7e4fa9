"""Sentence encoders: every encoder without its head, poolings, steps after them; what sentence-transformers wrote."""

from __future__ import annotations

import json

import llama_like
import models
import naive
import numpy as np
import pytest
import test_decoders
import torch
import transformers
from models import randomized
from refusals import refuses
from test_families import CASES, COMMON, IN_FLOAT32, ROUNDING, inputs
from torch import nn

from decompx_fast import DecompX, DecompXConfig
from decompx_fast.engines import reference
from decompx_fast.engines.adjoint import run as adjoint
from decompx_fast.engines.forward import run as forward
from decompx_fast.errors import InputError, ModelLoadError, NumericalError, UnsupportedModelError
from decompx_fast.linearize.architectures import supported_architectures
from decompx_fast.linearize.families import BARE_MODELS, ENCODER_DECODERS, SOUNDS
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.sentence import EmbeddingStep, SentenceEncoder, embed

POOLINGS = ("mean", "cls", "lasttoken")

sentence_transformers = pytest.importorskip("sentence_transformers")


def bare(case: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    name, options = CASES[case]
    config = getattr(transformers, f"{name}Config")(**(COMMON | options))
    return randomized(getattr(transformers, f"{name}Model")(config).to(dtype))


def pooled(states: torch.Tensor, pooling: str) -> torch.Tensor:
    return {"mean": states.mean(1), "cls": states[:, 0], "lasttoken": states[:, -1]}[pooling]


def bert(**options) -> nn.Module:
    small = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20, "num_hidden_layers": 2}
    config = transformers.BertConfig(**({"vocab_size": 60, "max_position_embeddings": 40} | small | options))
    return randomized(transformers.BertModel(config).double())


def decoder(case: str) -> nn.Module:
    """A decoder without its head."""
    return llama_like.decoder(case).model if case in llama_like.CASES else test_decoders.classifier(case, head="Model")


def test_every_architecture_can_embed():
    suffix = "ForSequenceClassification"
    classifiers = {name.removesuffix(suffix) for name in supported_architectures() if name.endswith(suffix)}
    both = {name.removesuffix(suffix) for name in ENCODER_DECODERS}  # of which T5's can by its encoder alone
    of_sounds = {name.removesuffix(suffix) for name in SOUNDS if name.endswith(suffix)}
    assert {f"{name}Model" for name in classifiers - both - of_sounds} <= set(BARE_MODELS)
    assert {"T5EncoderModel", "MT5EncoderModel", "UMT5EncoderModel"} <= set(BARE_MODELS)


@pytest.mark.parametrize("rule", ["absdot", "bias_token", "equal"])
@pytest.mark.parametrize("case", CASES)
def test_engines_and_a_second_decomposition_agree_on_a_vector(case, rule):
    encoder, given, config = bare(case), inputs(case), DecompXConfig(bias=rule)
    pooling = POOLINGS[list(CASES).index(case) % 3]
    model = SentenceEncoder(encoder, pooling)
    with torch.no_grad():
        own = pooled(encoder(**given)[0], pooling)
    assert torch.allclose(embed(model, given), own, rtol=0, atol=1e-13)
    expected = reference.attribute(linearize(model, given), config)
    found = [forward.attribute(linearize(model, given, record=True), config)]
    if rule != "absdot":
        found.append(adjoint.attribute(linearize(model, given, record=True), config))
    size = expected.scores.abs().max().item()
    for result in found:
        assert (result.scores - expected.scores).abs().max().item() <= ROUNDING * size
        total = result.scores.sum(1) + (0 if result.bias_token is None else result.bias_token)
        assert torch.allclose(total, own, rtol=0, atol=IN_FLOAT32.get(case, ROUNDING) * own.abs().max().item())
    one = {name: value[:1] for name, value in given.items()}
    scores, _ = naive.decompose(linearize(model, one), config)
    tokens = scores[:-1] if rule == "bias_token" else scores
    assert np.abs(tokens - expected.scores[0].numpy()).max() <= ROUNDING * size


#: One of each file of decoders.
DECODERS = ["gpt2", "neox", "bloom", "opt_narrow_words", "llama", "qwen3", "gemma", "mixtral"]


@pytest.mark.parametrize("pooling", ["lasttoken", "mean"])
@pytest.mark.parametrize("case", DECODERS)
def test_decoders_embed_a_text(case, pooling):
    encoder, given = decoder(case), llama_like.inputs()
    model = SentenceEncoder(
        encoder, pooling, steps=[EmbeddingStep(randomized(nn.Linear(last_width(encoder), 5)).double())]
    )
    with torch.no_grad():
        own = model.steps[0].linear(pooled(encoder(**given)[0], pooling))  # [b, c]
    assert torch.allclose(embed(model, given), own, rtol=0, atol=1e-13)
    for rule in ("absdot", "bias_token"):
        config = DecompXConfig(bias=rule)
        expected = reference.attribute(linearize(model, given), config)
        found = forward.attribute(linearize(model, given, record=True), config)
        size = expected.scores.abs().max().item()
        assert (found.scores - expected.scores).abs().max().item() <= ROUNDING * size
        total = found.scores.sum(1) + (0 if found.bias_token is None else found.bias_token)
        rounding = test_decoders.IN_FLOAT32.get(case, ROUNDING)
        assert torch.allclose(total, own, rtol=0, atol=rounding * own.abs().max().item())
        one = {name: value[:1] for name, value in given.items()}
        scores, _ = naive.decompose(linearize(model, one), config)
        assert np.abs(scores[:7] - expected.scores[0].numpy()).max() <= ROUNDING * size


def last_width(encoder: nn.Module) -> int:
    """What OPT narrows its states to."""
    return getattr(encoder.config, "word_embed_proj_dim", encoder.config.hidden_size)


def test_two_texts_are_compared_by_a_decoder():
    encoder, texts = decoder("llama"), ([5, 6, 7, 8], [9, 10])
    with torch.no_grad():
        vectors = [encoder(input_ids=torch.tensor([ids]))[0][0, -1] for ids in texts]
    found = DecompX(encoder, pooling="lasttoken").similarity(*texts)
    assert found.scores.shape == (4, 2)
    assert abs(found.value - torch.nn.functional.cosine_similarity(*vectors, dim=0).item()) < 1e-12
    assert found.completeness_error < 1e-12


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.GELU(), None])
def test_steps_after_the_pooling_are_a_head(activation):
    encoder = bert()
    linear, norm = randomized(nn.Linear(12, 5).double()), randomized(nn.LayerNorm(5).double())
    model = SentenceEncoder(encoder, "mean", steps=[EmbeddingStep(linear, activation), EmbeddingStep(norm=norm)])
    ids = models.token_ids(6, vocab=60)
    with torch.no_grad():
        x = linear(encoder(input_ids=ids)[0].mean(1))
        own = norm(x if activation is None else activation(x))
    for engine in (reference, forward):
        linearization = linearize(model, {"input_ids": ids})
        result = engine.attribute(linearization, DecompXConfig())
        assert torch.allclose(result.scores.sum(1), own, rtol=0, atol=1e-12)
    scores, _ = naive.decompose(linearize(model, {"input_ids": ids}), DecompXConfig())
    assert np.abs(scores - result.scores[0].numpy()).max() < 1e-12


def test_a_replaced_module_is_refused():
    encoder = bert()
    encoder.encoder.layer[1].output.dense.register_forward_hook(lambda _m, _a, y: y * 1.01)
    model = SentenceEncoder(encoder, "mean")
    with pytest.raises(UnsupportedModelError, match="layer 1 does not compute"):
        forward.attribute(linearize(model, {"input_ids": models.token_ids(5, vocab=60)}), DecompXConfig())


def test_the_model_is_left_as_it_was():
    encoder = bert().train()
    explainer = DecompX(encoder, models.word_piece(), pooling="mean")
    with models.unchanged(encoder):
        explainer.similarity([5, 6, 7], [8, 9])
        explainer.similarity([5, 6, 7], [8, 9], side="a")


def test_what_is_not_finite_is_an_error():
    encoder = bert()
    with torch.no_grad():
        encoder.encoder.layer[0].output.dense.weight[0, 0] = float("nan")
    with pytest.raises(NumericalError, match="NaN or infinity"):
        DecompX(encoder, pooling="mean").similarity([5, 6, 7], [8, 9])
    with pytest.raises(NumericalError, match="embedding holds NaN"):
        embed(SentenceEncoder(encoder, "mean"), {"input_ids": models.token_ids(5, vocab=60)})


def test_a_base_model_needs_its_pooling_named():
    refuses(DecompX, bert(), match=("BertModel has no head", "pooling='mean'"), error=UnsupportedModelError)
    refuses(DecompX, decoder("llama"), match=("LlamaModel has no head", "pooling="), error=UnsupportedModelError)
    refuses(DecompX, bert(), pooling="max", match=("'max'", "not linear"), error=InputError)
    refuses(DecompX, bert(), pooling="median", match=("'median' is none", "'lasttoken'"), error=InputError)
    refuses(DecompX, bert(), pooling=["cls", "mean"], match=("joins several",), error=InputError)
    refuses(DecompX, models.classifier(), pooling="mean", match=("without a head", "BertForSequence"), error=InputError)


def test_what_needs_classes_is_refused_and_says_what_to_call():
    explainer = DecompX(bert(), models.word_piece(), pooling="cls")
    for call in (explainer.explain, explainer):
        refuses(call, [5, 6], match=("one vector for an input and no classes", "similarity(a, b)"), error=InputError)
    refuses(
        DecompX(models.classifier()).similarity, [5], [6], match=("gives classes", "pooling='mean'"), error=InputError
    )


def test_the_plan_counts_all_of_the_vector():
    explainer = DecompX(bert(), pooling="mean")
    assert explainer.plan(20, engine="adjoint", bias="none").directions == 12


def sentence_model(tmp_path, *modules, **encoder_options):
    """A SentenceTransformer on a small random encoder that was saved, and its folder."""
    st = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    options = {"vocab_size": models.WORD_PIECES, "num_hidden_layers": 1} | encoder_options
    bert(**options).float().save_pretrained(tmp_path / "encoder")
    models.word_piece().save_pretrained(tmp_path / "encoder")
    first = st.Transformer(str(tmp_path / "encoder"), max_seq_length=20)
    model = sentence_transformers.SentenceTransformer(modules=[first, *modules], device="cpu")
    model.save(str(tmp_path / "saved"))
    return model, tmp_path / "saved"


def st_modules():
    import sentence_transformers.sentence_transformer.modules as st

    return st


CHAINS = {
    "mean": lambda st: [st.Pooling(12, "mean")],
    "cls": lambda st: [st.Pooling(12, "cls"), st.Normalize()],
    "lasttoken": lambda st: [st.Pooling(12, "lasttoken")],
    "dense": lambda st: [st.Pooling(12, "mean"), st.Dense(12, 7), st.Normalize()],
    "dense_identity": lambda st: [
        st.Pooling(12, "cls"),
        st.Dense(12, 7, bias=False, activation_function=nn.Identity()),
        st.Dense(7, 4, activation_function=nn.GELU()),
    ],
    "dropout": lambda st: [st.Pooling(12, "mean"), st.Dropout(0.5), st.LayerNorm(12)],
}

TEXTS = ("A gripping film.", "The acting is dreadful!")


@pytest.mark.parametrize("chain", CHAINS)
def test_objects_and_folders_of_sentence_transformers_give_their_own_vectors(tmp_path, chain):
    model, folder = sentence_model(tmp_path, *CHAINS[chain](st_modules()))
    vectors = torch.tensor(model.encode(list(TEXTS))).double()
    cosine = torch.nn.functional.cosine_similarity(vectors[:1], vectors[1:]).item()
    for explainer in (DecompX(model), DecompX.from_pretrained(folder)):
        found = explainer.similarity(*TEXTS)
        assert abs(found.value - cosine) < 1e-6
        assert found.completeness_error < 1e-5
        dot = explainer.similarity(*TEXTS, measure="dot")
        assert abs(dot.value - (vectors[0] @ vectors[1]).item()) < 1e-5 * max(1, abs(dot.value))
        assert dot.completeness_error < 1e-5 * max(1, abs(dot.value))
        assert found.metadata["pooling"] == explainer.model.pooling


def test_texts_are_as_long_as_the_folder_says(tmp_path):
    model, folder = sentence_model(tmp_path, *CHAINS["mean"](st_modules()))
    long = "film " * 30
    for explainer in (DecompX(model), DecompX.from_pretrained(folder)):
        refuses(explainer.similarity, long, "film", match=("a: the input has 32 tokens", "20"), error=InputError)
        with pytest.warns(UserWarning, match="cut"):
            found = explainer.similarity(long, "film", truncate=True)
        vectors = torch.tensor(model.encode([long, "film"])).double()
        assert abs(found.value - torch.nn.functional.cosine_similarity(vectors[:1], vectors[1:]).item()) < 1e-6
        assert found.metadata["truncated_from_a"] == 32


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (lambda st: [st.Pooling(12, "max")], "pooling='max' takes the largest"),
        (lambda st: [st.Pooling(12, "weightedmean")], "pooling='weightedmean' weighs states by their places"),
        (lambda st: [st.Pooling(12, "mean_sqrt_len_tokens")], "root of the number of tokens"),
        (lambda st: [st.Pooling(12, ("cls", "mean"))], "joins several"),
        (lambda st: [st.Pooling(12, "mean"), st.Dense(12, 12, use_residual=True)], "residual"),
        (lambda st: [st.Pooling(12, "mean"), st.Normalize(), st.Dense(12, 4)], "Dense after the normalisation"),
        (lambda st: [st.Dense(12, 12, module_input_name="token_embeddings"), st.Pooling(12)], "Dense before the pool"),
    ],
)
def test_what_cannot_be_described_is_refused_by_name(tmp_path, chain, message):
    model, folder = sentence_model(tmp_path, *chain(st_modules()))
    for make, argument in ((DecompX, model), (DecompX.from_pretrained, folder)):
        refuses(make, argument, match=(message, "cannot be explained exactly"), error=UnsupportedModelError)


def test_vectors_that_are_cut_are_refused_and_prompts_are_named(tmp_path):
    model, folder = sentence_model(tmp_path, *CHAINS["mean"](st_modules()))
    model.truncate_dim = 4
    refuses(DecompX, model, match=("truncate_dim=4",), error=UnsupportedModelError)
    path = folder / "config_sentence_transformers.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "prompts": {"query": "query: "}, "default_prompt_name": "query"}))
    with pytest.warns(UserWarning, match="'query: '"):
        DecompX.from_pretrained(folder)


def test_lower_case_is_done_where_the_folder_says_so(tmp_path):
    _, folder = sentence_model(tmp_path, *CHAINS["mean"](st_modules()))
    tokenizer = models.byte_pair()
    bert(vocab_size=len(tokenizer), num_hidden_layers=1).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 40, "do_lower_case": true}')
    (folder / "vocab.txt").unlink(missing_ok=True)
    explainer = DecompX.from_pretrained(folder)
    loud, quiet = explainer.similarity("WHY not", "x"), explainer.similarity("why not", "x")
    assert loud.a.token_ids == quiet.a.token_ids
    assert loud.a.source_text(1) == "WHY"[: len(loud.a.source_text(1))]


def test_a_cross_encoder_is_the_classifier_inside(tmp_path):
    models.classifier(vocab=models.WORD_PIECES, dtype=torch.float32, labels=1).save_pretrained(tmp_path)
    models.word_piece().save_pretrained(tmp_path)
    reranker = sentence_transformers.CrossEncoder(str(tmp_path), device="cpu")
    explanation = DecompX(reranker).explain(("a query", "a passage"))
    logit = reranker.predict([("a query", "a passage")], activation_fn=nn.Identity())[0]
    assert abs(explanation.scores.sum().item() - float(logit)) < 1e-5


def test_an_encoder_without_modules_needs_its_pooling(tmp_path):
    bert(vocab_size=models.WORD_PIECES).float().save_pretrained(tmp_path)
    models.word_piece().save_pretrained(tmp_path)
    refuses(DecompX.from_pretrained, tmp_path, match=("no trained classifier", "pooling='mean'"), error=ModelLoadError)
    explainer = DecompX.from_pretrained(tmp_path, pooling="cls")
    assert explainer.similarity(*TEXTS).metadata["pooling"] == "cls"


def test_folders_that_are_damaged(tmp_path):
    _, folder = sentence_model(tmp_path, *CHAINS["dense"](st_modules()))
    refuses(DecompX.from_pretrained, folder, pooling="cls", match=("says itself how it pools",), error=InputError)
    (folder / "2_Dense" / "model.safetensors").write_bytes(b"no weights")
    refuses(DecompX.from_pretrained, folder, match=("2_Dense", "cannot be read"), error=ModelLoadError)
    (folder / "1_Pooling" / "config.json").write_text("[]")
    refuses(DecompX.from_pretrained, folder, match=("1_Pooling", "where a dict was expected"), error=ModelLoadError)
    (folder / "modules.json").write_text("{")
    refuses(DecompX.from_pretrained, folder, match=("modules.json", "cannot be read"), error=ModelLoadError)
