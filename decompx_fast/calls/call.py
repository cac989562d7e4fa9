"""One call of the explainer: its keywords, checked before anything is read, and the stream of results."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from ..config import LINEAR_BIAS_RULES, DecompXConfig
from ..engines.choose import Execution
from ..engines.exchange import Exchange
from ..engines.shape import ModelShape
from ..errors import OptionError, shown, warn_user
from ..linearize.linearization import specification, taken_inputs
from ..linearize.spec import ModelSpec
from ..models.tasks import PAIRS, WRITES_ANEW, WRITES_ON
from ..request.batching import stream
from ..request.decoding import with_text_again
from ..request.encoding import Reader
from ..request.focus import FOCUS_TOKENS
from ..request.naming import with_ids
from ..request.pictures import PictureReader
from ..request.prepared import MODEL_INPUTS
from ..request.sounds import SoundReader
from ..request.sources import check_unit, with_sources
from ..request.targets import resolve_targets
from ..request.tasks import check_question, position_task
from ..request.tasks.columns import Question, check_count
from ..request.versions import Baseline
from ..result.explanation import Explanation
from ..result.failure import Failure
from ..result.kinds import FOCUS
from .asking import Asker
from .checks import check_batch_size, check_dtype, check_positions, refuse_misspelt_arguments, refuse_of_texts
from .compiling import outside_compiler
from .continuing import Continuation
from .explained_model import ExplainedModel
from .focusing import Focusing, check_focusing, naming_config
from .job import COLUMNS_RECKONED, Job
from .path_job import PathJob
from .windowing import LongContexts

#: What becomes of an input that cannot be explained.
OnError = Literal["raise", "skip"]


@dataclass(frozen=True, kw_only=True)
class Call(Question):
    """The keywords of :meth:`decompx_fast.DecompX.explain_iter`, which says what each is, with their defaults: what is
    asked of each input, and how it is answered.

    Raises:
        OptionError: for what does not exist.
    """

    sources: Any = "token"
    focus: int | None = None
    truncate: bool = False
    on_error: OnError = "raise"
    ids: Any = None
    batch_size: int | None = None
    engine: str | None = None
    dtype: str | torch.dtype | None = None
    progress: bool | None = None
    path: str = "auto"
    backend: str = "auto"
    workspace_bytes: int | None = None
    storage: str = "memory"
    folder: str | None = None
    positions: Sequence[int] = ()
    check: str = "standard"
    is_split_into_words: bool = False
    read_ahead: int | None = None
    steps: int | Literal["auto", "search"] | None = None
    baseline: Baseline | None = None

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise OptionError(f"on_error={self.on_error!r}: use 'raise' or 'skip'")
        check_unit(self.sources)
        self._check_focus()
        check_batch_size(self.batch_size)
        check_batch_size(self.read_ahead, "read_ahead")
        if self.baseline is not None and self.steps is None:
            raise OptionError(f"baseline={self.baseline!r} is where the paths of steps= end: give steps too")

    def _check_focus(self) -> None:
        if self.focus is None:
            return
        check_count("focus", self.focus)
        if not self.focuses:
            raise OptionError(
                f"focus={self.focus!r} is how many tokens stay sources of their own with sources='focus', and sources "
                f"is {shown(self.sources)}: give sources='focus', or leave focus out"
            )

    @property
    def focuses(self) -> bool:
        """Whether scores name the sources."""
        return isinstance(self.sources, str) and self.sources == FOCUS

    @property
    def skip(self) -> bool:
        """Whether the call goes on after an input that cannot be explained."""
        return self.on_error == "skip"

    def start(
        self, explainer: ExplainedModel, config: DecompXConfig, texts: Any
    ) -> tuple[Iterator[Explanation | Failure], bool]:
        """A lazy stream, and whether ``texts`` is a single input; what is wrong with the call is raised now."""
        spec = specification(explainer.model, explainer.copies)
        asker = self._asker(explainer, spec.classes)
        asked = self._asked(explainer, spec, asker)
        job = self._job(config, spec, asked)
        focusing = self._focusing(config, spec, asked) if self.focuses else None
        encoded, single = self._read(explainer, spec, texts, asker)
        if asker is not None:
            encoded = asker.checked(encoded, skip=self.skip)
        if spec.shifted is not None:
            encoded = with_text_again(encoded, spec.shifted, explainer.tokenizer)
        batches: dict[str, Any] = {
            "batch_size": explainer.batch_size if self.batch_size is None else self.batch_size,
            "read_ahead": self.read_ahead,
            "at_once": explainer.ranks,
        }
        results = stream(
            functools.partial(job.run_all, skip=self.skip),
            with_sources(encoded, self.sources, skip=self.skip)
            if focusing is None
            else focusing.follow(encoded, skip=self.skip, **batches),
            total=len(texts) if isinstance(texts, Sequence) and not single else None,
            progress=False if self.progress is None and explainer.rank else self.progress,
            bytes_of=job.bytes_of,
            **batches,
        )
        return results, single

    def execution(self, exchange: Exchange | None = None) -> Execution:
        """How the forward engine computes, here or with other processes."""
        return Execution(self.path, self.backend, self.workspace_bytes, exchange, self.storage, self.folder)

    def job(self, explainer: ExplainedModel, config: DecompXConfig) -> Job | PathJob:
        """What would explain every batch."""
        spec = specification(explainer.model, explainer.copies)
        asker = self._asker(explainer, spec.classes)
        return self._job(config, spec, self._asked(explainer, spec, asker))

    def _asker(self, explainer: ExplainedModel, outputs: int) -> Asker | None:
        """What asks for columns at positions; ``None`` where the head answers once."""
        task = position_task(explainer.task, labels=explainer.labels, tokenizer=explainer.tokenizer)
        question = self if self.steps is None else dataclasses.replace(self, seed=None)  # of the path, then
        check_question(question, () if task is None else task.takes, explainer.task)
        if task is None:
            return None
        task.check(self, outputs)
        if (notice := task.notice(self)) is not None:
            warn_user(notice)
        return Asker(task, self, outputs)

    def _asked(self, explainer: ExplainedModel, spec: ModelSpec, asker: Asker | None) -> dict[str, Any]:
        """What is asked of every batch, options and sources aside."""
        return {
            "explainer": explainer,
            "engine": explainer.engine if self.engine is None else self.engine,
            "dtype": explainer.dtype if self.dtype is None else check_dtype(self.dtype),
            "targets": resolve_targets(self.targets if asker is None else None, explainer.labels),
            "execution": self.execution(explainer.exchange),
            "shape": ModelShape.from_spec(spec, columns=None if asker is None else COLUMNS_RECKONED),
            "positions": check_positions(self.positions),
            "check": self.check,
            "asker": asker,
        }

    def _job(self, config: DecompXConfig, spec: ModelSpec, asked: dict[str, Any]) -> Job | PathJob:
        """What explains every batch."""
        if self.steps is None:
            return Job(config=config, sources=self.sources, **asked)
        whole = Job(config=config, sources="token", **asked)
        versions = (
            whole
            if config.bias in LINEAR_BIAS_RULES
            else Job(config=config.replace(bias="none"), sources="token", **asked)
        )
        seed = 0 if self.seed is None else self.seed
        return PathJob(whole, versions, steps=self.steps, baseline=self.baseline, seed=seed, spec=spec)

    def _focusing(self, config: DecompXConfig, spec: ModelSpec, asked: dict[str, Any]) -> Focusing:
        """What names the tokens that stay sources of their own."""
        check_focusing(spec, config)
        asked = {**asked, "engine": "adjoint", "positions": (), "check": "standard", "warns": False}
        naming = Job(config=naming_config(config), sources="token", **asked).of_likeliest()
        return Focusing(naming, FOCUS_TOKENS if self.focus is None else int(self.focus))  # JSON has no others

    def _read(
        self, explainer: ExplainedModel, spec: ModelSpec, texts: Any, asker: Asker | None
    ) -> tuple[Iterator[Any], bool]:
        """The inputs as the model takes them, each with its name and what follows it; and whether there is one."""
        limits, goes_on = spec.limits, explainer.task == WRITES_ON
        if goes_on and self.truncate:
            raise OptionError(
                "truncate=True cuts a text at its end, where a language model goes on: shorten the prompt at its "
                "beginning instead"
            )
        windowed = None
        if asker is not None and explainer.task == "question-answering":
            windowed = LongContexts(explainer, asker, limits.positions, self.truncate)
        reader: Reader | PictureReader | SoundReader
        if limits.picture is not None or limits.sound is not None:
            refuse_of_texts(truncate=self.truncate, is_split_into_words=self.is_split_into_words)
        if limits.sound is not None:
            reader = SoundReader(explainer.tokenizer, limits.sound, skip=self.skip)
        elif limits.picture is not None:
            reader = PictureReader(explainer.tokenizer, limits.picture, skip=self.skip)
        else:
            reader = Reader(
                explainer.tokenizer,
                # A prompt and its output are counted together, a context in windows.
                None if goes_on or (windowed is not None and not self.truncate) else limits.positions,
                sizes=limits.sizes,
                truncate=self.truncate,
                skip=self.skip,
                device=explainer.device,
                split=self.is_split_into_words,
                prompts=goes_on,
                pairs=PAIRS.get(explainer.task),
                takes=taken_inputs(explainer.model, MODEL_INPUTS),
            )
        encoded, single = reader.read(texts)
        if self.ids is not None:
            encoded = with_ids(encoded, [self.ids] if single else self.ids)
        if goes_on or explainer.task == WRITES_ANEW:
            continuation = Continuation(explainer, self, limits.positions, spec.classes, single)
            encoded = continuation.follow(encoded, skip=self.skip)
        if windowed is not None:
            encoded = windowed.follow(encoded, skip=self.skip)
        return encoded, single


@outside_compiler
def start(
    explainer: ExplainedModel, texts: Any, arguments: Mapping[str, Any]
) -> tuple[Iterator[Explanation | Failure], bool]:
    """Check every argument now, and return a lazy stream, and whether ``texts`` is a single input.

    Args:
        explainer: of what is explained.
        texts: what the user gave.
        arguments: fields of :class:`Call`, and single options of :class:`DecompXConfig`.

    Raises:
        OptionError: for an argument or an option that does not exist or does not fit the model.
        InputError: for what cannot be explained.
    """
    named = {field.name for field in dataclasses.fields(Call)}
    options = {name: value for name, value in arguments.items() if name not in named}
    refuse_misspelt_arguments(options)
    call = Call(**{name: value for name, value in arguments.items() if name in named})
    return call.start(explainer, explainer.config.replace(**options), texts)
