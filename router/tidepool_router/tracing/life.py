"""One request from its first byte to its end, while somebody watches. PURE: times are handed in."""

from collections.abc import Callable
from typing import NamedTuple

from tidepool_router.facts import RequestFacts
from tidepool_router.ledger import Entry, Outcome
from tidepool_router.tracing.context import Parent, with_parent, written


class Phase(NamedTuple):
    """A stretch of time, in seconds of the monotonic clock: "queue", "first_step" or "connect"."""

    name: str
    began_at: float
    ended_at: float


class Attempt(NamedTuple):
    """A pod that was asked in vain."""

    pod: str
    span_id: int
    began_at: float
    ended_at: float
    error: str


class Life:
    """What spans and access lines are made of. All times are seconds of the monotonic clock.

    `arrived_at` is the first byte, `started_at` the whole request, `sent_at` when the last attempt began to send;
    `engine_span_id` is the span that the engine is told as its parent. The data path sets the rest at the end.
    """

    __slots__ = (
        "address",
        "arrived_at",
        "attempts",
        "client",
        "ended_at",
        "engine_span_id",
        "entry",
        "error",
        "facts",
        "method",
        "new_id",
        "outcome",
        "parent",
        "passes_on",
        "path",
        "phases",
        "pod",
        "pool",
        "prompt",
        "queued_seconds",
        "reason",
        "request_id",
        "sampled",
        "sent_at",
        "span_id",
        "started_at",
        "status",
        "trace_id",
        "written_at",
    )

    def __init__(
        self,
        arrived_at: float,
        started_at: float,
        parent: Parent | None,
        trace_id: int,
        new_id: Callable[[], int],
    ) -> None:
        self.arrived_at = arrived_at
        self.started_at = started_at
        self.parent = parent
        self.trace_id = trace_id  # 0: nobody traces
        self.new_id = new_id
        self.span_id = 0
        self.sampled = False
        self.passes_on = False  # whether the engine is told of a span of ours
        self.sent_at: float | None = None
        self.engine_span_id = 0
        self.phases: tuple[Phase, ...] = ()
        self.attempts: tuple[Attempt, ...] = ()
        self.method = "POST"
        self.path = ""
        self.client = ""
        self.request_id = ""
        self.prompt = b""
        self.facts: RequestFacts | None = None
        self.pool = ""
        self.pod = ""
        self.address: tuple[str, int] | None = None
        self.reason = ""
        self.entry: Entry | None = None
        self.queued_seconds = 0.0
        self.status = 0
        self.outcome = Outcome.OK
        self.error = ""
        self.ended_at = started_at
        self.written_at = started_at

    def sent(self, lines: list[bytes], now: float) -> bytes:
        """An attempt begins; returns the header lines that go to the engine, as they go on the wire."""
        self.sent_at = now
        self.engine_span_id = span_id = self.new_id()
        if not self.passes_on:
            return b"".join(lines)
        traceparent = written(self.trace_id, span_id, sampled=self.sampled)
        return b"".join(with_parent(lines, traceparent, keep_state=self.parent is not None))

    def passed(self, phase: str, began_at: float, ended_at: float) -> None:
        """A phase that not every request has."""
        self.phases += (Phase(phase, began_at, ended_at),)

    def failed(self, pod: str, error: str, now: float) -> None:
        """The attempt under way has failed and another one follows."""
        began_at = now if self.sent_at is None else self.sent_at
        self.attempts += (Attempt(pod, self.engine_span_id, began_at, now, error),)
        self.sent_at = None

    @property
    def first_token_at(self) -> float | None:
        """None before it."""
        return None if self.entry is None else self.entry.first_token_at
