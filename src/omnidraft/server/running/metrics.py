"""Counters, gauges and times of the server, for Prometheus."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from omnidraft.decoding.stats import Stats

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self._registry), partial(Gauge, registry=self._registry)
        histogram = partial(Histogram, buckets=SECONDS, registry=self._registry)
        ProcessCollector(registry=self._registry)
        self._answers = counter("omnidraft_answers", "answers by their end", ["model", "end"])
        self._prompt = counter("omnidraft_prompt_tokens", "tokens of prompts", ["model"])
        self._cached = counter("omnidraft_prompt_tokens_cached", "of them, held by a KV cache", ["model"])
        self._tokens = counter("omnidraft_generated_tokens", "tokens of answers", ["model"])
        self._proposed = counter("omnidraft_proposed_tokens", "tokens proposed to the target", ["model"])
        self._accepted = counter("omnidraft_accepted_tokens", "of them, accepted", ["model"])
        self._refused = counter("omnidraft_refused_requests", "requests that the full queue refused")
        self.changed_heads = counter(
            "omnidraft_changed_prompt_heads", "prompts that differ early and agree in much that follows", ["model"]
        )
        self.warnings = counter("omnidraft_warnings", "warnings, such as of a profile that is not saved")
        self.queued = gauge("omnidraft_queued_requests", "requests that wait for a lane")
        self.active = gauge("omnidraft_active_requests", "requests that have a lane")
        self.cache = gauge("omnidraft_kv_cache_bytes", "bytes of all KV caches")
        self._first = histogram(
            "omnidraft_time_to_first_token_seconds",
            "from a request to its first token",
            ["model"],
        )
        self._whole = histogram("omnidraft_answer_seconds", "from a request to the end of its answer", ["model"])

    def refused(self) -> None:
        """The queue was full."""
        self._refused.inc()

    def began(self, model: str, prompt: int, cached: int) -> None:
        """A request has a lane, which holds `cached` of the prompt's tokens."""
        self._prompt.labels(model).inc(prompt)
        self._cached.labels(model).inc(cached)

    def first(self, model: str, seconds: float) -> None:
        """The first token of a request is there."""
        self._first.labels(model).observe(seconds)

    def ended(self, model: str, end: str, seconds: float, stats: Stats | None) -> None:
        """A request is over; `stats` are those of what was made of its answer."""
        self._answers.labels(model, end).inc()
        self._whole.labels(model).observe(seconds)
        if stats is not None:
            self._tokens.labels(model).inc(stats.tokens)
            self._proposed.labels(model).inc(stats.proposed)
            self._accepted.labels(model).inc(stats.accepted)

    def text(self) -> bytes:
        """The metrics as Prometheus reads them."""
        return generate_latest(self._registry)
