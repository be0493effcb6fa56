"""What Prometheus is told: totals of the engine, how speculation fares, and how long clients wait.

Every server has a registry of its own, so two in one process count apart, and nothing but these metrics is told. No label takes a value that
clients choose freely: what is not known is counted as "other", so the number of series is bounded.
"""

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric

from specdec_fn.engine.event import Event
from specdec_fn.engine.generation import Stats
from specdec_fn.engine.state import Counters

__all__ = ["PARTS", "REASONS", "ROUTES", "Metrics"]

ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/requests", "/health", "/metrics", "/openapi.json", "/")
PARTS = ("plan", "propose", "forward", "verify", "commit")
REASONS = ("stop", "length", "abort", "error")
OTHER = "other"
POSITIONS, PROPOSERS = 64, 32  # most values of these labels

TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
REQUEST = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
PART = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

# Fields of the engine's totals: what they are told as.
TOTALS = (
    ("submitted", "specdec_submitted", "Choices that were handed to the engine."),
    ("steps", "specdec_steps", "Steps of the engine: one forward of the model over every request that the plan had room for."),
    ("proposed", "specdec_proposed_tokens", "Drafted tokens that were verified."),
    ("accepted", "specdec_accepted_tokens", "Drafted tokens that were accepted and emitted."),
    ("emitted", "specdec_emitted_tokens", "Tokens that requests got."),
    ("prompted", "specdec_prompt_tokens", "Prompt tokens of requests at their first admission."),
    ("cached", "specdec_cached_prompt_tokens", "Those of them whose keys and values the prefix cache had."),
    ("preempted", "specdec_preemptions", "Times that a request lost its pages and was computed again."),
)


class Metrics:
    """The metrics of one server.

    Args:
        model: what it calls its model.

    >>> metrics = Metrics("toy")
    >>> event = Event(0, [5, 6, 7], [], None)
    >>> metrics.stepped(Counters(steps=1, emitted=3), [event], {"forward": 0.002}, waiting=0, running=1, free_pages=7, pages=8)
    >>> b"specdec_emitted_tokens_total 3.0" in metrics.render()[0]
    True
    """

    def __init__(self, model: str) -> None:
        self._registry = _Registry()
        self._seen = Counters()
        self._proposers: set[str] = set()
        self._gauge("specdec_model_info", "The model that is served.", "model").labels(model).set(1)
        self._totals = {field: self._counter(name, about) for field, name, about in TOTALS}
        self._passes = self._counter("specdec_passes", "Passes of requests: each verified one draft and emitted tokens; many share a step.")
        self._tokens = self._histogram("specdec_pass_tokens", "Tokens that a pass emitted for one request.", TOKENS)
        self._drafted_at = self._counter("specdec_position_drafted", "Passes of ended choices that drafted that far.", "position")
        self._accepted_at = self._counter("specdec_position_accepted", "Passes of ended choices that accepted that position.", "position")
        self._by_proposer = tuple(
            (field, self._counter(f"specdec_proposer_{name}", f"{about} of ended choices, by what drafted for them.", "proposer"))
            for field, name, about in (
                ("proposed", "proposed_tokens", "Proposed tokens"),
                ("accepted", "accepted_tokens", "Accepted tokens"),
                ("emitted", "emitted_tokens", "Emitted tokens"),
                ("passes", "passes", "Passes"),
            )
        )
        ended = self._counter("specdec_ended", "Choices that ended, by why.", "reason")
        self._ended = {reason: ended.labels(reason) for reason in (*REASONS, OTHER)}
        self._waiting = self._gauge("specdec_requests_waiting", "Choices that wait for room.")
        self._running = self._gauge("specdec_requests_running", "Choices that the engine serves.")
        self._free = self._gauge("specdec_pages_free", "Pages that a new request could have, cached ones that nobody holds included.")
        self._pages = self._gauge("specdec_pages", "Pages of the pool of keys and values.")
        self._first = self._histogram("specdec_time_to_first_token_seconds", "From a request's arrival to its first token.", FIRST)
        self._between = self._histogram(
            "specdec_time_between_tokens_seconds", "Time since the tokens before, shared among the tokens of a pass; one observation a pass.", BETWEEN
        )
        parts = self._histogram("specdec_step_part_seconds", "Time of a step of the engine, by part.", PART, "part")
        self._parts = {part: parts.labels(part) for part in (*PARTS, OTHER)}
        self._in_flight = self._gauge("specdec_http_requests_in_flight", "Requests that are not answered yet.", "route")
        self._answered = self._histogram("specdec_http_request_seconds", "From a request to the end of its answer.", REQUEST, "route", "status")

    def arrived(self, route: str) -> None:
        """A request of HTTP began.

        Args:
            route: one of ``ROUTES``; any other is counted as "other".
        """
        self._in_flight.labels(_one_of(ROUTES, route)).inc()

    def answered(self, route: str, status: int, seconds: float) -> None:
        """A request of HTTP ended.

        Args:
            route: as it arrived.
            status: of its answer.
            seconds: it took.
        """
        route = _one_of(ROUTES, route)
        self._in_flight.labels(route).dec()
        self._answered.labels(route, str(status) if 100 <= status < 600 else OTHER).observe(seconds)

    def stepped(
        self,
        counters: Counters,
        events: Sequence[Event],
        laps: Mapping[str, float],
        *,
        waiting: int,
        running: int,
        free_pages: int,
        pages: int,
    ) -> None:
        """The engine made a step.

        Args:
            counters: its totals; what they grew by since the last time is added.
            events: the step's.
            laps: seconds of the step's parts, by names of ``PARTS``.
            waiting, running: requests.
            free_pages, pages: of the pool.
        """
        for field, counter in self._totals.items():
            grown = getattr(counters, field) - getattr(self._seen, field)
            if grown > 0:
                counter.inc(grown)
        self._seen = counters
        for event in events:
            if event.tokens:
                self._passes.inc()
                self._tokens.observe(len(event.tokens))
        for part, seconds in laps.items():
            self._parts[_one_of(PARTS, part)].observe(seconds)
        self._waiting.set(waiting)
        self._running.set(running)
        self._free.set(free_pages)
        self._pages.set(pages)

    def first(self, seconds: float) -> None:
        """A choice got its first token, so long after its request arrived."""
        self._first.observe(seconds)

    def between(self, seconds: float) -> None:
        """A choice got tokens, so long after those before; where it got many, the time of each."""
        self._between.observe(seconds)

    def ended(self, reason: str, proposer: str, stats: Stats) -> None:
        """A choice ended.

        Args:
            reason: one of ``REASONS``.
            proposer: what drafted for it; names joined by + are told in the order of the alphabet, each once.
            stats: what it came to.
        """
        self._ended[_one_of(REASONS, reason)].inc()
        proposer = "+".join(sorted(set(proposer.split("+"))))
        if proposer in self._proposers or len(self._proposers) < PROPOSERS:
            self._proposers.add(proposer)
        else:
            proposer = OTHER
        for field, counter in self._by_proposer:
            counter.labels(proposer).inc(getattr(stats, field))
        for place, (drafted, kept) in enumerate(stats.per_position, 1):
            position = str(place) if place <= POSITIONS else OTHER
            self._drafted_at.labels(position).inc(drafted)
            self._accepted_at.labels(position).inc(kept)

    def render(self) -> tuple[bytes, str]:
        """Everything in Prometheus's text format, and the type of that content."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, registry=self._registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(name, about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(name, about, labels, buckets=buckets, registry=self._registry)


class _Registry(CollectorRegistry):
    """Without the times at which series were made, which the library can leave out for the whole process only."""

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _one_of(known: Sequence[str], name: str) -> str:
    return name if name in known else OTHER
