"""A language model writes: the likeliest token each time, or as a configuration of transformers says."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import OptionError, shown
from ..linearize.copies import Copies
from ..linearize.model_run import plain_mode, undisturbed

if TYPE_CHECKING:
    from transformers import GenerationConfig

#: Which tokens are what, is the model's own to say where the user's configuration does not.
_OWN = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id")

#: Which tokens the model never writes. Of a number of tokens nothing else that its configuration says is obeyed.
_NEVER = ("bad_words_ids", "suppress_tokens", "begin_suppress_tokens")


def greedy_or_given(model: nn.Module, asked: Any) -> GenerationConfig:
    """How the model writes; where it ends is the model's own, unless the user's configuration says it.

    Args:
        model: a language model of transformers.
        asked: how many tokens at most, written greedily, or a ``GenerationConfig``.

    Raises:
        OptionError: for anything else, for several outputs, and for a model that cannot write.
    """
    from transformers import GenerationConfig

    own = getattr(model, "generation_config", None)
    if own is None or not hasattr(model, "generate"):
        raise OptionError(
            f"generate={shown(asked)}, and a {type(model).__name__} has no generate(): give continuation= instead"
        )
    if isinstance(asked, GenerationConfig):
        config = GenerationConfig.from_dict(asked.to_dict())
    elif isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise OptionError(f"generate={shown(asked)}: use a whole number from 1, or a GenerationConfig")
    else:
        config = GenerationConfig(max_new_tokens=asked, do_sample=False, num_beams=1)
        for name in _NEVER:
            setattr(config, name, getattr(own, name, None))
    several = config.num_return_sequences or 1
    if several != 1:
        raise OptionError(f"generate returns {several} outputs (num_return_sequences), and one can be explained")
    for name in _OWN:
        if getattr(config, name, None) is None:
            setattr(config, name, getattr(own, name, None))
    end = config.eos_token_id
    if config.pad_token_id is None:
        config.pad_token_id = end[0] if isinstance(end, (list, tuple)) else end
    config.return_dict_in_generate = False
    read, written = (getattr(model.config, name, None) for name in ("num_hidden_layers", "num_decoder_layers"))
    if written is not None and written != read:
        config.use_cache = False  # transformers makes T5's as long as its encoder
    return config


def decoder_start(model: nn.Module, asked: Any = None) -> list[int]:
    """The ids that a decoder beside an encoder starts with, which the model does not choose: the one that starts every
    output, and one that is forced to follow it, such as the code of a language.

    Args:
        model: of transformers.
        asked: as for :func:`greedy_or_given`; ``None``: as the model is configured.

    Raises:
        OptionError: if its configuration names none, or several.
    """
    places = (None if isinstance(asked, int) else asked, getattr(model, "generation_config", None), model.config)

    def find(name: str) -> int | None:
        found = next((one for place in places if (one := getattr(place, name, None)) is not None), None)
        if isinstance(found, (list, tuple)):  # one for each text of a batch, which has one
            if len(found) != 1:
                raise OptionError(f"{name} is {shown(found)}, and each output is begun by itself: name one token")
            return int(found[0])
        return found

    start, forced = find("decoder_start_token_id"), find("forced_bos_token_id")
    start = find("bos_token_id") if start is None else start
    if start is None:
        raise OptionError(
            f"the configuration of this {type(model).__name__} does not say what its decoder starts with: set "
            "model.generation_config.decoder_start_token_id"
        )
    return [start] if forced is None else [start, forced]


@dataclass(frozen=True)
class Written:
    """What a model wrote.

    Attributes:
        ids: of the tokens.
        about: how they were written, as plain JSON, with the seed if any was used.
        is_cut: whether it would have gone on, and had no more positions.
    """

    ids: list[int]
    about: Mapping[str, Any]
    is_cut: bool


def write(
    model: nn.Module,
    copies: Copies,
    prompt: Mapping[str, Tensor],
    asked: Any,
    seed: int | None,
    positions: int | None = None,
) -> Written:
    """What a model writes; the model and the caller's random numbers are left as they were.

    Args:
        model: of transformers.
        copies: of it.
        prompt: ``input_ids`` ``[i]`` and what else the model reads of each token, where the model is; of an
            encoder-decoder what its encoder reads.
        asked: as for :func:`greedy_or_given`; a token that is forced is not counted.
        seed: of what is drawn; ``None`` draws one too.
        positions: how many tokens the model has positions for: the last that is written is not read.

    Raises:
        OptionError: for what transformers does not take, and for a seed where nothing is drawn.
    """
    from transformers import GenerationConfig

    rows = {name: values[None] for name, values in prompt.items()}  # [1, i]
    ids = rows.pop("input_ids")
    config, device = greedy_or_given(model, asked), ids.device
    about: dict[str, Any] = {"generate": asked if isinstance(asked, int) else _plain(config)}
    if seed is not None and not config.do_sample:
        raise OptionError(
            f"seed={seed}, and generate={shown(asked)} draws nothing: leave it out, or give a GenerationConfig with "
            "do_sample=True"
        )
    anew = model.config.is_encoder_decoder  # type: ignore[union-attr]
    start = decoder_start(model, asked) if anew else []
    given = 1 if anew else ids.shape[1]
    if isinstance(asked, int):
        config.max_new_tokens = asked + max(len(start) - 1, 0)
    longest = config.max_length if config.max_new_tokens is None else given + config.max_new_tokens
    most = None if positions is None else positions + 1
    if config.do_sample:
        about["seed"] = secrets.randbits(31) if seed is None else seed
    with plain_mode(device), _drawing(about.get("seed"), device):
        with undisturbed(model, copies) as copied:
            copy: Any = copied
            # transformers fills in from here what a configuration does not say: nothing, for a number of tokens.
            copy.generation_config = GenerationConfig() if isinstance(asked, int) else model.generation_config
            try:
                found: Tensor = copy.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    **rows,
                    generation_config=config,
                    stopping_criteria=None if most is None else [partial(_is_full, most=most)],
                )
            except ValueError as error:
                raise OptionError(f"generate={shown(asked)} is not what transformers takes: {error}") from error
            finally:
                copy.generation_config = model.generation_config
    whole = found[0].tolist()
    end = config.eos_token_id if isinstance(config.eos_token_id, (list, tuple)) else [config.eos_token_id]
    wanted_more = longest is None or len(whole) < longest
    is_cut = most is not None and len(whole) >= most and wanted_more and whole[-1] not in end
    return Written(whole[len(start) if anew else given :], about, is_cut)


_one_draws = threading.Lock()


@contextmanager
def _drawing(seed: int | None, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed, and the caller's after it; they are one sequence for all threads, so one draws at a
    time. Without a seed nothing is drawn, and nothing touched."""
    if seed is None:
        yield
        return
    with _one_draws, torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _is_full(ids: Tensor, _scores: Any, *, most: int) -> Tensor:
    """Whether each row of ``[b, i]`` has ``most`` tokens."""
    return torch.full((len(ids),), ids.shape[1] >= most, device=ids.device)


def _plain(config: GenerationConfig) -> dict[str, Any]:
    """What differs from transformers' defaults and is plain JSON."""
    kinds = (str, int, float, bool, type(None))
    return {
        name: value
        for name, value in config.to_diff_dict().items()
        if isinstance(value, kinds) or (isinstance(value, list) and all(isinstance(one, kinds) for one in value))
    }
