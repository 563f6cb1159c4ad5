"""Faults to order: what the engine double does wrong, to which requests and how often."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Wrong(StrEnum):
    """Kinds of misbehaviour: those of MID_STREAM show after some tokens, the others instead of an answer."""

    HANG = "hang"  # the request is read, no byte is ever answered
    RESET = "reset"  # RST instead of an answer
    CLOSE = "close"  # FIN instead of an answer
    STATUS = "status"  # an error of vLLM's shape with `status`
    SLOW_HEADERS = "slow-headers"  # one byte of the head each `seconds`, never the whole head
    NOT_HTTP = "not-http"  # bytes that are no HTTP
    NOT_JSON = "not-json"  # 200 and a body that is no JSON
    HANG_MID_STREAM = "hang-mid-stream"  # after `after_tokens` the stream stays open and silent
    RESET_MID_STREAM = "reset-mid-stream"
    CLOSE_MID_STREAM = "close-mid-stream"  # FIN without the last chunk
    ERROR_MID_STREAM = "error-mid-stream"  # vLLM's own error event, then [DONE]


MID_STREAM = frozenset(
    {Wrong.HANG_MID_STREAM, Wrong.RESET_MID_STREAM, Wrong.CLOSE_MID_STREAM, Wrong.ERROR_MID_STREAM}
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One order. `times` None: until taken back. `path` is a prefix of the paths that it hits."""

    wrong: Wrong
    times: int | None = 1
    path: str = "/v1/c"  # completions and chat/completions
    after_tokens: int = 1
    status: int = 500
    seconds: float = 0.05
    retry_after_seconds: int | None = None


class FaultPlan:
    """The orders that stand, first come first served."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._orders: list[list[object]] = []
        self.met = 0  # requests that a fault hit
        for fault in faults:
            self.order(fault)

    def order(self, fault: Fault) -> None:
        """Add an order after those that stand."""
        self._orders.append([fault, fault.times])

    def clear(self) -> None:
        """Behave again."""
        self._orders.clear()

    def take(self, path: str) -> Fault | None:
        """The fault for this request, used up by it."""
        for order in self._orders:
            fault, left = order
            assert isinstance(fault, Fault)
            if not path.startswith(fault.path):
                continue
            if isinstance(left, int):
                order[1] = left - 1
                if left <= 1:
                    self._orders.remove(order)
            self.met += 1
            return fault
        return None
