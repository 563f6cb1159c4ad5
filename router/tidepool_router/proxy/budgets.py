"""Budgets that all requests of a process share: memory for replays, and retries."""

from typing import Final

# A fifth of the requests may be retried in the long run, and this many at once when pods of a busy pool go down.
_RETRIES_PER_REQUEST: Final = 0.2
_RETRIES_AT_ONCE: Final = 100.0


class ReplayMemory:
    """Bytes of bodies that are kept after they were sent, in case they must be sent again."""

    def __init__(self, request_bytes: int, total_bytes: int) -> None:
        self.held_bytes = 0
        self._request_bytes = request_bytes
        self._total_bytes = total_bytes

    def take(self, size: int) -> bool:
        """Whether a body may be kept; the caller owes a `give` of the same size when it was True."""
        if size > self._request_bytes or self.held_bytes + size > self._total_bytes:
            return False
        self.held_bytes += size
        return True

    def give(self, size: int) -> None:
        """The body has been let go."""
        self.held_bytes -= size


class RetryBudget:
    """Retries must not double the load of a fleet that is failing: each request earns a part of one."""

    def __init__(self) -> None:
        self.left = _RETRIES_AT_ONCE

    def earn(self) -> None:
        """A request has come."""
        if self.left < _RETRIES_AT_ONCE:
            self.left += _RETRIES_PER_REQUEST

    def spend(self) -> bool:
        """Whether one more retry may be made."""
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True
