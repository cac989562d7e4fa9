"""What a service counts, for Prometheus. Labels are names of models and of routes: what requests say is none."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
_GAPS = tuple(10.0**n for n in range(-8, 1))


@dataclass(frozen=True)
class ModelMetrics:
    """Of one model.

    Attributes:
        waiting: texts in the queue.
        workers: processes that have loaded the model.
        batches: how many texts were computed together.
        texts: that were explained.
        tokens: of these.
        completeness_error: of these, in logit units.
        failures: texts that could not be explained.
        dropped: texts that nobody waited for any more.
        restarts: processes that ended.
    """

    waiting: Gauge
    workers: Gauge
    batches: Histogram
    texts: Counter
    tokens: Counter
    completeness_error: Histogram
    failures: Counter
    dropped: Counter
    restarts: Counter


class Metrics:
    """All of a service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        of_model = ("model",)

        def counter(name: str, what: str, labels: tuple[str, ...] = of_model) -> Counter:
            return Counter(f"decompx_{name}", what, labels, registry=registry)

        def histogram(
            name: str, what: str, buckets: tuple[float, ...], labels: tuple[str, ...] = of_model
        ) -> Histogram:
            return Histogram(f"decompx_{name}", what, labels, buckets=buckets, registry=registry)

        self.requests = counter("requests", "Requests that were answered.", ("route", "status"))
        self.seconds = histogram("request_seconds", "From a request's head to its answer.", _SECONDS, ("route",))
        self.in_flight = Gauge("decompx_requests_in_flight", "Requests that wait for an answer.", registry=registry)
        self._waiting = Gauge("decompx_queue_texts", "Texts in the queue.", of_model, registry=registry)
        self._workers = Gauge("decompx_workers_ready", "Processes that can compute.", of_model, registry=registry)
        self._batches = histogram("batch_texts", "Texts computed together.", _BATCHES)
        self._texts = counter("texts", "Texts that were explained.")
        self._tokens = counter("tokens", "Tokens of these texts.")
        self._gaps = histogram("completeness_error", "Largest gap of scores to the model's value, in logits.", _GAPS)
        self._failures = counter("failures", "Texts that could not be explained.")
        self._dropped = counter("dropped_texts", "Texts that nobody waited for any more.")
        self._restarts = counter("worker_ends", "Processes that ended and were replaced.")

    def of_model(self, name: str) -> ModelMetrics:
        """Those with a model's name."""
        return ModelMetrics(
            waiting=self._waiting.labels(name),
            workers=self._workers.labels(name),
            batches=self._batches.labels(name),
            texts=self._texts.labels(name),
            tokens=self._tokens.labels(name),
            completeness_error=self._gaps.labels(name),
            failures=self._failures.labels(name),
            dropped=self._dropped.labels(name),
            restarts=self._restarts.labels(name),
        )

    def text(self) -> bytes:
        """In the text format of Prometheus, version 0.0.4."""
        return generate_latest(self.registry)
