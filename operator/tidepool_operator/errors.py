"""Errors of the operator.

OperatorError
├── ConfigurationError         the operator's own settings or access are wrong; a person must act
├── WatchesEnded               kopf has ended; for good with its kinds or rights: the process must start anew
├── NotLeader                  a write was stopped: this process does not hold the Lease (any more)
└── ApiError                   the API server did not do what was asked
    ├── NotFound               404
    ├── Conflict               409
    ├── Expired                410: a list that took too long to page through; it has to be begun anew
    ├── Forbidden              401, 403: RBAC or credentials
    ├── Invalid                400, 405, 413, 415, 422: the request is refused; `message` is the server's own
    ├── TooManyRequests        429; `retry_after_seconds` when the server named it
    └── Unavailable            5xx, timeouts, broken connections
"""


class OperatorError(Exception):
    """Whatever the operator raises on purpose."""


class ConfigurationError(OperatorError):
    """The operator's own settings or access are wrong."""


class WatchesEnded(OperatorError):
    """kopf ended without being asked to."""


class NotLeader(OperatorError):
    """A write was stopped because this process does not hold the Lease."""


class ApiError(OperatorError):
    """The API server refused or failed; `status` is 0 when no answer came."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class NotFound(ApiError):
    """The object, or its kind, does not exist."""


class Conflict(ApiError):
    """Somebody else changed the object first, or it exists already."""


class Expired(ApiError):
    """What was read from is too old by now: begin anew."""


class Forbidden(ApiError):
    """The operator's service account may not do this, or its token is not accepted."""


class Invalid(ApiError):
    """The request itself is refused; asking again cannot help."""


class TooManyRequests(ApiError):
    """The API server asks for patience."""

    def __init__(self, message: str, *, status: int = 429, retry_after_seconds: float | None = None) -> None:
        super().__init__(message, status=status)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(ApiError):
    """No answer, or one that says the server is unwell."""
