"""What is explained: the logit of a class as a function of token ids or word embeddings. The model stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from ...errors import InputError, UnsupportedModelError
from ...linearize.architectures import unwrap
from ...linearize.linearization import TOLERANCE, only_device
from ...linearize.model_run import undisturbed
from ...request.encoded import Encoded

#: A forward pass may hold this many tokens: enough to keep a CPU busy, few enough that its graph fits in memory.
TOKENS_PER_FORWARD = 2048

#: From a model's inputs by name to its logits ``[b, c]``.
Forward = Callable[..., Tensor]


@contextmanager
def plain_autograd(device: torch.device, *, grad: bool) -> Iterator[None]:
    """Autograd on or off as asked, no inference mode, no autocast, tensors made on the CPU, whatever the caller has."""
    available = torch.amp.is_autocast_available(device.type)
    autocast = torch.autocast(device.type, enabled=False) if available else nullcontext()
    with torch.inference_mode(False), torch.set_grad_enabled(grad), autocast, torch.device("cpu"):
        yield


@contextmanager
def evaluation_mode(model: nn.Module, *, grad: bool) -> Iterator[Forward]:
    """The model's forward pass in eval mode, for as long as the context lasts; the model is left as it was.

    Gradients are taken by ``torch.autograd.grad`` of inputs, which writes to no parameter's ``grad``. Parameters made
    in inference mode cannot take part in that, so copies stand in for them.

    Args:
        model: a sequence classifier, perhaps wrapped or compiled.
        grad: whether a graph is recorded.

    Yields:
        A function from inputs by name, on the model's device, to the logits ``[b, c]``.
    """
    model = unwrap(model)
    # Where a configuration asks for these, transformers would leave hooks of its own on the model.
    unwanted = {"output_attentions": False, "output_hidden_states": False}
    with plain_autograd(only_device(model), grad=grad), undisturbed(model) as model:
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items() if tensor.is_inference()}

        def forward(**inputs: Tensor) -> Tensor:
            options = {**inputs, **unwanted, "return_dict": True}
            if copies and grad:
                return torch.func.functional_call(model, copies, (), options).logits
            return model(**options).logits

        yield forward


def on_device(encoded: Encoded, device: torch.device) -> dict[str, Tensor]:
    """The inputs of one text as a batch of one, ``[1, i]`` each."""
    return {name: value[None].to(device) for name, value in encoded.inputs.items()}


def repeated(inputs: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """The inputs of one text ``[1, i]`` as those of a batch ``[b, i]``, without a copy."""
    return {name: value.expand(count, -1) for name, value in inputs.items()}


def word_embeddings(model: nn.Module, forward: Forward, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Forward]:
    """The output of the word embeddings, and the logits as a function of it.

    What the embedding block does after it (positions and segments added, the LayerNorm) is part of that function: the
    model is given ``inputs_embeds`` in place of ``input_ids``, and nothing else of its inputs changes.

    Args:
        model: the unwrapped model.
        forward: its forward pass, from :func:`evaluation_mode`.
        inputs: of one text, ``[1, i]`` each.

    Returns:
        ``embeddings`` ``[1, i, d]``, and a function from ``[b, i, d]`` to the logits ``[b, c]``.

    Raises:
        UnsupportedModelError: if the model computes anything else from the embeddings than from the ids. A RoBERTa
            does so where the padding token is part of the text: positions are counted without it.
    """
    rest = {name: value for name, value in inputs.items() if name != "input_ids"}

    def from_embeddings(embeddings: Tensor) -> Tensor:
        return forward(inputs_embeds=embeddings, **repeated(rest, len(embeddings)))

    with torch.no_grad(), undisturbed(model) as copied:
        embed: Callable[[Tensor], Tensor] = copied.get_input_embeddings()  # type: ignore[operator]
        embeddings = embed(inputs["input_ids"]).clone()
        expected, found = forward(**inputs), from_embeddings(embeddings)
    gap = (found - expected).abs().max() / expected.abs().max().clamp_min(torch.finfo(expected.dtype).tiny)
    if not gap <= TOLERANCE[expected.dtype]:
        raise UnsupportedModelError(
            f"given its own word embeddings, this {type(model).__name__} computes other logits than from the token ids "
            f"(they differ by {gap:.1e} of their size): gradients with respect to its word embeddings would explain "
            "another function. Does the text hold a padding token?"
        )
    return embeddings, from_embeddings


def class_logit(forward: Forward, target: int) -> Forward:
    """The logit ``[b]`` of one class.

    Raises:
        InputError: if the model has no such class.
    """

    def logit(x: Tensor) -> Tensor:
        logits = forward(x)
        if not 0 <= target < logits.shape[-1]:
            raise InputError(f"classes holds {target}, and the model has the classes 0 to {logits.shape[-1] - 1}")
        return logits[:, target]

    return logit
