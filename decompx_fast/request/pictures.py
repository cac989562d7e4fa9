"""Reading what a classifier of pictures is to explain: pictures in memory or in files, or prepared pixels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import InputError, shown, warn_user
from ..optional import import_optional
from ..result.picture import Picture
from .encoded import Encoded
from .media import MediaReader

#: What models of pictures call their input.
PIXELS = "pixel_values"

ACCEPTED = (
    "give a picture (of PIL, or uint8 [height, width, 3] as an array), the path or the open file of one, a list of "
    "these, or "
    f"{{'{PIXELS}': [b, channels, height, width]}} that a processor prepared"
)

#: How a picture of PIL may hold its colours: others have more than 8 bits, which a conversion to RGB would cut off.
_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")


#: Those of them that have transparency.
_TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")

#: The number of a picture's orientation in its EXIF data.
_ORIENTATION = 0x0112


class CutsPictures(Protocol):
    """How a model cuts pictures into patches: ``(height, width)`` of a patch and of the pictures that it has positions
    for, how many channels, the names of the positions before the patches, and whether it takes other sizes."""

    @property
    def patch(self) -> tuple[int, int]: ...

    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def channels(self) -> int: ...

    @property
    def special(self) -> tuple[str, ...]: ...

    @property
    def resizable(self) -> bool: ...

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches of a picture."""
        ...


class PictureReader(MediaReader):
    """Turns pictures into :class:`.encoding.Encoded`.

    Args:
        processor: an image processor of Hugging Face, or ``None`` if only prepared pixels will be given.
        limits: how the model cuts pictures.
        skip: give a :class:`Failure` for a picture that cannot be read, and go on.
    """

    kind = "picture"
    accepted = ACCEPTED

    def __init__(self, processor: Any, limits: CutsPictures, *, skip: bool = False) -> None:
        self.processor = processor
        self.limits = limits
        self.skip = skip

    @property
    def _input(self) -> str:
        return PIXELS

    @staticmethod
    def _is_one(items: Any) -> bool:
        return is_picture(items)

    def read_one(self, item: Any, where: str, number: int = 0) -> Encoded:
        """One picture, through the processor."""
        if self.processor is None:
            raise InputError(
                f"pictures need a processor: use DecompX(model, processor), or give {{'{PIXELS}': ...}} that one "
                "prepared"
            )
        array, about = _rgb(item, where)
        try:
            given = self.processor(images=array, return_tensors="pt", input_data_format="channels_last")
            pixels = given[PIXELS][0]
        except Exception as error:
            raise InputError(
                f"the processor ({type(self.processor).__name__}) failed on {where}: {type(error).__name__}: {error}"
            ) from error
        about["picture_size"] = list(array.shape[:2])
        if self._setting("do_center_crop"):
            about["cropped"] = "the processor cuts off what is not at the centre, or pads; what is left is shown"
        return self._encode(pixels, where, number, about)

    def _prepared(self, given: Mapping[str, Any]) -> tuple[list[Tensor], bool]:
        """The rows ``[c, height, width]`` of what a processor prepared."""
        if PIXELS not in given:
            raise InputError(f"the mapping holds {', '.join(map(repr, given)) or 'nothing'}: {ACCEPTED}")
        others = [name for name in given if name not in (PIXELS, "labels")]
        if others:
            raise InputError(f"the mapping holds {others[0]!r}, which is not supported: give {PIXELS} alone")
        try:
            pixels = _stacked(given[PIXELS])
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{PIXELS} cannot be read as numbers ({error}): {ACCEPTED}") from error
        if pixels.ndim not in (3, 4) or not pixels.is_floating_point() or not len(pixels):
            raise InputError(
                f"{PIXELS} must be floating-point [channels, height, width] or [b, channels, height, width], got "
                f"{pixels.dtype} {list(pixels.shape)}"
            )
        return (list(pixels), False) if pixels.ndim == 4 else ([pixels], True)

    def _encode(self, pixels: Tensor, where: str, number: int, about: dict[str, Any]) -> Encoded:
        """Prepared pixels ``[c, height, width]`` as the model cuts them."""
        limits = self.limits
        channels, height, width = pixels.shape
        if channels != limits.channels:
            raise InputError(
                f"{where} has {channels} channels, and the model takes {limits.channels}: give {{'{PIXELS}': ...}} "
                "with as many"
            )
        if (height, width) != limits.size and not limits.resizable:
            raise InputError(
                f"{where} is {height} x {width} pixels, and the positions of this model are those of pictures of "
                f"{limits.size[0]} x {limits.size[1]}, which cannot be interpolated: resize it to these"
            )
        rows, columns = limits.grid(height, width)
        if not rows * columns:
            raise InputError(
                f"{where} is {height} x {width} pixels, smaller than a patch ({limits.patch[0]} x {limits.patch[1]}): "
                "resize it"
            )
        if not torch.isfinite(pixels).all():
            raise InputError(f"{where} holds NaN or infinity in {PIXELS}")
        if (height, width) != limits.size:
            about["positions"] = f"interpolated from {limits.size[0]} x {limits.size[1]} pixels"
        count = len(limits.special)
        groups = torch.arange(count, count + rows * columns).view(rows, columns)
        seen = (rows * limits.patch[0], columns * limits.patch[1])
        about["seen_size"] = list(seen)
        tokens = (*limits.special, *(f"patch {r},{c}" for r in range(rows) for c in range(columns)))
        return Encoded(
            {PIXELS: pixels},
            tokens,
            (None,) * len(tokens),
            tuple(n < count for n in range(len(tokens))),
            (),
            number,
            about,
            picture=Picture(groups, limits.patch, self._visible(pixels[:, : seen[0], : seen[1]])),
            unit="patch",
        )

    def _visible(self, pixels: Tensor) -> Tensor:
        """Prepared pixels ``[c, height, width]`` as colours ``[height, width, 3]`` uint8: the processor's steps undone,
        or, without one, from the least to the most."""
        x = pixels.detach().double()
        if self.processor is None:
            low, high = x.min(), x.max()
            x = (x - low) / (high - low).clamp_min(1e-12)
        else:
            if self._setting("do_normalize"):
                mean, std = (torch.tensor(self._setting(name), dtype=x.dtype) for name in ("image_mean", "image_std"))
                x = x * std.view(-1, 1, 1) + mean.view(-1, 1, 1)
            x = x / (255 * (self._setting("rescale_factor") or 1 / 255) if self._setting("do_rescale") else 255)
        x = x if len(x) == 3 else x[:1].expand(3, -1, -1)
        return (x.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()

    def _setting(self, name: str) -> Any:
        """An option of the processor, or of the one for pictures in it."""
        return getattr(getattr(self.processor, "image_processor", self.processor), name, None)


def is_picture(item: Any) -> bool:
    """Whether this is one picture rather than several."""
    if isinstance(item, (str, os.PathLike)) or hasattr(item, "getexif") or hasattr(item, "read"):
        return True
    return hasattr(item, "dtype") and getattr(item, "ndim", 0) in (2, 3)


def _rgb(item: Any, where: str) -> tuple[Any, dict[str, Any]]:
    """A picture as an array ``[height, width, 3]`` uint8, turned as its camera says, and what was done to it."""
    if hasattr(item, "dtype"):
        return _of_array(item, where), {}
    if isinstance(item, (str, os.PathLike)) or hasattr(item, "read"):
        return _of_file(item, where)
    if hasattr(item, "getexif"):
        return _of_pil(item, where)
    raise InputError(f"{where} is {shown(item)}, which is no picture: {ACCEPTED}")


def _of_file(file: Any, where: str) -> tuple[Any, dict[str, Any]]:
    """What is at a path, or in an open file; of several pictures in it the first."""
    images = import_optional("PIL.Image", "reading a picture from a file")
    name = where
    if not hasattr(file, "read"):
        file = os.fspath(file)
        name = str(file) if where == "the input" else f"{where} ({file})"
        if not os.path.exists(file):
            raise InputError(f"{name} does not exist: {ACCEPTED}")
    try:
        with images.open(file) as image:
            image.load()
            return _of_pil(image, name)
    except InputError:
        raise
    except Exception as error:  # of a format's reader, whatever it is
        raise InputError(f"{name} cannot be read as a picture ({type(error).__name__}: {error})") from error


def _of_pil(image: Any, where: str) -> tuple[Any, dict[str, Any]]:
    """As transformers' pipelines read it: turned by its EXIF data, transparency dropped."""
    import numpy
    from PIL import ImageOps

    about: dict[str, Any] = {}
    if image.mode not in _MODES:
        raise InputError(
            f"{where} has the mode {image.mode!r}, of more than 8 bits a colour, which would be cut off: convert it to "
            "'RGB' or 'L' first, with the range that you want to be seen"
        )
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        about["frames"] = f"the one that it stands at, of {frames}"
        warn_user(f"{where} has {frames} pictures in it, of which one is explained: the one that it stands at")
    try:
        turned = ImageOps.exif_transpose(image)
        if image.getexif().get(_ORIENTATION, 1) in range(2, 9):
            about["turned"] = "as its EXIF data says"
        colours = turned.convert("LA" if turned.mode == "La" else turned.mode).convert("RGB")
    except Exception as error:  # of a picture whose file was closed, say
        raise InputError(f"{where} cannot be read as a picture ({type(error).__name__}: {error})") from error
    if turned.mode in _TRANSPARENT or "transparency" in turned.info:
        about["alpha"] = "dropped"
        warn_user(
            f"{where} has transparent parts, which are dropped as transformers does: the model sees the colours behind "
            "them. Put it on a background first if that is not what you want"
        )
    return numpy.array(colours), about


def _stacked(pixels: Any) -> Tensor:
    """Pixels as one tensor; a list of tensors, as processors give it unless they are asked for one, is put together."""
    if not isinstance(pixels, (list, tuple)) or not pixels or not hasattr(pixels[0], "shape"):
        return torch.as_tensor(pixels, device="cpu")
    each = [torch.as_tensor(one, device="cpu") for one in pixels]
    sizes = {tuple(one.shape) for one in each}
    if len(sizes) > 1:
        raise ValueError(f"pictures of different sizes, {sorted(sizes)}: give each by itself")
    return torch.stack(each)


def _of_array(item: Any, where: str) -> Any:
    """From ``[height, width]``, ``[height, width, c]`` or ``[c, height, width]`` with one, three or four channels."""
    import numpy

    array = numpy.asarray(item.detach().cpu() if isinstance(item, Tensor) else item)
    if array.dtype != numpy.uint8:
        raise InputError(
            f"{where} is an array of {array.dtype}: give uint8 from 0 to 255, or {{'{PIXELS}': ...}} that a processor "
            "prepared"
        )
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        raise InputError(f"{where} is an array of the shape {list(array.shape)}: give [height, width, 3]")
    if array.shape[2] == 4:
        warn_user(f"{where} has four channels, of which the last is taken for transparency and dropped")
    return numpy.ascontiguousarray(numpy.repeat(array, 3, axis=2) if array.shape[2] == 1 else array[:, :, :3])
