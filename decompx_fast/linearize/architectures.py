"""Which architectures are supported: from a model to the function of its family that describes it."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ..errors import UnsupportedModelError
from .families import FAMILIES
from .families.sentence import SENTENCE_ENCODERS
from .families.towers import TOWERS
from .families.unsupported import UNSUPPORTED
from .spec import ModelSpec


def supported_architectures() -> list[str]:
    """The class names that can be explained."""
    return sorted(FAMILIES)


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside ``torch.compile``, data parallel and low-rank-adapter wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(inner, nn.Module):
            model = inner
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif callable(base := getattr(model, "get_base_model", None)):
            refuse_prompts(model)
            model = base()
        else:
            return model


def refuse_prompts(model: nn.Module) -> None:
    """Learned prompts are outside the base model: it would be explained without them."""
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise UnsupportedModelError(
            "this model is adapted by learned prompts, which are no tokens of the text: only adapters that change "
            "weights, such as LoRA, can be explained"
        )


def find_family(model: nn.Module) -> Callable[[nn.Module], ModelSpec]:
    """The function that describes this architecture.

    Raises:
        UnsupportedModelError: says why it is not, where that is known, and lists what is supported.
    """
    for cls in type(model).__mro__:
        for register in (FAMILIES, SENTENCE_ENCODERS, TOWERS):
            if cls.__name__ in register:
                return register[cls.__name__]
    supported = f"supported are {', '.join(_of_the_same_kind(type(model).__name__))}"
    for cls in type(model).__mro__:
        if cls.__name__ in UNSUPPORTED:
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be explained exactly: {UNSUPPORTED[cls.__name__]}; {supported}"
            )
    raise UnsupportedModelError(f"{type(model).__name__} cannot be explained yet: {supported}")


def _of_the_same_kind(name: str) -> list[str]:
    """The supported classes with the head of the one that is named so; all of them if there are none."""
    _, found, head = name.rpartition("For")
    alike = [one for one in supported_architectures() if found and one.endswith(f"For{head}")]
    return alike or supported_architectures()


def describe(model: nn.Module) -> ModelSpec:
    """The model's parts as data: views on its weights, read anew at each call, so that nothing goes stale.

    Args:
        model: an unwrapped model in eval mode.

    Raises:
        UnsupportedModelError: if the architecture or one of its modules is not supported.
    """
    family = find_family(model)
    try:
        spec = family(model)
    except AttributeError as error:
        raise UnsupportedModelError(
            f"this {type(model).__name__} has not the parts of its architecture ({error}): it cannot be explained "
            "exactly"
        ) from error
    if not spec.layers:
        raise UnsupportedModelError(f"this {type(model).__name__} has no layers: there is nothing to decompose")
    return spec
