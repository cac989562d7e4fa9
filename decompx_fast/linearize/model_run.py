"""One run of the user's model: in which mode, and what is kept of it."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModelError, shown
from .copies import Copies
from .encoder import with_memory
from .private_copy import forget_parametrized, modules_of, original, own_forwards, private_copy
from .record import Record
from .spec import Context, ModelSpec, RoutedSpec, choice_name


@contextmanager
def plain_mode(device: torch.device) -> Iterator[None]:
    """No autograd, no inference mode and no autocast: whatever the caller's are, results are ordinary and exact."""
    on = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    autocast = torch.autocast(device.type, enabled=False) if on else nullcontext()
    with torch.inference_mode(False), torch.no_grad(), autocast:
        yield


@contextmanager
def undisturbed(model: nn.Module, copies: Copies | None = None) -> Iterator[nn.Module]:
    """The model in eval mode and without compiled code, to be run by this thread alone; the user's is not touched.

    Args:
        model: may be in any mode, and used, trained and switched by other threads meanwhile.
        copies: where a copy is kept for the next time.

    Yields:
        A copy of the module objects that shares all tensors (:mod:`.private_copy`).

    Raises:
        UnsupportedModelError: if a part that cannot be copied is in train mode.
    """
    with nullcontext(private_copy(model)) if copies is None else copies.lend(model) as copied:
        if any(module.training for module in modules_of(copied)):
            name, module = next((name, found) for name, found in copied.named_modules() if found.training)
            raise UnsupportedModelError(
                f"the module {name!r} is a {type(module).__name__} in train mode, which cannot be copied to be run in "
                "eval mode: call model.eval() first"
            )
        try:
            with _uncompiled():
                yield copied
        finally:
            forget_parametrized(copied)


_stance_lock = threading.Lock()
_stances: list[Any] = []  # one entry for each thread inside; the first is what the last to leave restores


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Compiled functions run their Python code; the stance is one for all threads, so the last to leave restores it."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and importing the compiler takes seconds
        yield
        return
    with _stance_lock:
        _stances.append(None if _stances else torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _stance_lock:
            if len(_stances) == 1:
                _stances[0].__exit__(None, None, None)
                _stances.clear()
            else:
                _stances.pop()


@dataclass(frozen=True)
class ModelRun:
    """What the user's model computed.

    Attributes:
        states: ``states[0]`` is the embedding, ``states[n + 1]`` the state after layer ``n``.
        decoder_embedding: of an encoder-decoder, what its decoder's layers begin with.
        contexts: what each layer was called with besides the state.
        outputs: what the head gave, ``[b, c]``; ``None`` where the model was run without it.
        final: ``[b, i, d]``, what the model hands to its head; ``None`` where that was run with it.
    """

    states: list[Tensor]
    contexts: list[Context]
    outputs: Tensor | None
    final: Tensor | None = None
    decoder_embedding: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """``[b, c]``.

        Raises:
            UnsupportedModelError: if the model has no one row of logits for each input.
        """
        if self.outputs is None:
            raise UnsupportedModelError(
                "the head of this model is no sequence classifier's: it has no logits [b, c], but outputs by position"
            )
        return self.outputs


class _Listener:
    """Keeps what passes through a model's layers."""

    def __init__(self, spec: ModelSpec, n_tokens: int, record: Record | None) -> None:
        self.states: list[Tensor] = []
        self._kept = n_tokens if spec.pads else None
        self.contexts: list[Context] = []
        self.decoder_embedding: Tensor | None = None
        self._spec = spec
        self._record = record

    def note_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Before a layer: the state that it is given, and what else."""
        names = _positional(type(module).forward)  # of its class, whatever its forward was replaced by
        own = names[0] if names and names[0] in kwargs else "hidden_states"
        state = args[0] if args else kwargs[own]
        if not self.states:
            self.states.append(self._cut(state))
        if self._spec.encoder_layers and len(self.contexts) == self._spec.encoder_layers:
            self.decoder_embedding = state
        given = dict(zip(names[1:], args[1:], strict=False)) | {n: v for n, v in kwargs.items() if args or n != own}
        # Nothing else is read, and a cache of keys and values would live on here.
        tensors = {name: value for name, value in given.items() if isinstance(value, (Tensor, tuple))}
        self.contexts.append({name: _detached(value) for name, value in tensors.items()})

    def note_state(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """After whatever gives the state after a layer."""
        done, expected = len(self.states) - 1, self._spec.state_modules
        if 0 <= done < len(expected) and expected[done] is not module:
            return
        state = output[0] if isinstance(output, tuple) else output
        if isinstance(state, Tensor) and state.ndim == 2:  # of a pooling, which gives each position the same
            state = state.unsqueeze(1).expand_as(self.states[-1])
        state = self._cut(state)
        self.states.append(state.clone() if self._spec.in_place else state)
        if self._record is not None and 0 <= done < len(self.contexts):
            before, context = self.states[-2], self.contexts[done]
            if self.decoder_embedding is not None:
                context = with_memory(context, self.states[self._spec.encoder_layers])
                before = self.decoder_embedding if done == self._spec.encoder_layers else before
            with plain_mode(self.states[-1].device):
                self._record.end_layer(done, before, self.states[-1], context)

    def _cut(self, state: Tensor) -> Tensor:
        """Without the padding that the model has added."""
        return state if self._kept is None or self.decoder_embedding is not None else state[:, : self._kept]

    def note_choice(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """After a router: which networks its layer's positions are sent to."""
        if self.contexts and isinstance(output, tuple) and isinstance(output[-1], Tensor):
            self.contexts[-1] = {**self.contexts[-1], choice_name(module): output[-1].detach()}

    def note_product(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """After a linear map."""
        if self._record is not None:
            if isinstance(output, Tensor) and output.ndim == 3:
                output = self._cut(output)
            self._record.note(module, output.clone() if self._spec.in_place and type(output) is Tensor else output)


def _choosers(spec: ModelSpec) -> Iterator[nn.Module]:
    for op in (op for layer in spec.layers for part in layer for op in part.ops):
        if isinstance(op, RoutedSpec) and op.chooser is not None:
            yield op.chooser


@functools.lru_cache(maxsize=256)
def _positional(forward: Callable[..., Any]) -> tuple[str, ...]:
    """The names of what a method takes by position, itself aside."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, one in inspect.signature(forward).parameters.items() if one.kind in kinds)[1:]


def _detached(value: Any) -> Any:
    """The same without a way back to the parameters."""
    if isinstance(value, tuple):
        return tuple(map(_detached, value))
    return value.detach() if isinstance(value, Tensor) else value


def run_model(
    model: nn.Module, spec: ModelSpec, inputs: Mapping[str, Tensor], record: Record | None = None
) -> ModelRun:
    """Run the model once and keep its hidden states, through hooks that live for this call.

    Args:
        model: what :func:`undisturbed` yields.
        spec: which of its modules to listen to.
        inputs: what its ``forward`` takes.
        record: is told of every product with a layer's weights, and of the end of each layer.
    """
    if spec.prepare is not None:
        spec.prepare(model, inputs)
    if spec.backbone is not None and model is not spec.backbone:
        check_adds_nothing(model)
    n_tokens = next((tensor.shape[1] for tensor in inputs.values() if tensor.ndim > 1), 0)
    listener = _Listener(spec, n_tokens, record)
    with ExitStack() as hooks:
        for module in dict.fromkeys(spec.layer_modules):  # layers may share one module
            hooks.callback(module.register_forward_pre_hook(listener.note_call, with_kwargs=True).remove)
        for module in dict.fromkeys(spec.state_modules):
            hooks.callback(module.register_forward_hook(listener.note_state).remove)
        for module in dict.fromkeys(_choosers(spec)):
            hooks.callback(module.register_forward_hook(listener.note_choice).remove)
        for module in () if record is None else record.modules():
            hooks.callback(module.register_forward_hook(listener.note_product).remove)
        # Where a configuration asks for these, transformers would leave hooks of its own on the model.
        unwanted = {"output_attentions": False, "output_hidden_states": False}
        given = {} if spec.given is None else spec.given(inputs)
        output = (spec.backbone or model)(**inputs, **given, **unwanted, return_dict=True)
        if spec.tail is not None:
            spec.tail(output.last_hidden_state)
    found = getattr(output, "logits" if spec.outputs_of is None else "last_hidden_state", None)
    shape, kind = ("[b, c]", "sequence classifier") if spec.outputs_of is None else ("[b, i, d]", "encoder")
    if not isinstance(found, Tensor) or found.ndim != (2 if spec.outputs_of is None else 3):
        wanted = "logits" if spec.outputs_of is None else "states"
        raise UnsupportedModelError(
            f"the forward pass of this {type(model).__name__} gave no {wanted} of the shape {shape}, but "
            f"{shown(output)}: it is no {kind} as transformers has it"
        )
    count, run = len(spec.layers), len(listener.contexts)
    if len(listener.states) != count + 1 or run != count:
        raise UnsupportedModelError(
            f"this {type(model).__name__} has {count} layers, but {min(run, len(listener.states) - 1)} were run in "
            "its forward pass: it cannot be explained exactly"
        )
    outputs, final = (found, None) if spec.outputs_of is None else (None, found)
    return ModelRun(listener.states, listener.contexts, outputs, final, listener.decoder_embedding)


def check_adds_nothing(model: nn.Module, parts: str = "encoder and its head are") -> None:
    """Refuse a model that computes more than its modules, of which only some are called.

    Args:
        model: as transformers made it.
        parts: what is called, for the message.

    Raises:
        UnsupportedModelError: if it has hooks, or a forward of its own.
    """
    name = type(model).__name__
    if hasattr(model, "_hf_hook"):
        raise UnsupportedModelError(
            f"accelerate runs this {name} by a hook, which moves it between devices: load it without device_map, or "
            "take the hooks off by accelerate.hooks.remove_hook_from_module(model, recurse=True)"
        )
    own, forward = vars(model).get("forward"), type(model).forward
    # accelerate leaves the class's own on a model whose hooks were taken off.
    replaced = own is not None and getattr(own, "__func__", None) is not forward
    transformers = forward.__module__.startswith("transformers.") and not replaced
    if model._forward_hooks or model._forward_pre_hooks or not transformers:
        raise UnsupportedModelError(
            f"this {name} has hooks, or a forward that is not that of transformers: its {parts} run by themselves, so "
            "that what they add would not be seen. Remove them, or put them on the modules inside"
        )


def check_embedding_mode(model: nn.Module, layer_modules: tuple[nn.Module, ...]) -> None:
    """Refuse what may have run in train mode where no layer's recomputation would show it.

    Args:
        model: what :func:`undisturbed` yielded, after it was run.
        layer_modules: its layers.

    Raises:
        UnsupportedModelError: if a function of the user's was run outside the layers in place of a module's forward,
            and the user's model is in train mode: it may call the model's own modules.
    """
    if not any(original(module).training for module in modules_of(model)):
        return
    checked = {module for layer in layer_modules for module in layer.modules()}
    for module in own_forwards(model):
        if module not in checked:
            name = next(name for name, found in model.named_modules() if found is module)
            raise UnsupportedModelError(
                f"the forward of the module {name!r} was replaced by a function that may run the model's own modules, "
                "which are in train mode: call model.eval() first"
            )
