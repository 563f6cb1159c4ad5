"""One line a request that has ended: who asked what of which pod, for how long. Never a prompt, never a key."""

import time
from typing import Final

import msgspec

from tidepool_router.tracing.life import Life

_DIGITS: Final = 6  # microseconds


class AccessLine(msgspec.Struct, omit_defaults=True):
    """The line's members; those that say nothing are left out. Times are seconds.

    `level`, `logger` and `message` are always written, as in every other line of the log.
    """

    time: str
    level: str
    logger: str
    message: str
    request_id: str
    method: str
    path: str
    status: int
    outcome: str
    duration_seconds: float
    client: str = ""
    pool: str = ""
    pod: str = ""
    model: str = ""
    stream: bool = False
    error: str = ""
    failed_attempts: int = 0
    queued_seconds: float = 0.0
    first_token_seconds: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    trace_id: str = ""


_encode: Final = msgspec.json.Encoder().encode


class AccessLines:
    """Makes the lines; keeps the text of the second, which many lines share."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def line(self, life: Life, now_unix: float) -> bytes:
        """One JSON object, without its newline; `now_unix` is the wall clock."""
        facts, entry = life.facts, life.entry
        line = AccessLine(
            self._time(now_unix),
            "info",
            "tidepool.access",
            "request",
            life.request_id,
            life.method,
            life.path,
            life.status,
            life.outcome.value,
            round(life.ended_at - life.arrived_at, _DIGITS),
            life.client,
            life.pool,
            life.pod,
        )
        line.error = life.error
        line.failed_attempts = len(life.attempts)
        if life.queued_seconds:
            line.queued_seconds = round(life.queued_seconds, _DIGITS)
        if facts is not None:
            line.model = facts.model
            line.stream = facts.stream
        if entry is not None:
            line.prompt_tokens = entry.prompt_tokens
            line.cached_tokens = entry.cached_tokens
            line.output_tokens = entry.output_tokens
            if entry.first_token_at is not None:
                line.first_token_seconds = round(entry.first_token_at - life.started_at, _DIGITS)
        if life.trace_id:
            line.trace_id = f"{life.trace_id:032x}"
        return _encode(line)

    def _time(self, now_unix: float) -> str:
        second = int(now_unix)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{int((now_unix - second) * 1000):03d}Z"
