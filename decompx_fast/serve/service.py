"""The models of a service, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import DecompXError, counted
from .backend import Backend, WorkerEnded
from .logs import log
from .messages import Form, Load, Outcome, Text, Wanted
from .metrics import Metrics
from .refusals import Refusal, later, of_outcome
from .schemas import Options
from .settings import Settings
from .waiting import QueueFull

#: In how many seconds another process has probably taken the place of one that ended.
_REPLACED_S = 2


class Service:
    """What the application asks.

    Args:
        settings: of the service.
        failed: is told why a model cannot be loaded.
        work: what a process does; see :func:`decompx_fast.serve.worker.work`.
    """

    def __init__(
        self, settings: Settings, failed: Callable[[DecompXError], object], work: Callable[..., object]
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.backends = {name: self._backend(name, failed, work) for name in settings.models}

    def _backend(self, name: str, failed: Callable[[DecompXError], object], work: Callable[..., object]) -> Backend:
        settings = self.settings
        model, limits = settings.models[name], settings.limits
        load = Load(
            name=name,
            path=model.path,
            task=model.task,
            devices=model.devices,
            dtype=model.dtype,
            arguments=model.options.arguments(),
            threads=model.threads,
            tokens=limits.tokens,
        )
        return Backend(load, settings.workers_of(name), limits, self.metrics.of_model(name), log, failed, work)

    @property
    def ready(self) -> bool:
        """Whether all models can answer."""
        return all(backend.ready_workers for backend in self.backends.values())

    def backend(self, name: str | None) -> Backend:
        """The model of that name; the only one for ``None``.

        Raises:
            Refusal: if there is none, or more than one.
        """
        names = list(self.backends)
        if name is None and len(names) > 1:
            raise Refusal(422, "InputError", f"model is missing: name one of {', '.join(names)}", "model")
        found = self.backends.get(names[0] if name is None else name)
        if found is None:
            raise Refusal(404, "UnknownModel", f"there is no such model: use one of {', '.join(names)}", "model")
        return found

    async def explain(
        self,
        about: dict[str, Any],
        backend: Backend,
        texts: Sequence[Text],
        options: Options,
        *,
        form: Form = "dictionary",
        words: bool = False,
        details: bool = False,
        skip: bool = False,
    ) -> list[Outcome]:
        """The outcome of each text.

        Args:
            about: is told what the log shall hold.
            backend: of the model.
            texts: in the order of the request.
            options: of the call.
            form: of the explanations.
            words: merge the tokens of each word.
            details: as for ``Explanation.to_dict``.
            skip: whether an outcome may be an error.

        Raises:
            Refusal: if there is no room or no time, or for the first text that cannot be explained.
        """
        limits = self.settings.limits
        about |= {"model": backend.load.name, "texts": len(texts)}
        if self.settings.log_texts:
            about["logged_texts"] = texts
        most = min(limits.texts, limits.queue)
        if len(texts) > most:
            raise Refusal(
                422, "InputError", f"texts holds {len(texts):,}, and a request may have {most:,}: send several", "texts"
            )
        wanted = [Wanted(text, n, len(texts) == 1, form, words, details) for n, text in enumerate(texts)]
        try:
            outcomes = await backend.explain(wanted, options.arguments())
        except QueueFull as error:
            raise later(429, "QueueFull", "too many texts wait already", error.retry_s) from None
        except TimeoutError:
            raise Refusal(
                504,
                "Timeout",
                f"{counted(len(texts), 'text')} could not be explained within {limits.timeout_s:g} s: send fewer or "
                "shorter ones, or ask when less is waiting",
            ) from None
        except WorkerEnded:
            raise later(503, "WorkerEnded", "the process that computed this has ended", _REPLACED_S) from None
        about["tokens"] = sum(outcome.tokens for outcome in outcomes)
        for number, outcome in enumerate(outcomes):
            if outcome.error and not skip:
                raise of_outcome(outcome, number)
        return outcomes
