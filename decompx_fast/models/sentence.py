"""Sentence encoders and rerankers of sentence-transformers: their objects, recognised by name, and their folders.

The package itself is not needed and never imported: its classes are known by their names, its folders by their files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import InputError, ModelLoadError, UnsupportedModelError, shown, warn_user
from ..linearize.architectures import unwrap
from ..linearize.families import is_bare
from ..linearize.families.towers import PAIRED
from ..linearize.sentence import EmbeddingStep, SentenceEncoder, check_pooling
from ..linearize.towers import TwoTowers
from .pretrained import _check_weights, _first_line, _load_tokenizer, _quiet, _widened

#: What names the modules of a folder, in order.
MODULES = "modules.json"

#: Of a pooling's configuration, by the flags that older versions have, in the order of their joining.
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

#: Modules that mean nothing without their configuration.
_CONFIGURED = ("Pooling", "Dense", "LayerNorm")

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    name: getattr(nn, name) for name in ("Tanh", "ReLU", "GELU", "SiLU", "Identity")
}


def unpacked(model: nn.Module, tokenizer: Any, pooling: Any) -> tuple[nn.Module, Any]:
    """A model that can be explained and its tokenizer, out of what is wrapped round them.

    Args:
        model: a classifier, an encoder without a head, a ``SentenceTransformer``, a ``CrossEncoder``, a ``Pipeline`` of
            transformers, or a model that compares texts and pictures.
        tokenizer: ``None``: that of the wrapper, if there is one.
        pooling: of an encoder without a head; ``None`` for all else.

    Raises:
        InputError: for a pooling that is not one, or where there is none to be said.
        UnsupportedModelError: for a wrapper that does what cannot be described, with its name.
    """
    if any(cls.__module__ == "transformers.pipelines.base" for cls in type(model).__mro__):
        model, tokenizer = _of_pipeline(model, tokenizer)
    inner = unwrap(model) if isinstance(model, nn.Module) else model
    names = {cls.__name__ for cls in type(inner).__mro__}
    if pooling is None and "SentenceTransformer" in names:
        return _of_sentence_transformer(inner), tokenizer or getattr(inner, "tokenizer", None)
    if not names.isdisjoint(PAIRED):
        if pooling is not None:
            raise InputError(f"pooling={pooling!r}: {type(inner).__name__} pools by itself; leave it out")
        return TwoTowers(inner), tokenizer
    if pooling is None and "CrossEncoder" in names:
        return _of_cross_encoder(inner), tokenizer or getattr(inner, "tokenizer", None)
    if pooling is None and isinstance(inner, nn.Module) and is_bare(inner):
        raise UnsupportedModelError(
            f"{type(inner).__name__} has no head, so it gives a state for each token and neither classes nor one "
            "vector: to compare two texts, say how the states are pooled, as the model's card does: DecompX(model, "
            "tokenizer, pooling='mean'), or 'cls', and use similarity(a, b); for classes, labels, answers or masks, "
            "load a model with such a head"
        )
    if pooling is None:
        return model, tokenizer
    if not is_bare(inner):
        raise InputError(
            f"pooling={pooling!r} is for an encoder without a head, and this is a {type(inner).__name__}: leave it out"
        )
    return SentenceEncoder(inner, pooling), tokenizer


def is_sentence_folder(name: str) -> bool:
    """Whether a folder is one that sentence-transformers wrote, of a model that gives one vector for a text."""
    path = Path(name, MODULES)
    return path.is_file() and any("Pooling" in str(entry.get("type")) for entry in _read(path, list))


def load_sentence_encoder(name: str, *, pooling: Any = None, half: bool = False) -> tuple[nn.Module, Any]:
    """A sentence encoder and its tokenizer, from a folder of sentence-transformers or of a plain encoder.

    Args:
        name: the folder.
        pooling: of a plain encoder, whose folder does not say it.
        half: as for :func:`.pretrained.load_pretrained`.

    Raises:
        ModelLoadError: if there is something in the folder that cannot be read.
        UnsupportedModelError: for modules that cannot be described, with their names.
    """
    folder = Path(name)
    entries = _read(folder / MODULES, list) if is_sentence_folder(name) else []
    if entries and pooling is not None:
        raise InputError(f"pooling={pooling!r}: the folder {name!r} says itself how it pools; leave it out")
    place = str(folder / str(entries[0].get("path", ""))) if entries else name
    settings = _settings(Path(place)) if entries else {}
    with _quiet():
        encoder = _widened(_load_encoder(place), half=half)
        tokenizer = _load_tokenizer([place, name])
    if not entries:
        return SentenceEncoder(encoder, pooling).eval(), tokenizer
    if settings.get("do_lower_case"):
        _lower(tokenizer)
    _check_settings(_read(folder / "config_sentence_transformers.json", dict, optional=True))
    tail = _Tail()
    for entry in entries[1:]:
        path = folder / str(entry.get("path", ""))
        kind = str(entry.get("type")).rpartition(".")[2]
        config = _read(path / "config.json", dict, optional=kind not in _CONFIGURED)
        try:
            tail.add(kind, config, path)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, InputError):
                raise
            what = f"{os.fspath(path / 'config.json')!r} does not describe a {kind} module"
            raise ModelLoadError(f"{what}: {type(error).__name__}: {_first_line(error)}") from error
    most = settings.get("max_seq_length") or getattr(tokenizer, "model_max_length", None)
    return tail.finish(encoder, most).to(next(encoder.parameters()).dtype).eval(), tokenizer


class _Tail:
    """What stands behind the encoder: a pooling, steps after it, and perhaps a division by the length."""

    def __init__(self) -> None:
        self.pooling: Any = None
        self.steps: list[EmbeddingStep] = []
        self.normalized = False

    def add(self, kind: str, config: Mapping[str, Any], source: nn.Module | Path) -> None:
        """The next module, by the name of its class, its configuration, and where its weights are."""
        if kind == "Dropout":
            return
        if self.normalized:
            raise _unsupported(f"a module {kind} after the normalisation")
        if kind == "Pooling" and self.pooling is None:
            self.pooling = _pooling(config)
        elif self.pooling is None:
            raise _unsupported(f"a module {kind} before the pooling")
        elif kind == "Normalize":
            _check_names(kind, config)
            self.normalized = True
        elif kind == "Dense":
            _check_names(kind, config)
            if config.get("use_residual"):
                raise _unsupported("a Dense module with a residual (use_residual)")
            self.steps.append(_dense(config, source))
        elif kind == "LayerNorm":
            norm: Any = nn.LayerNorm(int(config["dimension"])) if isinstance(source, Path) else source.norm
            self.steps.append(_filled(EmbeddingStep(norm=norm), source))
        else:
            raise _unsupported(f"a module {kind}")

    def finish(self, encoder: nn.Module, max_tokens: Any) -> SentenceEncoder:
        """The whole; tokenizers that know no limit name a huge number."""
        most = max_tokens if isinstance(max_tokens, int) and 0 < max_tokens < 1 << 30 else None
        return SentenceEncoder(encoder, self.pooling, steps=self.steps, normalized=self.normalized, max_tokens=most)


def _of_pipeline(pipeline: Any, tokenizer: Any) -> tuple[nn.Module, Any]:
    """The model of a pipeline, and what prepares its inputs."""
    readers = (getattr(pipeline, name, None) for name in ("tokenizer", "image_processor", "feature_extractor"))
    return pipeline.model, tokenizer or next((one for one in readers if one is not None), None)


def _of_sentence_transformer(model: Any) -> SentenceEncoder:
    first, *rest = model.children()
    if type(first).__name__ != "Transformer":
        raise _unsupported(f"a first module {type(first).__name__} instead of a Transformer")
    names = ("default_prompt_name", "prompts", "truncate_dim")
    _check_settings({name: getattr(model, name, None) for name in names})
    tail = _Tail()
    for module in rest:
        tail.add(type(module).__name__, vars(module), module)
    encoder = getattr(first, "auto_model", None) or first.model
    if not is_bare(unwrap(encoder)):
        raise _unsupported(f"an encoder {type(unwrap(encoder)).__name__}")
    if tail.pooling is None:
        raise _unsupported("no pooling")
    return tail.finish(encoder, getattr(model, "max_seq_length", None))


def _of_cross_encoder(model: Any) -> nn.Module:
    """The classifier of pairs inside; what is applied to its logits, a sigmoid say, is no part of it."""
    found = getattr(model, "model", None)
    if found is None:
        first, *rest = model.children()
        if rest:
            raise _unsupported(f"a module {type(rest[0]).__name__}")
        found = getattr(first, "auto_model", None) or first.model
    return found


def _pooling(config: Mapping[str, Any]) -> Any:
    """The pooling of a configuration, new or old."""
    found = config.get("pooling_mode")
    if found is None:
        flags = [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)]
        found = flags[0] if len(flags) == 1 else flags or "mean"
    found = found[0] if isinstance(found, (list, tuple)) and len(found) == 1 else found
    try:
        check_pooling(found)
    except InputError as error:
        raise _unsupported(str(error).partition(": use")[0]) from error
    return found


def _dense(config: Mapping[str, Any], source: nn.Module | Path) -> EmbeddingStep:
    """A linear map with its activation."""
    if isinstance(source, nn.Module):
        linear: Any = source.linear
        activation: Any = getattr(source, "activation_function", None)
        return EmbeddingStep(linear=linear, activation=None if isinstance(activation, nn.Identity) else activation)
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    kind = str(name).rpartition(".")[2]
    if kind not in _ACTIVATIONS:
        raise _unsupported(f"a Dense module with the activation {name}")
    activation = None if kind == "Identity" else _ACTIVATIONS[kind]()
    linear = nn.Linear(int(config["in_features"]), int(config["out_features"]), bias=bool(config.get("bias", True)))
    return _filled(EmbeddingStep(linear=linear, activation=activation), source)


def _filled(step: EmbeddingStep, source: nn.Module | Path) -> EmbeddingStep:
    """The step with the weights of a folder."""
    if isinstance(source, nn.Module):
        return step
    file = source / "model.safetensors"
    try:
        if file.is_file():
            from safetensors.torch import load_file

            state = load_file(file)
        else:
            state = torch.load(source / "pytorch_model.bin", map_location="cpu", weights_only=True)
        step.load_state_dict(state)
    except Exception as error:
        raise ModelLoadError(f"the weights in {os.fspath(source)!r} cannot be read: {_first_line(error)}") from error
    return step


def _load_encoder(place: str) -> nn.Module:
    """An encoder without a head of a supported architecture, all its weights trained but perhaps a pooler's; of a T5
    the encoder alone, as sentence-transformers loads it."""
    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding

    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
        loader = AutoModelForTextEncoding if hasattr(config, "num_decoder_layers") else AutoModel
        model, info = loader.from_pretrained(
            place, dtype="auto", output_loading_info=True, ignore_mismatched_sizes=True, trust_remote_code=False
        )
    except Exception as error:
        raise ModelLoadError(f"no encoder could be loaded from {place!r}: {_first_line(error)}") from error
    if not is_bare(model):
        raise _unsupported(f"an encoder {type(model).__name__}")
    missing = [key for key in info["missing_keys"] if not key.startswith("pooler.")]  # which is not read
    _check_weights(place, {"missing_keys": missing, "mismatched_keys": info["mismatched_keys"]}, model, None)
    return model


def _settings(folder: Path) -> Mapping[str, Any]:
    """How the first module reads texts: the names of its file differ by the kind of model."""
    names = [f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "distilbert", "camembert", "albert")]
    names += ["sentence_xlm-roberta_config.json", "sentence_xlnet_config.json"]
    return next((_read(folder / name, dict) for name in names if (folder / name).is_file()), {})


def _check_settings(settings: Mapping[str, Any]) -> None:
    """What a model does with every text or vector besides."""
    if settings.get("truncate_dim") is not None:
        raise _unsupported(f"vectors that are cut (truncate_dim={settings['truncate_dim']})")
    name = settings.get("default_prompt_name")
    prompts = settings.get("prompts")
    prompt = prompts.get(name) if name and isinstance(prompts, Mapping) else None
    if prompt:
        warn_user(f"this model puts the prompt {prompt!r} before every text, and it is not added here: write it there")


def _lower(tokenizer: Any) -> None:
    """As sentence-transformers does where its configuration says so; twice does no harm."""
    from tokenizers.normalizers import Lowercase, Sequence

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelLoadError("do_lower_case needs a fast tokenizer: save the model with one")
    backend.normalizer = Sequence([Lowercase(), *([backend.normalizer] if backend.normalizer else [])])


def _check_names(kind: str, config: Mapping[str, Any]) -> None:
    """Refuse a module that is applied to something else than the pooled vector."""
    for name in ("module_input_name", "module_output_name"):
        if config.get(name, "sentence_embedding") not in ("sentence_embedding", None):
            raise _unsupported(f"a module {kind} on {config[name]}")


def _unsupported(what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"this sentence-transformers model has {what}: it cannot be explained exactly. Supported are a Transformer, a "
        "Pooling (cls, mean, lasttoken), Dense and LayerNorm modules, and Normalize at the end"
    )


def _read(path: Path, kind: type, *, optional: bool = False) -> Any:
    """JSON of a list or a mapping; an empty one where there may be none."""
    if optional and not path.is_file():
        return kind()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{os.fspath(path)!r} cannot be read: {_first_line(error)}") from error
    entries: Iterable[Any] = found if isinstance(found, list) else []
    if not isinstance(found, kind) or any(not isinstance(entry, Mapping) for entry in entries):
        raise ModelLoadError(f"{os.fspath(path)!r} holds {shown(found)}, where a {kind.__name__} was expected")
    return found
