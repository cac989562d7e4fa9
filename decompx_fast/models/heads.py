"""Models of two heads, of which one is explained: which class has that head alone, on the same modules."""

from __future__ import annotations

import torch
from torch import nn

from ..errors import OptionError, UnsupportedModelError
from ..linearize.architectures import unwrap
from .tasks import KINDS, TWO_HEADS, task_of_model, two_heads_of


def one_head(model: nn.Module, task: str | None) -> nn.Module:
    """A model that does one task: the same one, or of a model of two heads one that shares all modules of that head.

    Args:
        model: as the user loaded it; it is left as it is.
        task: a key of :data:`.tasks.KINDS`; ``None``: that of its only head.

    Raises:
        OptionError: for a model of two heads where none is named, or one whose head is for another task.
        UnsupportedModelError: if this version of transformers has no class of that head alone.
    """
    inner = unwrap(model)
    name = two_heads_of(inner)
    if name is None:
        own = task_of_model(inner)
        if task is not None and task != own:
            head = "has no head" if own is None else f"has a head for {own}"
            raise OptionError(
                f"task={task!r}, and this {type(inner).__name__} {head}: leave it out, or load a model with such a head"
            )
        return model
    if task not in TWO_HEADS:
        given = "task= is not given" if task is None else f"task={task!r} is none of them"
        raise OptionError(
            f"{type(inner).__name__} has two heads, and {given}: say which, DecompX(model, tokenizer, "
            f"task={TWO_HEADS[0]!r}) or task={TWO_HEADS[1]!r}"
        )
    return model if task == task_of_model(inner) else _sharing(inner, name, task)


def _sharing(model: nn.Module, name: str, task: str) -> nn.Module:
    """A model of the same architecture with the head of ``task`` alone, made of the modules of this one."""
    import transformers

    wanted = name.replace("ForPreTraining", KINDS[task].endings[0])
    cls = getattr(transformers, wanted, None)
    if cls is None:
        raise UnsupportedModelError(f"transformers has no {wanted}, which the head for {task} would be explained as")
    with torch.device("meta"):
        found: nn.Module = cls(model.config)
    _share(found, model)
    missing = [path for path, parameter in found.named_parameters() if parameter.is_meta]
    if missing:
        raise UnsupportedModelError(f"this {type(model).__name__} has not the parts of a {wanted}: {missing[0]}")
    own = set(model.modules())
    for module in found.modules():
        if module not in own:
            module.training = model.training
    return found


def _share(target: nn.Module, source: nn.Module) -> None:
    """Put modules of the same kind and place in the place of those of ``target``."""
    for name, child in list(target.named_children()):
        own = getattr(source, name, None)
        if type(own) is type(child):
            setattr(target, name, own)
        elif isinstance(own, nn.Module):
            _share(child, own)
