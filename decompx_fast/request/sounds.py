"""Reading what a classifier of sounds is to explain: waveforms in memory or in files, or what a processor prepared."""

from __future__ import annotations

import os
import wave
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import InputError, shown
from ..result.picture import Picture
from .encoded import Encoded
from .media import MediaReader

#: What a user may give besides what a processor prepared, for messages.
ACCEPTED = (
    "give a waveform [samples] as an array, {'array': ..., 'sampling_rate': ...}, the path of a WAV file, a list of "
    "these, or what a processor prepared"
)

#: What tells padding from samples.
MASK = "attention_mask"

#: How long a frame of a spectrogram is where its processor does not say it, in seconds.
SPECTROGRAM_SECONDS = 0.01

#: A waveform is drawn so high, at the least, and so wide, at the most.
DRAWN_HEIGHT, DRAWN_WIDTH = 48, 1024


class CutsSounds(Protocol):
    """How a model cuts sounds: what it calls its input, whose axes are ``time`` and perhaps ``mel``, their sizes, the
    names of the positions before the frames, the steps of frequency and time, and the grid of a length."""

    @property
    def name(self) -> str: ...

    @property
    def axes(self) -> tuple[str, ...]: ...

    @property
    def sizes(self) -> tuple[int | None, ...]: ...

    @property
    def special(self) -> tuple[str, ...]: ...

    @property
    def step(self) -> tuple[int, int]: ...

    @property
    def grid(self) -> Callable[[int], tuple[int, int]]: ...


class SoundReader(MediaReader):
    """Turns sounds into :class:`.encoding.Encoded`.

    Args:
        processor: a feature extractor of Hugging Face, or ``None`` if only prepared values will be given.
        limits: how the model cuts sounds.
        skip: give a :class:`Failure` for a sound that cannot be read, and go on.
    """

    kind = "sound"
    accepted = ACCEPTED

    def __init__(self, processor: Any, limits: CutsSounds, *, skip: bool = False) -> None:
        self.processor = getattr(processor, "feature_extractor", processor)
        self.limits = limits
        self.skip = skip

    @property
    def rate(self) -> int | None:
        """Samples per second that the model was trained with, where the processor says it."""
        found = getattr(self.processor, "sampling_rate", None)
        return int(found) if found else None

    @property
    def _input(self) -> str:
        return self.limits.name

    @staticmethod
    def _is_one(items: Any) -> bool:
        return "array" in items if isinstance(items, Mapping) else _is_sound(items)

    def read_one(self, item: Any, where: str, number: int = 0) -> Encoded:
        """One sound, through the processor."""
        if self.processor is None:
            raise InputError(
                f"sounds need a processor: use DecompX(model, processor), or give {{'{self.limits.name}': ...}} that "
                "one prepared"
            )
        samples, rate, about = _waveform(item, where)
        if rate is not None and self.rate is not None and rate != self.rate:
            raise InputError(
                f"{where} has {rate} samples per second, and the model was trained with {self.rate}: resample it first"
            )
        try:
            given = self.processor(samples.numpy(), sampling_rate=self.rate, return_tensors="pt")
            values = torch.as_tensor(given[self.limits.name])[0]
        except Exception as error:
            raise InputError(
                f"the processor ({type(self.processor).__name__}) failed on {where}: {type(error).__name__}: {error}"
            ) from error
        if self.rate is not None:
            about["seconds"] = round(len(samples) / self.rate, 3)
        return self._encode(values, where, number, about, samples)

    def _prepared(self, given: Mapping[str, Any]) -> tuple[list[Tensor], bool]:
        """The rows of what a processor prepared."""
        name, axes = self.limits.name, len(self.limits.axes)
        if name not in given:
            raise InputError(f"the mapping holds {', '.join(map(repr, given)) or 'nothing'}: {ACCEPTED}, {name}")
        others = [key for key in given if key not in (name, "labels") and not (key == MASK and _is_full(given[key]))]
        if others:
            raise InputError(
                f"the mapping holds {others[0]!r}, which is not supported: give {name} alone, and sounds of different "
                "lengths, which need padding, by themselves"
            )
        try:
            values = torch.as_tensor(given[name], device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{name} cannot be read as numbers ({error}): {ACCEPTED}") from error
        if values.ndim not in (axes, axes + 1) or not values.is_floating_point() or not len(values):
            shape = ", ".join(self.limits.axes)
            raise InputError(
                f"{name} must be floating-point [{shape}] or [b, {shape}], got {values.dtype} {list(values.shape)}"
            )
        return (list(values), False) if values.ndim > axes else ([values], True)

    def _encode(
        self, values: Tensor, where: str, number: int, about: dict[str, Any], samples: Tensor | None = None
    ) -> Encoded:
        """Prepared values of one sound, as the model cuts them."""
        limits = self.limits
        for axis, size, found in zip(limits.axes, limits.sizes, values.shape, strict=True):
            if size is not None and size != found:
                raise InputError(f"{where} has the size {found} along {axis}, and the model takes {size}")
        if not torch.isfinite(values).all():
            raise InputError(f"{where} holds NaN or infinity in {limits.name}")
        length = values.shape[limits.axes.index("time")]
        rows, columns = limits.grid(length)
        if columns < 1:
            raise InputError(f"{where} has {length} samples, which is less than one frame: give a longer sound")
        seconds = self._seconds()
        step = None if seconds is None else limits.step[1] * seconds
        count = len(limits.special)
        # Patches are counted from the lowest frequencies on, which are shown at the bottom.
        groups = torch.arange(count, count + rows * columns).view(rows, columns).flip(0)
        tokens = (*limits.special, *(self._name(r, c, rows, step) for r in range(rows) for c in range(columns)))
        return Encoded(
            {limits.name: values},
            tokens,
            (None,) * len(tokens),
            tuple(n < count for n in range(len(tokens))),
            (),
            number,
            about,
            picture=Picture(groups, *self._drawn(values, rows, columns)),
            unit="frame" if rows == 1 else "patch",
            seconds=step,
        )

    def _seconds(self) -> float | None:
        """How long a step along the axis of time is."""
        if self.limits.axes == ("time",):
            return None if self.rate is None else 1 / self.rate
        hop = getattr(self.processor, "hop_length", None)
        return hop / self.rate if hop and self.rate else SPECTROGRAM_SECONDS

    def _name(self, row: int, column: int, rows: int, step: float | None) -> str:
        """What a frame is called, by its place in time and frequency."""
        at = f"frame {column}" if step is None else f"{column * step:.2f}-{(column + 1) * step:.2f} s"
        return at if rows == 1 else f"{at}, mel {row * self.limits.step[0]}"

    def _drawn(self, values: Tensor, rows: int, columns: int) -> tuple[tuple[int, int], Tensor]:
        """The size of a cell, in pixels, and the spectrogram or the waveform in grey, ``[height, width, 3]`` uint8."""
        if self.limits.axes != ("time",):
            height, width = self.limits.step
            mel = values if self.limits.axes == ("mel", "time") else values.T
            mel = mel[: rows * height, : columns * width].double()
            low, high = mel.min(), mel.max()
            grey = 255 * (1 - (mel - low) / (high - low).clamp_min(1e-12)).flip(0)
            return (height, width), _grey(grey)
        width = max(1, min(4, DRAWN_WIDTH // columns))
        height = max(DRAWN_HEIGHT, columns * width // 6)
        bins = torch.linspace(0, columns * self.limits.step[1], columns * width + 1).long()
        bins = bins.clamp_max(len(values) - 1)
        values = values.float()
        size = values.abs().max().clamp_min(1e-12)
        parts = [values[a : max(b, a + 1)] / size for a, b in zip(bins[:-1].tolist(), bins[1:].tolist(), strict=True)]
        low, high = (torch.stack([part.amin() if n else part.amax() for part in parts]) for n in (1, 0))
        y = torch.linspace(1, -1, height)[:, None]
        inside = (y <= high + 1.01 / (height - 1)) & (y >= low - 1.01 / (height - 1))
        return (height, width), _grey(torch.where(inside, 90.0, 255.0))


def _is_full(mask: Any) -> bool:
    """Whether a mask hides nothing."""
    try:
        return bool(torch.as_tensor(mask).all())
    except (TypeError, ValueError, RuntimeError):
        return False


def _grey(values: Tensor) -> Tensor:
    return values.round().clamp(0, 255).to(torch.uint8)[..., None].expand(-1, -1, 3).contiguous()


def _is_sound(item: Any) -> bool:
    """Whether this is one sound rather than several."""
    if isinstance(item, (str, os.PathLike, Mapping)):
        return True
    if isinstance(item, (list, tuple)) and item and isinstance(item[0], (int, float)):
        return True
    return hasattr(item, "dtype") and getattr(item, "ndim", 0) == 1


def _waveform(item: Any, where: str) -> tuple[Tensor, int | None, dict[str, Any]]:
    """Samples ``[n]`` float32 from -1 to 1, how many there are in a second, where that is known, and what was done."""
    if isinstance(item, (str, os.PathLike)):
        return _of_file(os.fspath(item), where)
    rate = None
    if isinstance(item, Mapping):
        if "array" not in item:
            raise InputError(f"{where} holds {', '.join(map(repr, item)) or 'nothing'}: {ACCEPTED}")
        rate = item.get("sampling_rate")
        item = item["array"]
    try:
        samples = torch.as_tensor(item, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{where} is {shown(item)}, which is no sound: {ACCEPTED}") from error
    if samples.ndim != 1 or not len(samples) or samples.is_complex() or samples.dtype == torch.bool:
        raise InputError(
            f"{where} is an array of {samples.dtype} {list(samples.shape)}: give one channel, [samples], as "
            "floating-point numbers from -1 to 1 or int16"
        )
    if samples.dtype in (torch.int16, torch.int32):
        samples = samples.double() / (1 << (8 * samples.dtype.itemsize - 1))
    elif not samples.is_floating_point():
        raise InputError(
            f"{where} is an array of {samples.dtype}, whose range is not known: give floating-point numbers from -1 to "
            "1, int16 or int32"
        )
    if not torch.isfinite(samples).all():
        raise InputError(f"{where} holds NaN or infinity: repair it first")
    return samples.float(), None if rate is None else int(rate), {}


def _of_file(path: str, where: str) -> tuple[Tensor, int | None, dict[str, Any]]:
    """A WAV file of whole numbers, its channels averaged."""
    name = path if where == "the input" else f"{where} ({path})"
    if not os.path.exists(path):
        raise InputError(f"{name} does not exist: {ACCEPTED}")
    try:
        with wave.open(path, "rb") as file:
            channels, size, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (wave.Error, EOFError, OSError) as error:
        raise InputError(
            f"{name} cannot be read as a WAV file of whole numbers ({type(error).__name__}: {error}): read it with a "
            "package such as soundfile, and give {'array': samples, 'sampling_rate': rate}"
        ) from error
    whole = len(data) // (channels * size)
    if not whole:
        raise InputError(f"{name} holds no samples")
    octets = torch.frombuffer(bytearray(data[: whole * channels * size]), dtype=torch.uint8)
    octets = octets.view(whole, channels, size).long()
    if size == 1:
        samples = (octets[..., 0].double() - 128) / 128
    else:
        value = sum(octets[..., n] << (8 * n) for n in range(size))
        assert isinstance(value, Tensor)
        samples = torch.where(octets[..., -1] >= 128, value - (1 << (8 * size)), value) / (1 << (8 * size - 1))
    about: dict[str, Any] = {} if channels == 1 else {"channels": f"{channels}, of which the mean is explained"}
    return samples.double().mean(1).float(), rate, about
