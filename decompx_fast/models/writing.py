"""A language model writes: the likeliest token each time, or as a configuration of transformers says."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
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
        OptionError: if its configuration names none.
    """
    places = (None if isinstance(asked, int) else asked, getattr(model, "generation_config", None), model.config)

    def find(name: str) -> int | None:
        found = (getattr(place, name, None) for place in places)
        return next((one for one in found if isinstance(one, int)), None)

    start, forced = find("decoder_start_token_id"), find("forced_bos_token_id")
    start = find("bos_token_id") if start is None else start
    if start is None:
        raise OptionError(
            f"the configuration of this {type(model).__name__} does not say what its decoder starts with: set "
            "model.generation_config.decoder_start_token_id"
        )
    return [start] if forced is None else [start, forced]


def write(
    model: nn.Module, copies: Copies, prompt: Tensor, asked: Any, seed: int | None, room: int | None = None
) -> tuple[list[int], Mapping[str, Any]]:
    """What a model writes; the model and the caller's random numbers are left as they were.

    Args:
        model: of transformers.
        copies: of it.
        prompt: ``[i]`` token ids, where the model is; of an encoder-decoder what its encoder reads.
        asked: as for :func:`greedy_or_given`.
        seed: of what is drawn; ``None`` draws one too.
        room: how many tokens the model has positions for. Of a number of tokens that is larger, one more is written.

    Returns:
        ``(ids, about)``: of the tokens written, and how they were, as plain JSON, with the seed if any was used.

    Raises:
        OptionError: for what transformers does not take, and for a seed where nothing is drawn.
    """
    config, device = greedy_or_given(model, asked), prompt.device
    about: dict[str, Any] = {"generate": asked if isinstance(asked, int) else _plain(config)}
    if seed is not None and not config.do_sample:
        raise OptionError(
            f"seed={seed}, and generate={shown(asked)} draws nothing: leave it out, or give a GenerationConfig with "
            "do_sample=True"
        )
    if room is not None and config.max_new_tokens is not None:
        config.max_new_tokens = min(config.max_new_tokens, room + 1)
    ids = prompt[None]
    with plain_mode(device), torch.random.fork_rng([device] if device.type == "cuda" else []):
        if config.do_sample:
            about["seed"] = secrets.randbits(31) if seed is None else seed
            torch.manual_seed(about["seed"])
        with undisturbed(model, copies) as copy:
            try:
                found: Tensor = copy.generate(  # type: ignore[operator]
                    ids, attention_mask=torch.ones_like(ids), generation_config=config
                )
            except ValueError as error:
                raise OptionError(f"generate={shown(asked)} is not what transformers takes: {error}") from error
    anew = model.config.is_encoder_decoder  # type: ignore[union-attr]
    before = len(decoder_start(model, asked)) if anew else len(prompt)
    return found[0, before:].tolist(), about


def _plain(config: GenerationConfig) -> dict[str, Any]:
    """What differs from transformers' defaults and is plain JSON."""
    kinds = (str, int, float, bool, type(None))
    return {
        name: value
        for name, value in config.to_diff_dict().items()
        if isinstance(value, kinds) or (isinstance(value, list) and all(isinstance(one, kinds) for one in value))
    }
