"""All errors of the router that cross a module.

RouterError
├── SettingsError          a file, flag or document that cannot be used; the message names the field
├── NotYet                 a large body whose front does not say where it goes: read it whole
├── Refused                a request that gets an answer of ours; `refusal` says which
│   ├── QueueFull          429: no room to wait
│   ├── TooLate            429: would not be served within its deadline
│   ├── QueueTimeout       503: waited as long as it may
│   └── NoPods             503: nothing to send to and nothing that wakes
└── UpstreamError          an engine or sidecar did not answer; `kind` as in Reservation.failed
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

FailureKind = Literal["connect", "reset", "first_byte_timeout", "http_5xx"]
FAILURE_KINDS: Final[tuple[FailureKind, ...]] = get_args(FailureKind)


class RouterError(Exception):
    """Base of everything that the router raises on purpose."""


class SettingsError(RouterError):
    """A setting cannot be used; the message names it and says what would do."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer of the router's own: HTTP status, OpenAI error type, code, and a sentence for the client.

    `allow` lists the methods that a path takes (405 owes it: RFC 9110, 15.5.6).
    """

    status: int
    type: str
    code: str
    message: str
    retry_after_seconds: float | None = None
    allow: str = ""


class NotYet(RouterError):
    """The front of a large body does not say all that is asked of it: the request waits for the whole."""


class Refused(RouterError):
    """The request is answered by the router itself."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class QueueFull(Refused):
    """The queue is at its bound of requests or bytes."""

    def __init__(self, message: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(Refusal(429, "rate_limit_error", "queue_full", message, retry_after_seconds))


class TooLate(Refused):
    """At the measured rate the request would not be served within the deadline that it names."""

    def __init__(self, message: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(Refusal(429, "rate_limit_error", "deadline_unmeetable", message, retry_after_seconds))


class QueueTimeout(Refused):
    """The request waited as long as the pool's queue lets it."""

    def __init__(self, message: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(Refusal(503, "service_unavailable", "queue_timeout", message, retry_after_seconds))


class NoPods(Refused):
    """The pool has no pod that takes requests, and none is on its way."""

    def __init__(self, message: str, retry_after_seconds: float = 5.0) -> None:
        super().__init__(Refusal(503, "service_unavailable", "no_pods", message, retry_after_seconds))


class UpstreamError(RouterError):
    """An engine or a sidecar failed before the answer was complete.

    `refused`: nobody listens there, which says more than a connection that did not come about. It is told in a
    field because compiled code leaves no `__cause__`.
    """

    def __init__(self, kind: FailureKind, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.refused = refused
