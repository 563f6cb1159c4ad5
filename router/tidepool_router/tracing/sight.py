"""Who watches: makes a life for each request, and gives it to spans and access log when it has ended."""

import random
import time
from collections.abc import Callable
from time import monotonic
from typing import Final

from tidepool_router.errors import Refusal
from tidepool_router.ledger import Outcome
from tidepool_router.tracing.access import AccessLines
from tidepool_router.tracing.batches import Batches
from tidepool_router.tracing.context import chosen, parent_of
from tidepool_router.tracing.life import Life
from tidepool_router.tracing.otlp import OtlpExporter
from tidepool_router.tracing.spans import Trace
from tidepool_router.wire.headers import REQUEST_ID
from tidepool_router.wire.messages import Request
from tidepool_router.wire.paths import path_of

# A request's spans cost the thread up to a millisecond of CPU: so many a second take a quarter of a core at most.
_LIVES_BOUND: Final = 256
_LIVES_SECONDS: Final = 1.0
_LINES_BOUND: Final = 16_384
_LINES_SECONDS: Final = 0.2
_LONGEST_PATH_BYTES: Final = 200


def _new_id() -> int:
    return random.getrandbits(64) or 1


class Sight:
    """There is none where nobody watches: the data path asks for it and finds None.

    `ratio` is the part of the traces that begin here which is sampled; a caller that sampled is followed.
    """

    def __init__(
        self,
        *,
        exporter: OtlpExporter | None = None,
        ratio: float = 1.0,
        prompts: bool = False,
        write_lines: Callable[[bytes], None] | None = None,
    ) -> None:
        self.exporter = exporter
        self.lives: Batches[Life | Trace] | None = None
        self.lines: Batches[bytes] | None = None
        if exporter is not None:
            self.lives = Batches("spans", exporter.write, bound=_LIVES_BOUND, interval_seconds=_LIVES_SECONDS)
        if write_lines is not None:
            self.lines = Batches(
                "access-log",
                lambda lines: write_lines(b"\n".join(lines) + b"\n"),
                bound=_LINES_BOUND,
                interval_seconds=_LINES_SECONDS,
            )
        self._ratio = ratio
        self._prompts = prompts
        self._access = AccessLines()

    def start(self) -> None:
        """Begin to write."""
        for batches in (self.lives, self.lines):
            if batches is not None:
                batches.start()

    async def close(self) -> None:
        """Write what is left."""
        for batches in (self.lines, self.lives):
            if batches is not None:
                await batches.close()
        if self.exporter is not None:
            self.exporter.close()

    def begin(self, request: Request, client: str, arrived_at: float, started_at: float) -> Life | None:
        """A request has arrived whole; `arrived_at` is its first byte, 0 when that came together with the last.

        None where there will be nothing to tell of it, and nothing of ours to tell the engine.
        """
        parent = parent_of(request.lines)
        if parent is not None and not parent.sampled and self.lines is None:
            return None
        trace_id = 0 if parent is None else parent.trace_id
        life = Life(arrived_at or started_at, started_at, parent, trace_id, _new_id)
        life.method = request.method.decode("latin-1")
        life.path = path_of(request.target)[:_LONGEST_PATH_BYTES].decode("latin-1")
        life.client = client
        if self.lives is not None:
            self._trace(life, request)
        return life

    def _trace(self, life: Life, request: Request) -> None:
        if life.parent is None:
            life.trace_id = random.getrandbits(128) or 1
            life.sampled = chosen(life.trace_id, self._ratio)
        else:
            life.sampled = life.parent.sampled
        life.span_id = _new_id()
        # What a caller decided against goes on as it came; what is decided against here, the engine must hear of.
        life.passes_on = life.sampled or life.parent is None
        if life.sampled and self._prompts:
            life.prompt = request.body

    def samples(self, trace_id: int) -> bool:
        """Whether a trace that begins here, with this id, is written."""
        return self.lives is not None and chosen(trace_id, self._ratio)

    def ended(self, life: Life, outcome: Outcome, status: int, ended_at: float) -> None:
        """The request is over."""
        life.outcome, life.status, life.ended_at = outcome, status, ended_at
        life.written_at = monotonic()
        if not life.error and status >= 500:
            life.error = str(status)
        if life.sampled and self.lives is not None:
            self.lives.put(life)
        if self.lines is not None:
            self.lines.put(self._access.line(life, time.time()))

    def refused(self, request: Request, client: str, arrived_at: float, refusal: Refusal) -> None:
        """A request was turned away before there was anything of it."""
        now = monotonic()
        life = self.begin(request, client, arrived_at, now)
        if life is None:
            return
        life.request_id = request.special.get(REQUEST_ID, b"").decode("latin-1")
        life.error = refusal.code
        self.ended(life, Outcome.REFUSED, refusal.status, now)
