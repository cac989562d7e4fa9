"""Pictures in and out: how they are read, what counts as a source, and what is shown of them."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from explanation_samples import simple, without_script
from PIL import Image
from refusals import refuses
from transformers import AutoImageProcessor, CLIPImageProcessorPil, ViTImageProcessorPil
from vision_models import classifier, inputs

from decompx_fast import DecompX, Explanation, Failure
from decompx_fast.cli import cli
from decompx_fast.errors import OptionError
from decompx_fast.result.display import AGAINST_RGB, FOR_RGB
from decompx_fast.result.picture import Picture
from decompx_fast.result.png import decode, encode

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def processor(height: int = 16, width: int = 16) -> ViTImageProcessorPil:
    return ViTImageProcessorPil(size={"height": height, "width": width}, **HALF)


def colours(height: int = 16, width: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def explainer() -> DecompX:
    return DecompX(classifier("vit"), processor())


def test_a_picture_is_read_in_every_form(explainer, tmp_path):
    array = colours(20, 30)
    image = Image.fromarray(array)
    image.save(tmp_path / "one.png")
    expected = explainer(processor()(image, return_tensors="pt"))[0]
    forms = [image, array, torch.from_numpy(array), array.transpose(2, 0, 1), tmp_path / "one.png"]
    for form in [*forms, str(tmp_path / "one.png")]:
        found = explainer(form)
        assert torch.equal(found.scores, expected.scores)
        assert found.metadata["picture_size"] == [20, 30]
    several = explainer([*forms, str(tmp_path / "one.png")])
    assert len(several) == 6 and all(torch.allclose(one.scores, expected.scores) for one in several)
    grey = explainer(array[:, :, 0])
    assert torch.equal(grey.scores, explainer(Image.fromarray(array[:, :, 0])).scores)


def test_scores_add_up_to_the_logits_of_the_picture(explainer):
    array = colours()
    found = explainer(array)
    with torch.no_grad():
        pixels = processor()(Image.fromarray(array), return_tensors="pt")["pixel_values"].double()
        logits = explainer.model(pixel_values=pixels).logits[0]
    assert torch.allclose(found.scores.sum(0), logits, rtol=0, atol=1e-12)
    assert found.source_unit == "patch" and found.tokens[:2] == ("[CLS]", "patch 0,0") and found.token_ids is None
    assert found.task == "image-classification"


def test_what_the_model_saw_is_kept(explainer):
    """The processor changes nothing here but the range, so what is shown is the picture itself."""
    array = colours()
    picture = explainer(array).picture
    assert picture.grid == (4, 4) and picture.patch == (4, 4)
    assert np.array_equal(picture.pixels.numpy(), array)


def test_a_picture_that_is_cropped_says_so_and_shows_the_crop():
    crops = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}, **HALF)
    array = colours(16, 48)
    found = DecompX(classifier("vit"), crops)(array)
    assert "cropped" in found.metadata and found.metadata["picture_size"] == [16, 48]
    assert found.metadata["seen_size"] == [16, 16]
    assert np.array_equal(found.picture.pixels.numpy(), array[:, 16:32])


def test_a_picture_is_turned_as_its_camera_says(explainer, tmp_path):
    image, exif = Image.fromarray(colours(16, 24)), Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, clockwise
    image.save(tmp_path / "turned.png", exif=exif)
    found = explainer(tmp_path / "turned.png")
    expected = explainer(image.rotate(-90, expand=True))
    assert torch.equal(found.scores, expected.scores) and found.metadata["picture_size"] == [24, 16]
    assert "turned" in found.metadata and "turned" not in expected.metadata


def test_transparency_is_dropped_with_a_warning(explainer):
    array = np.concatenate((colours(), np.zeros((16, 16, 1), np.uint8)), axis=2)
    for form in (Image.fromarray(array, "RGBA"), array):
        with pytest.warns(UserWarning, match="transparen"):
            found = explainer(form)
        assert torch.equal(found.scores, explainer(array[:, :, :3].copy()).scores)


def test_a_picture_of_one_pixel_is_explained(explainer):
    found = explainer(np.full((1, 1, 3), 200, np.uint8))
    assert found.completeness_error < 1e-10 and found.metadata["picture_size"] == [1, 1]
    assert found.picture.pixels.unique().tolist() == [200]


def test_what_is_no_picture_is_refused_by_name(explainer, tmp_path):
    (tmp_path / "note.txt").write_text("not a picture")
    Image.fromarray(colours(64, 64)).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:2000])
    refuses(explainer, str(tmp_path / "note.txt"), match=("note.txt", "cannot be read as a picture"))
    refuses(explainer, str(tmp_path / "cut.png"), match=("cut.png", "cannot be read as a picture"))
    refuses(explainer, str(tmp_path / "missing.png"), match=("missing.png", "does not exist"))
    refuses(explainer, str(tmp_path), match=("cannot be read as a picture",))
    refuses(explainer, [colours(), 7], match=("input 1", "no picture"))
    refuses(explainer, b"\x89PNG", match=("bytes", "as a picture"))
    refuses(explainer, colours().astype(float) / 255, match=("float64", "uint8"))
    refuses(explainer, np.zeros((5, 6, 7), np.uint8), match=("[5, 6, 7]", "[height, width, 3]"))
    refuses(explainer, Image.fromarray(np.zeros((4, 4), np.uint16)), match=("'I;16'", "8 bits"))
    refuses(DecompX(explainer.model), colours(), match=("processor",))
    found = explainer([colours(), str(tmp_path / "note.txt")], on_error="skip")
    assert isinstance(found[1], Failure) and "note.txt" in found[1].error


def test_prepared_pixels_that_do_not_fit_are_refused(explainer):
    pixels = inputs("vit", 1)["pixel_values"]
    refuses(explainer, {"pixels": pixels}, match=("'pixels'", "pixel_values"))
    refuses(explainer, {"pixel_values": pixels, "input_ids": [1]}, match=("input_ids",))
    refuses(explainer, {"pixel_values": pixels[:, :2]}, match=("2 channels", "takes 3"))
    refuses(explainer, {"pixel_values": pixels[:, :, :3]}, match=("3 x 16", "smaller than a patch"))
    refuses(explainer, {"pixel_values": pixels * float("nan")}, match=("NaN",))
    refuses(explainer, {"pixel_values": pixels.long()}, match=("int64", "floating-point"))
    refuses(explainer, colours(), error=OptionError, match=("truncate",), truncate=True)


def test_pictures_of_different_shapes_go_together(explainer):
    """Twelve patches each, in 2 x 6 and 3 x 4: as long, and not alike."""
    wide, high = inputs("vit", 1, (8, 24)), inputs("vit", 1, (12, 16))
    alone = [explainer(one)[0] for one in (wide, high)]
    assert [one.picture.grid for one in alone] == [(2, 6), (3, 4)]
    own = DecompX(explainer.model)
    together = [one for given in (wide, high) for one in own.explain(given)]
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.scores, other.scores)
    sizes = iter([(8, 24), (12, 16)])

    def resized(images, **options):
        return {"pixel_values": inputs("vit", 1, next(sizes))["pixel_values"]}

    resized.do_normalize, resized.do_rescale = False, True
    found = DecompX(explainer.model, resized)([colours(), colours()])
    for one, other in zip(alone, found, strict=True):
        assert torch.allclose(one.scores, other.scores, rtol=0, atol=1e-12)


# Sources.


@pytest.mark.parametrize("case", ["vit", "dinov2_registers", "siglip"])
def test_blocks_of_patches_are_sources(case):
    model = classifier(case)
    ex, given = DecompX(model), inputs(case, 1, (20, 24))  # 5 x 6 patches
    found = ex(given, sources=(2, 3), bias="none")[0]
    each = ex(given, bias="none")[0]
    first = len(each) - 30
    assert len(found) == first + 6 and found.source_unit == "group"
    assert found.tokens[:first] == each.tokens[:first]
    # Without biases scores of groups are sums: rows 0 to 2 and 3 to 4, columns two by two.
    patches = each.scores[first:].view(5, 6, 3)
    for r, rows in enumerate((slice(0, 3), slice(3, 5))):
        for c in range(3):
            total = patches[rows, 2 * c : 2 * c + 2].sum((0, 1))
            assert torch.allclose(found.scores[first + 3 * r + c], total, rtol=0, atol=1e-12)


def test_given_groups_are_sources_and_their_scores_are_spread(explainer):
    ids = np.array([[7, 7, 7, 7], [7, 3, 3, 7], [7, 3, 3, 7], [7, 7, 7, 7]])
    found = explainer(inputs("vit", 1), sources=ids)[0]
    assert found.tokens == ("[CLS]", "group 3", "group 7") and found.special == (True, False, False)
    map_ = found.patches("LABEL_1")
    assert torch.allclose(map_[1:3, 1:3], found.scores[1, 1] / 4)
    assert torch.allclose(map_[0], found.scores[2, 1] / 12)
    assert torch.allclose(map_.sum(), found.scores[1:, 1].sum())


def test_sources_that_do_not_fit_are_refused(explainer):
    given = inputs("vit", 1)
    refuses(explainer, given, sources=(5, 1), match=("(5, 1)", "4 x 4"))
    refuses(explainer, given, sources=[[0, 1]], match=("[1, 2]", "[4, 4]"))
    refuses(explainer, given, sources="word", match=("'word'", "'patch'"))
    refuses(explainer, given, sources=np.ones((4, 4)), match=("float64", "whole number"))


# What is shown.


def test_a_picture_is_saved_and_read_back(explainer, tmp_path):
    found = explainer(colours(), sources=(2, 2))
    found.save(tmp_path / "one.safetensors")
    copies = (
        Explanation.load(tmp_path / "one.safetensors"),
        Explanation.from_dict(json.loads(json.dumps(found.to_dict()))),
        pickle.loads(pickle.dumps(found)),
    )
    for one in copies:
        assert torch.equal(one.picture.pixels, found.picture.pixels) and torch.equal(one.patches(), found.patches())
        assert one.picture.patch == (4, 4) and one.task == "image-classification"


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (16, 7)])
def test_png_files_are_what_others_read(size, tmp_path):
    pixels = torch.from_numpy(colours(*size))
    (tmp_path / "one.png").write_bytes(encode(pixels))
    assert np.array_equal(np.array(Image.open(tmp_path / "one.png")), pixels.numpy())
    assert torch.equal(decode(encode(pixels)), pixels)
    refuses(decode, b"GIF89a", match=("no PNG",))


def shown(scores: list[float], explainer: DecompX) -> Explanation:
    """An explanation of a white picture of two patches side by side with these scores."""
    from dataclasses import replace

    one = explainer(np.full((16, 16, 3), 255, np.uint8))
    picture = Picture(torch.tensor([[1, 2]]), (4, 4), torch.full((4, 8, 3), 255, dtype=torch.uint8))
    table = torch.zeros(3, 3, dtype=torch.float64)
    table[1:] = torch.tensor(scores)[:, None]
    return replace(
        one,
        tokens=one.tokens[:3],
        spans=(None,) * 3,
        special=one.special[:3],
        scores=table,
        picture=picture,
    )


def test_views_have_the_colours_of_the_scores(explainer, tmp_path):
    """Over white, a full score leaves 0.65 of its colour; the heat map all of it; a stroke crosses what is against."""
    explanation = shown([2.0, -1.0], explainer)

    def pixel(view: str, patch: int) -> list[int]:
        (tmp_path / "view.png").write_bytes(explanation.to_png(view))
        drawn = np.array(Image.open(tmp_path / "view.png"))
        side = drawn.shape[0]
        assert drawn.shape == (side, 2 * side, 3) and side >= 448
        return drawn[side // 4, patch * side + side // 4].tolist()

    green = [round(255 * 0.35 + 0.65 * part) for part in FOR_RGB]
    red = [round(255 * (1 - 0.325) + 0.325 * part) for part in AGAINST_RGB]
    assert pixel("overlay", 0) == green and pixel("overlay", 1) == red
    assert pixel("heatmap", 0) == list(FOR_RGB)
    assert pixel("for", 0) == green and pixel("for", 1) == [255] * 3
    assert pixel("against", 0) == [255] * 3 and pixel("against", 1) == red
    drawn = torch.tensor(np.array(Image.open(tmp_path / "view.png")))
    assert drawn[224, 448 + 224 - 1].tolist() == [255] * 3  # the stroke
    refuses(explanation.to_png, "mask", match=("'mask'", "'overlay'"))


def test_a_page_has_four_views_and_a_legend():
    ex = DecompX(classifier("dinov2_registers"), processor())
    page = without_script(ex(colours()).to_html(full=True))
    assert page.count('<figure class="dx-picture') == 4 and page.count("data:image/png;base64,") == 1
    assert "<script" not in page and "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")
    for name in ("[CLS]", "[REG0]", "[REG2]"):
        assert f"<bdi>{name}</bdi>" in page
    assert (
        page.count("<rect") == 16 * 2 + sum(page.count(f'class="dx-{sign}" style') for sign in ("for", "against")) // 3
    )
    assert "patchs" not in page


def test_texts_have_no_patches():
    refuses(simple([0.1, 0.2]).patches, match=("for pictures",))
    refuses(simple([0.1, 0.2]).to_png, match=("for pictures",))


def test_of_many_classes_the_likeliest_five_are_explained():
    """As those that know a thousand: by themselves for each picture, the same numbers as when they are asked for."""
    for size in (120, 20):  # of more classes than a state has numbers, and of fewer: only the first forms some alone
        model = classifier("vit", num_labels=130, hidden_size=size)
        ex, given = DecompX(model), inputs("vit", 2)
        with torch.no_grad():
            logits = model(**given).logits
        for engine, bias in (("forward", "absdot"), ("adjoint", "equal"), ("reference", "bias_token")):
            for n, found in enumerate(ex.explain(given, engine=engine, bias=bias)):
                likeliest = logits[n].argsort(descending=True)[:5].tolist()
                assert list(found.target_ids) == likeliest and len(found.labels) == 130
                assert found.targets == tuple(f"LABEL_{k}" for k in likeliest)
                assert torch.allclose(found.totals, logits[n, likeliest], rtol=0, atol=1e-10)
                asked = ex.explain(given, engine=engine, bias=bias, targets=likeliest)[n]
                assert torch.allclose(found.scores, asked.scores, rtol=0, atol=1e-10)


# The command line.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if type(AutoImageProcessor).__name__ == "DummyObject":
        pytest.skip("this version of transformers loads processors of pictures with torchvision alone")
    place = tmp_path_factory.mktemp("model")
    classifier("vit", dtype=torch.float32).save_pretrained(place)
    processor().save_pretrained(place)
    Image.fromarray(colours(20, 30)).save(place / "one.png")
    return place


def test_a_saved_model_is_loaded_with_its_processor(folder):
    ex = DecompX.from_pretrained(folder)
    assert ex.task == "image-classification"
    assert ex(folder / "one.png").completeness_error < 1e-4


def test_the_command_line_explains_pictures(folder, tmp_path):
    arguments = ["explain", "--image", str(folder / "one.png"), "--model", str(folder), "--sources", "2x2"]
    result = CliRunner().invoke(
        cli, [*arguments, "--html", str(tmp_path / "out.html"), "--json", str(tmp_path / "o.json")]
    )
    assert result.exit_code == 0, result.output
    assert "block 1,1" in result.output and "dx-picture" in (tmp_path / "out.html").read_text()
    (found,) = json.loads((tmp_path / "o.json").read_text())
    assert found["metadata"]["file"] == str(folder / "one.png") and len(found["tokens"]) == 5


def test_the_command_line_tells_pictures_from_texts(folder):
    for arguments, word in (
        (["some text", "--model", str(folder)], "--image FILE"),
        (["--image", str(folder / "one.png")], "--model"),
        (["some text", "--image", "x.png", "--model", str(folder)], "no texts"),
    ):
        result = CliRunner().invoke(cli, ["explain", *arguments])
        assert result.exit_code == 2 and word in result.output
    result = CliRunner().invoke(cli, ["explain", "--image", str(folder / "config.json"), "--model", str(folder)])
    assert result.exit_code == 1
