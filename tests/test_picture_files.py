"""Pictures as strangers give them: odd modes, files of several, open files, orientations, and lists of pixels."""

from __future__ import annotations

import gc
import io
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refuses
from test_pictures import HALF, colours, processor
from transformers import ViTImageProcessorPil
from vision_models import classifier, inputs

from decompx_fast import DecompX


@pytest.fixture(scope="module")
def explainer() -> DecompX:
    return DecompX(classifier("vit"), processor())


def test_a_palette_of_colours_is_no_transparency_and_odd_modes_are_read(explainer, recwarn):
    image = Image.fromarray(colours())
    for mode in ("LAB", "1", "P", "HSV", "CMYK", "YCbCr", "RGBX"):
        assert "alpha" not in explainer(image.convert(mode)).metadata
    assert not recwarn.list
    with pytest.warns(UserWarning, match="transparen"):
        found = explainer(image.convert("LA").convert("La"))
    assert torch.equal(found.scores, explainer(image.convert("L")).scores)


def test_of_several_pictures_in_a_file_the_first_is_explained_with_a_warning(explainer, tmp_path):
    frames = [Image.fromarray(colours(seed=seed)) for seed in range(3)]
    for name in ("moving.gif", "pages.tiff", "moving.webp"):
        options = {"lossless": True} if name.endswith("webp") else {}
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **options)
        with pytest.warns(UserWarning, match="3 pictures in it"):
            found = explainer(tmp_path / name)
        assert "of 3" in found.metadata["frames"]
        if not name.endswith("gif"):  # which has fewer colours
            assert torch.equal(found.scores, explainer(colours()).scores)


def test_an_orientation_that_does_not_exist_turns_nothing(explainer, tmp_path):
    for orientation in (0, 1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(colours(16, 24)).save(tmp_path / "one.png", exif=exif)
        assert "turned" not in explainer(tmp_path / "one.png").metadata


def test_open_files_are_read_and_closed_pictures_refused(explainer, tmp_path):
    Image.fromarray(colours()).save(tmp_path / "one.png")
    expected = explainer(colours())
    with open(tmp_path / "one.png", "rb") as file:
        assert torch.equal(explainer(file).scores, expected.scores)
    kept = io.BytesIO((tmp_path / "one.png").read_bytes())
    assert torch.allclose(explainer([kept, colours()])[0].scores, expected.scores, rtol=0, atol=1e-12)
    closed = Image.open(tmp_path / "one.png")
    closed.close()
    refuses(explainer, closed, match=("the input", "cannot be read as a picture", "closed"))
    refuses(explainer, io.BytesIO(b"no picture"), match=("the input", "cannot be read as a picture"))


def test_files_are_closed(explainer, tmp_path):
    Image.fromarray(colours()).convert("P").save(tmp_path / "one.gif")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        explainer(tmp_path / "one.gif")
        gc.collect()


def test_lists_of_prepared_pixels_are_put_together(explainer):
    pixels = inputs("vit", 2)["pixel_values"]
    expected = explainer({"pixel_values": pixels})
    for given in (list(pixels), [one.numpy() for one in pixels], pixels.tolist()):
        found = explainer({"pixel_values": given})
        assert all(torch.allclose(a.scores, b.scores, atol=1e-6) for a, b in zip(found, expected, strict=True))
    different = [pixels[0], pixels[1][:, :, :12]]
    refuses(explainer, {"pixel_values": different}, match=("different sizes", "each by itself"))


def test_what_is_shown_undoes_what_the_processor_did():
    array = colours()
    for options in (
        {"rescale_factor": 1 / 127.5, "do_normalize": True},
        {"rescale_factor": 1 / 127.5, "do_normalize": False},
        {"do_rescale": False, "do_normalize": False},
        {"do_normalize": False},
    ):
        own = ViTImageProcessorPil(size={"height": 16, "width": 16}, **HALF, **options)
        shown = DecompX(classifier("vit"), own)(array).picture.pixels.numpy().astype(int)
        assert np.abs(shown - array).max() <= 1, options


def test_words_of_pictures_are_refused_by_the_name_of_their_sources(explainer):
    refuses(explainer(colours()).words, match=("are patches",))
