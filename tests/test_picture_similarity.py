"""Texts and pictures compared: pairs of tokens and patches against a decomposition in NumPy, sums against the model."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
import towers
from click.testing import CliRunner
from explanation_samples import without_script
from PIL import Image
from refusals import refuses
from torch import nn

from decompx_fast import DecompX, read_json
from decompx_fast.cli import cli, main
from decompx_fast.errors import InputError, OptionError, UnsupportedModelError
from decompx_fast.linearize.families.towers import PAIRED
from decompx_fast.linearize.linearization import linearize
from decompx_fast.linearize.towers import TwoTowers
from decompx_fast.result.pair import PairExplanation

#: Rounding of float64 through a few layers of random weights.
ROUNDING = 1e-10

RULES = ("absdot", "norm", "bias_token", "none", "equal", "cls")
LINEAR = ("bias_token", "none", "equal", "cls")


def given(case: str) -> tuple[list[int], dict[str, torch.Tensor]]:
    """A text, at its full length where padding is read, and a picture."""
    return towers.ids(12 if case == "siglip" else 7), {"pixel_values": towers.pixels()}


@pytest.fixture(scope="module")
def explainer() -> DecompX:
    return DecompX(towers.model("clip"), towers.processor())


def colours(height: int = 16, width: int = 16) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_every_paired_model_has_a_case():
    assert {f"{name}Model" for name, *_ in towers.CASES.values()} == set(PAIRED)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", towers.CASES)
def test_pairs_are_those_of_a_second_decomposition(case, rule):
    model, (text, picture) = towers.model(case), given(case)
    u = towers.vectors(model, torch.tensor(text), rule, is_text=True)
    v = towers.vectors(model, picture["pixel_values"], rule, is_text=False)
    truth = towers.truth(model, text, picture["pixel_values"])
    lengths = (truth.text_model_output.pooler_output.norm() * truth.vision_model_output.pooler_output.norm()).item()
    expected = u @ v.T / lengths
    for engine in ("reference", "forward", *(("adjoint",) if rule in LINEAR else ())):
        found = DecompX(model).similarity(text, picture, bias=rule, engine=engine)
        assert np.abs(found.scores.numpy() - expected).max() <= ROUNDING
        assert abs(found.value - (truth.text_embeds @ truth.image_embeds.T).item()) <= ROUNDING
        if rule != "none":
            assert found.completeness_error <= ROUNDING


@pytest.mark.parametrize("side", ["both", "a", "b"])
@pytest.mark.parametrize("case", towers.CASES)
def test_the_logit_is_the_models_own(case, side):
    model, (text, picture) = towers.model(case), given(case)
    expected = towers.truth(model, text, picture["pixel_values"]).logits_per_image.item()
    for bias in ("absdot", "equal"):
        found = DecompX(model).similarity(text, picture, measure="logit", side=side, bias=bias)
        assert abs(found.value - expected) <= ROUNDING and abs(found.total - expected) <= ROUNDING
    assert (found.offset != 0) == (case == "siglip")
    assert found.b.source_unit == ("picture" if side == "a" else "patch")


@pytest.mark.parametrize("record", [False, True], ids=["computed", "recorded"])
@pytest.mark.parametrize("case", towers.CASES)
def test_a_replaced_module_is_refused(case, record):
    model, (text, picture) = towers.model(case), given(case)
    inputs = {"input_ids": torch.tensor([text])}, {"pixel_values": picture["pixel_values"][None]}
    for tower, own in zip(TwoTowers(model).towers(), inputs, strict=True):
        # The query of the pooling is made of the attention's own parameters: its modules are not called.
        names = [name for name, part in tower.named_modules() if isinstance(part, (nn.Linear, nn.LayerNorm))]
        names = [name for name in names if "attention.out_proj" not in name and "pre_layrnorm" not in name]
        for name in names[::3]:
            handle = tower.get_submodule(name).register_forward_hook(lambda _m, _a, output: output * 1.01)
            try:
                with pytest.raises(UnsupportedModelError):
                    linearization = linearize(tower, own, record=record)
                    *_, last = linearization.layers()
                    linearization.head(last.output)
            finally:
                handle.remove()


def test_a_pooling_of_other_weights_is_refused():
    tower = TwoTowers(towers.model("siglip")).picture
    attention = tower.encoder.head.attention
    attention.forward = lambda *inputs: [nn.MultiheadAttention.forward(attention, *inputs)[0] * 1.01]
    with pytest.raises(UnsupportedModelError, match="layer 2"):
        list(linearize(tower, {"pixel_values": towers.pixels()[None]}).layers())


def test_a_forward_of_the_users_is_refused():
    model = towers.model("clip")
    explainer = DecompX(model)
    handle = model.register_forward_hook(lambda _m, _a, output: output)
    with pytest.raises(UnsupportedModelError, match="hooks"):
        explainer.similarity(*given("clip"))
    handle.remove()
    model.forward = lambda **inputs: None
    with pytest.raises(UnsupportedModelError, match="hooks"):
        DecompX(model)


def test_a_pooling_that_is_not_there_is_refused():
    model = towers.model("siglip")
    model.vision_model.use_head = False
    with pytest.raises(UnsupportedModelError, match="vision_use_head"):
        DecompX(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["clip", "siglip"])
def test_other_dtypes(case, dtype):
    text, picture = given(case)
    expected = DecompX(towers.model(case)).similarity(text, picture).scores
    found = DecompX(towers.model(case, dtype=dtype)).similarity(text, picture)
    # Of each number 24 or 8 bits are kept, and random weights of this size magnify that by a hundred.
    assert (found.scores - expected).abs().max() <= 100 * torch.finfo(dtype).eps * expected.abs().max()


def test_a_text_and_a_picture_are_read(explainer, tmp_path):
    image = Image.fromarray(colours(16, 20))
    image.save(tmp_path / "one.png")
    found = explainer.similarity("a photo of the cat", str(tmp_path / "one.png"))
    inputs = towers.processor()(text="a photo of the cat", images=image, return_tensors="pt")
    with torch.no_grad():
        truth = explainer.model.model(**{**inputs, "pixel_values": inputs["pixel_values"].double()})
    assert abs(found.value - (truth.text_embeds @ truth.image_embeds.T).item()) <= ROUNDING
    assert found.a.texts == ("a photo of the cat",) and found.b.picture.grid == (4, 4)
    assert found.metadata["cropped_b"] and found.metadata["picture_size_b"] == [16, 20]
    assert torch.allclose(found.patches(), found.sum("b")[1:].view(4, 4), rtol=0, atol=1e-15)
    assert torch.equal(found.patches(2), found.scores[2, 1:].view(4, 4).double())
    refuses(found.patches, 99, match=("source=99", "0 to 6"))


def test_a_picture_is_compared_with_several_texts_and_a_text_with_several_pictures(explainer):
    texts, pictures = ["a cat", "the red square"], [colours(), colours()[::-1].copy()]
    of_texts, of_pictures = explainer.similarity(texts, pictures[0]), explainer.similarity(texts[0], pictures)
    assert [one.metadata["input"] for one in of_texts] == [0, 1] == [one.metadata["input"] for one in of_pictures]
    for many, alone in zip(
        (*of_texts, *of_pictures),
        [explainer.similarity(text, pictures[0]) for text in texts]
        + [explainer.similarity(texts[0], one) for one in pictures],
        strict=True,
    ):
        assert torch.allclose(many.scores, alone.scores, rtol=0, atol=1e-14) and many.value == alone.value
    for side in ("a", "b"):
        found = explainer.similarity(texts, pictures[0], side=side, bias="equal")
        sums = [one.sum(side) for one in explainer.similarity(texts, pictures[0], bias="equal")]
        assert all(torch.allclose(a.sum(side), b, rtol=0, atol=1e-12) for a, b in zip(found, sums, strict=True))
    refuses(explainer.similarity, texts, pictures, match=("a and b are lists",))


def test_padding_is_read_where_the_model_was_trained_with_it():
    explainer = DecompX(towers.model("siglip"), towers.processor())
    found = explainer.similarity("a cat", colours())
    assert found.a.tokens == ("<start>", "a", "cat", "<end>", *["<pad>"] * 8) and found.a.special[4:] == (True,) * 8
    ids = towers.tokenizer()("a cat", padding="max_length", max_length=12)["input_ids"]
    truth = towers.truth(
        explainer.model.model,
        ids,
        towers.processor().image_processor(Image.fromarray(colours()), return_tensors="pt")["pixel_values"][0],
    )
    assert abs(found.value - (truth.text_embeds @ truth.image_embeds.T).item()) <= ROUNDING
    assert "&lt;pad&gt; ×8" in found.to_html()
    encoding = towers.tokenizer()(["a cat"], padding="max_length", max_length=12)
    refuses(explainer.similarity, encoding, colours(), match=("attention_mask", "12 tokens"))


def test_blocks_of_patches_and_words_are_sources(explainer):
    blocks = explainer.similarity("a cat", colours(), sources=(2, 2), bias="none")
    each = explainer.similarity("a cat", colours(), bias="none")
    assert blocks.b.tokens == ("[CLS]", "block 0,0", "block 0,1", "block 1,0", "block 1,1")
    total = each.scores[:, 1:].view(-1, 4, 4)[:, :2, 2:].sum((1, 2))
    assert torch.allclose(blocks.scores[:, 2], total, rtol=0, atol=1e-14)
    words = explainer.similarity("a cat", colours(), sources="word")
    assert words.a.source_unit == "word" and words.b.source_unit == "patch" and words.completeness_error < ROUNDING
    refuses(explainer.similarity, "a cat", colours(), sources=(9, 1), match=("(9, 1)", "4 x 4"))


def test_what_cannot_be_compared_is_refused(explainer, tmp_path):
    (tmp_path / "note.txt").write_text("not a picture")
    refuses(explainer.similarity, colours(), "a cat", match=("a is a picture", "give the text as a"))
    refuses(explainer.similarity, "a cat", str(tmp_path / "note.txt"), match=("b: ", "cannot be read as a picture"))
    refuses(explainer.similarity, "a cat", "a dog", match=("b: ", "does not exist"))
    refuses(explainer.similarity, "", colours(), match=("a: ", "empty"))
    refuses(explainer.similarity, "a cat " * 9, colours(), match=("a: ", "20 tokens", "truncate=True"))
    refuses(explainer.similarity, ("a cat", "a dog"), colours(), match=("pair of texts",))
    refuses(explainer, "a cat", match=("CLIPModel", "similarity(text, picture)"))
    refuses(explainer.plan, 5, match=("CLIPModel", "similarity(text, picture)"))
    refuses(DecompX(explainer.model.model).similarity, "a cat", colours(), match=("tokenizer",))
    refuses(DecompX(explainer.model.model).similarity, [48, 5, 49], colours(), match=("processor",))
    with pytest.raises(InputError, match="pools by itself"):
        DecompX(explainer.model.model, pooling="mean")
    with pytest.raises(OptionError, match="measure='logit'"):
        DecompX.demo_encoder().similarity("a", "b", measure="logit")


def test_a_pair_is_saved_and_read_back(explainer, tmp_path):
    found = explainer.similarity("a cat", colours(), measure="logit")
    found.save(tmp_path / "one.safetensors")
    copies = (
        PairExplanation.load(tmp_path / "one.safetensors"),
        PairExplanation.from_dict(json.loads(json.dumps(found.to_dict()))),
        pickle.loads(pickle.dumps(found)),
    )
    for one in copies:
        assert torch.equal(one.patches(), found.patches()) and one.measure == "logit"
        assert torch.equal(one.b.picture.pixels, found.b.picture.pixels)


def test_a_page_links_words_and_patches(explainer):
    page = without_script(explainer.similarity("a red square", colours()).words().to_html(full=True))
    assert page.count('<span class="dx-p dx-b dx-b') == 16 and page.count("data:image/png;base64,") == 1
    assert "<script" not in page and "17 patches of b" in page
    # Each patch carries its score with each word, and each word its score with each patch.
    patch = page[page.index('<span class="dx-p dx-b dx-b7"') :].split(">", 1)[0]
    assert patch.count("--a") == 5


def test_the_terminal_shows_the_patches(explainer, capsys):
    explainer.similarity("a red square", colours()).show(width=100)
    out = capsys.readouterr().out
    assert "Cosine" in out and "[CLS]" in out and "patch" in out


def test_the_users_model_is_left_as_it_was(explainer):
    model = towers.model("clip").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    DecompX(model).similarity(*given("clip"))
    assert model.training and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


@pytest.mark.parametrize("case", ["clip", "siglip"])
def test_weights_that_were_trained_meanwhile_are_seen(case):
    model, (text, picture) = towers.model(case), given(case)
    explainer = DecompX(model)
    explainer.similarity(text, picture)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    found = explainer.similarity(text, picture, measure="logit")
    truth = towers.truth(model, text, picture["pixel_values"]).logits_per_image.item()
    assert abs(found.value - truth) <= ROUNDING and found.completeness_error <= ROUNDING


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    towers.model("clip", dtype=torch.float32).save_pretrained(place)
    towers.processor().save_pretrained(place)
    Image.fromarray(colours(20, 30)).save(place / "one.png")
    return place


def test_a_saved_model_is_loaded_with_its_processor(folder):
    explainer = DecompX.from_pretrained(folder)
    found = explainer.similarity("a cat", folder / "one.png")
    assert found.completeness_error < 1e-5 and found.metadata["architecture"] == "CLIPModel"
    copy = pickle.loads(pickle.dumps(explainer))
    assert torch.equal(copy.similarity("a cat", folder / "one.png").scores, found.scores)


def test_the_command_line_compares_texts_with_a_picture(folder, tmp_path, capsys):
    arguments = ["similarity", "a cat", "the red square", "--image", str(folder / "one.png"), "--model", str(folder)]
    more = ["--measure", "logit", "--sources", "2x2", "--json", str(tmp_path / "o.json"), "--html", str(tmp_path / "o")]
    assert main([*arguments, *more]) == 0
    found = read_json(tmp_path / "o.json")
    assert [one.a.texts[0] for one in found] == ["a cat", "the red square"]
    assert all(one.b.source_unit == "group" and one.measure == "logit" for one in found)
    assert "text 2: the red square" in capsys.readouterr().out and "dx-patches" in (tmp_path / "o").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a cat"], "PASSAGE"),
        (["a cat", "--image", "x.png"], "--model"),
        (["a cat", "a dog", "--side", "image"], "--side image is for pictures"),
        (["a cat", "--image", "x.png", "--model", "m", "--side", "query"], "--side query is for texts"),
    ],
)
def test_wrong_usage_is_refused(arguments, message):
    result = CliRunner().invoke(cli, ["similarity", *arguments])
    assert result.exit_code == 2 and message in result.output
