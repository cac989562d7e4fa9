"""Loading a model and its tokenizer with transformers, quietly, with one clear error for each that can fail."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import InputError, ModelLoadError, UnsupportedModelError, warn_user
from ..linearize.architectures import find_family, refuse_prompts
from ..linearize.families import TWO_HEADED
from ..linearize.families.towers import PAIRED
from ..optional import import_optional
from .tasks import DEFAULT, KINDS, PICTURES, SOUNDS, TWO_HEADS, task_of_architectures, task_of_model

#: What peft writes in place of config.json.
ADAPTER_CONFIG = "adapter_config.json"


#: The tasks that peft has names for.
_ADAPTED = {"TOKEN_CLS": "token-classification", "QUESTION_ANS": "question-answering"}


def load_pretrained(
    path_or_id: str | os.PathLike[str], *, half: bool = False, pooling: str | None = None, task: str | None = None
) -> tuple[nn.Module, Any]:
    """A model with a head, or a sentence encoder, and its tokenizer, from a folder or by the id of a model hub.

    Args:
        path_or_id: a folder that ``save_pretrained`` wrote, of a model or of an adapter (peft), or that
            sentence-transformers wrote; or a hub id.
        half: keep weights that are stored in float16 or bfloat16 so, instead of widening them to float32.
        pooling: of an encoder without a head, whose folder does not say how its states make one vector.
        task: a key of :data:`.tasks.KINDS`, which head the model shall have; one that was not saved is random, with a
            warning. ``None``: what the model was saved with, whole.

    Returns:
        ``(model, tokenizer)``; the model in eval mode.

    Raises:
        ModelLoadError: if there is no such model, if it has no classifier or no tokenizer, or cannot be read.
        MissingPackageError: for an adapter, if peft is not installed.
        UnsupportedModelError: if its architecture is not supported.
    """
    if not isinstance(path_or_id, (str, os.PathLike)):
        kind = type(path_or_id).__name__
        raise ModelLoadError(f"a model is loaded by the path of its folder, or by its id, not from a {kind}")
    name = os.fsdecode(path_or_id)
    from .sentence import is_sentence_folder, load_sentence_encoder

    if task is not None and pooling is not None:
        raise InputError(f"task={task!r} has a head, and pooling={pooling!r} is for models without: leave one out")
    if task is None and is_sentence_folder(name):
        return load_sentence_encoder(name, pooling=pooling, half=half)
    _check_place(name)
    if pooling is not None:
        return load_sentence_encoder(name, pooling=pooling, half=half)
    with _quiet():
        if (Path(name) / ADAPTER_CONFIG).is_file():
            model, base = _load_adapted(name, task, half=half)
            places = [name, base]
        elif task is None and (paired := _saved_class(name)) in PAIRED:
            return _load_paired(name, paired, half=half)
        else:
            model, info = _load_model(name, task)
            _check_weights(name, info, model, task)
            model, places = _widened(model, half=half), [name]
        task = task_of_model(model)
        tokenizer = _load_processor(places, task) if task in _PROCESSORS else _load_tokenizer(places)
    return model.eval(), tokenizer


def _load_model(name: str, task: str | None, **options: Any) -> tuple[nn.Module, Mapping[str, Any]]:
    """A model of a supported architecture, with the head of ``task``, and which of its weights were not loaded."""
    import transformers

    kind, errors = KINDS[task or _saved_task(name)], []
    for loader in (kind.loader, *kind.also):
        try:
            # Weights of a wrong shape are let through here, to be named by the caller.
            model, info = getattr(transformers, loader).from_pretrained(
                name,
                dtype="auto",
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                trust_remote_code=False,
                **options,
            )
            break
        except Exception as error:
            errors.append(error)
    else:
        place = "" if Path(name).is_dir() else "there is no folder of that name, and as the id of a model: "
        what = "classifier" if kind is KINDS[DEFAULT] else f"model for {kind.trained_for}"
        raise ModelLoadError(f"no {what} could be loaded from {name!r}: {place}{_first_line(errors[0])}") from errors[0]
    find_family(model)
    if task is not None and task_of_model(model) != task:
        raise ModelLoadError(
            f"transformers loads {name!r} as a {type(model).__name__}, which is no model for {kind.trained_for}: name "
            "a task that it has a head for"
        )
    return model, info


def _load_paired(name: str, kind: str, *, half: bool) -> tuple[nn.Module, Any]:
    """A model that compares texts and pictures, of a class of transformers, and its processor of both."""
    import transformers

    try:
        model, info = getattr(transformers, kind).from_pretrained(
            name, dtype="auto", output_loading_info=True, ignore_mismatched_sizes=True
        )
    except Exception as error:
        raise ModelLoadError(f"no {kind} could be loaded from {name!r}: {_first_line(error)}") from error
    _check_weights(name, info, model, None)
    try:
        processor = transformers.AutoProcessor.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        raise ModelLoadError(
            f"the model {name!r} was loaded, but not its processor ({_first_line(error)}): save it in the same folder "
            "(it may need the package pillow), or load both yourself and use DecompX(model, processor)"
        ) from error
    return _widened(model, half=half).eval(), processor


def _saved_class(name: str) -> str | None:
    """The class of a saved model, as its configuration says; what is wrong with that is said where it is loaded."""
    return next(iter(_saved_classes(name)), None)


def _saved_task(name: str) -> str:
    """The task of a saved model, likewise.

    Raises:
        ModelLoadError: if it has two heads.
    """
    architectures = _saved_classes(name)
    if any(one in TWO_HEADED for one in architectures):
        raise ModelLoadError(
            f"{name!r} was saved with two heads: say which, by task={TWO_HEADS[0]!r} or task={TWO_HEADS[1]!r}"
        )
    return task_of_architectures(architectures)


def _saved_classes(name: str) -> Sequence[str]:
    from transformers import PretrainedConfig

    try:
        return PretrainedConfig.get_config_dict(name)[0].get("architectures") or ()
    except Exception:
        return ()


def _widened(model: nn.Module, *, half: bool) -> nn.Module:
    narrow = next(model.parameters()).dtype in (torch.float16, torch.bfloat16)
    return model.float() if narrow and not half else model


#: What prepares the inputs of a task that reads no texts: the class of transformers that loads it, and its name.
_PROCESSORS = {
    PICTURES: (
        "AutoImageProcessor",
        "image processor",
        "save it in the same folder (it may need the package pillow, and with earlier versions of transformers "
        "torchvision)",
    ),
    SOUNDS: ("AutoFeatureExtractor", "feature extractor", "save it in the same folder"),
}


def _load_processor(places: Sequence[str], task: str) -> Any:
    """What prepares pictures or sounds, from the first of these places that has it."""
    import transformers

    loader, what, way = _PROCESSORS[task]
    errors = []
    for place in places:
        try:
            return getattr(transformers, loader).from_pretrained(place, trust_remote_code=False)
        except Exception as error:
            errors.append(error)
    raise ModelLoadError(
        f"the model {places[0]!r} was loaded, but not its {what} ({_first_line(errors[0])}): {way}, or load both "
        "yourself and use DecompX(model, processor)"
    ) from errors[0]


def _load_tokenizer(places: Sequence[str]) -> Any:
    """From the first of these places that has one."""
    from transformers import AutoTokenizer

    errors = []
    for place in places:
        try:
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
            _check_vocabulary(tokenizer)
            return tokenizer
        except Exception as error:
            errors.append(error)
    raise ModelLoadError(
        f"the model {places[0]!r} was loaded, but not its tokenizer ({_first_line(errors[0])}): save the tokenizer in "
        "the same folder, or load both yourself and use DecompX(model, tokenizer)"
    ) from errors[0]


def _load_adapted(name: str, task: str | None, *, half: bool) -> tuple[nn.Module, str]:
    """An adapter's folder: its base model with the adapter merged into the weights.

    Returns:
        ``(model, base)``: and where the base model, perhaps with the tokenizer, was found.

    Raises:
        MissingPackageError: if peft is not installed.
        ModelLoadError: if the base model, or the adapter, cannot be loaded.
    """
    peft = import_optional("peft", f"loading the adapter in {name!r}")
    try:
        adapter = peft.PeftConfig.from_pretrained(name)
        base_name = adapter.base_model_name_or_path
        weights = peft.utils.load_peft_weights(name, device="cpu")
    except Exception as error:
        raise ModelLoadError(f"the adapter in {name!r} cannot be read: {_first_line(error)}") from error
    if not base_name:
        raise ModelLoadError(
            f"{ADAPTER_CONFIG} in {name!r} does not name its base model: load both yourself with peft, and use "
            "DecompX(model, tokenizer)"
        )
    if Path(name, base_name).is_dir():
        base_name = str(Path(name, base_name))
    wanted = task or _ADAPTED.get(getattr(adapter.task_type, "value", adapter.task_type), DEFAULT)
    saved = {key.removeprefix("base_model.model."): tensor for key, tensor in weights.items()}
    # The head belongs to the adapter, and its number of classes is noted nowhere else.
    heads = [len(saved[key]) for key in ("classifier.weight", "classifier.out_proj.weight") if key in saved]
    try:
        model, info = _load_model(base_name, wanted, **({"num_labels": heads[0]} if heads else {}))
    except ModelLoadError as error:
        raise ModelLoadError(f"the adapter in {name!r} needs its base model, and {error}") from error
    own = set(saved)
    mismatched = [entry for entry in info["mismatched_keys"] if entry[0] not in own]
    missing = set(info["missing_keys"]) - own
    _check_weights(base_name, {"missing_keys": missing, "mismatched_keys": mismatched}, model, task)
    try:
        adapted = peft.PeftModel.from_pretrained(_widened(model, half=half), name)
        refuse_prompts(adapted)
        return adapted.merge_and_unload(safe_merge=True), base_name
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise ModelLoadError(f"the adapter in {name!r} cannot be loaded: {_first_line(error)}") from error


def _check_place(name: str) -> None:
    path = Path(name)
    if not name:
        raise ModelLoadError("the model's path is empty: give a folder, or the id of a model")
    if path.is_file():
        raise ModelLoadError(f"{name!r} is a file: give the folder that holds config.json and the weights")
    if path.is_dir():
        if not any((path / config).is_file() for config in ("config.json", ADAPTER_CONFIG)):
            raise ModelLoadError(f"the folder {name!r} has no config.json: give one that save_pretrained wrote")
    elif path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelLoadError(f"there is no folder {name!r}: check the path")


def _check_weights(name: str, info: Mapping[str, Collection[Any]], model: nn.Module, task: str | None) -> None:
    """Refuse a model some of whose weights were not loaded, and are random; warn of a head that was asked for so."""
    wrong = sorted(info["mismatched_keys"])
    if wrong:
        key, found, expected = wrong[0]
        raise ModelLoadError(
            f"the weights of {name!r} do not fit its config.json: {key} is {list(found)}, and the configuration "
            f"expects {list(expected)}"
        )
    missing = sorted(info["missing_keys"])
    if not missing:
        return
    listed = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    of_encoder = [key for key in missing if key.startswith(prefix) and ".pooler." not in key]
    if task is not None and not of_encoder:
        warn_user(
            f"the head of {name!r} for {KINDS[task].trained_for} was not trained: {listed} are not among its weights "
            "and are random, so its answers mean nothing before it is trained",
        )
        return
    kind = task_of_model(model) or DEFAULT
    what = "classifier" if kind == DEFAULT else f"model for {KINDS[kind].trained_for}"
    raise ModelLoadError(
        f"{name!r} is no trained {what}: it has no weights for {listed}, which would be random. Use a model fine-tuned "
        f"for {KINDS[kind].trained_for}, or a task that it was trained for by task=; to compare texts by an encoder "
        "without a head (similarity), say how its states are pooled, as by pooling='mean' (--pooling mean)"
    )


def _check_vocabulary(tokenizer: Any) -> None:
    """Refuse a tokenizer without a word: transformers makes one up where the files are missing."""
    special = set(tokenizer.all_special_tokens)
    if all(token in special for token in tokenizer.get_vocab()):
        raise ModelLoadError("its vocabulary is missing")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no warnings from transformers; its settings restored afterwards."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
