"""Counters, gauges and times of the server, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from omnidraft.decoding.stats import Stats

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        where = {"registry": self._registry}
        ProcessCollector(**where)
        self._answers = Counter("omnidraft_answers", "answers by their end", ["model", "end"], **where)
        self._prompt = Counter("omnidraft_prompt_tokens", "tokens of prompts", ["model"], **where)
        self._cached = Counter("omnidraft_prompt_tokens_cached", "of them, held by a KV cache", ["model"], **where)
        self._tokens = Counter("omnidraft_generated_tokens", "tokens of answers", ["model"], **where)
        self._proposed = Counter("omnidraft_proposed_tokens", "tokens proposed to the target", ["model"], **where)
        self._accepted = Counter("omnidraft_accepted_tokens", "of them, accepted", ["model"], **where)
        self._refused = Counter("omnidraft_refused_requests", "requests that the full queue refused", **where)
        self.warnings = Counter("omnidraft_warnings", "warnings, such as of a profile that is not saved", **where)
        self.queued = Gauge("omnidraft_queued_requests", "requests that wait for a lane", **where)
        self.active = Gauge("omnidraft_active_requests", "requests that have a lane", **where)
        self.cache = Gauge("omnidraft_kv_cache_bytes", "bytes of all KV caches", **where)
        self._first = Histogram(
            "omnidraft_time_to_first_token_seconds", "from a request to its first token", ["model"], buckets=SECONDS, **where
        )
        self._whole = Histogram(
            "omnidraft_answer_seconds", "from a request to the end of its answer", ["model"], buckets=SECONDS, **where
        )

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
