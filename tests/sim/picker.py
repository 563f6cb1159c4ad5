"""What every picker of the simulator is: ours through its adapter, and each baseline."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from .request import Request


@dataclass(frozen=True, slots=True)
class Gauges:
    """One scrape of an engine's metrics page."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0


class Board(Protocol):
    """Where a picker reads the engines' gauges, as old as its scrape interval and the world's delay make them."""

    def gauges(self, now: float) -> Sequence[Gauges]:
        """One a pod, in order."""


class SimPicker(Protocol):
    """A gateway's choice of a pod; pods go by number. One instance a gateway, which sees its own requests only.

    Every request that was given a pod ends by exactly one `ended`; in between `first_token`, unless it failed.
    """

    def pick(self, request: Request, now: float, exclude: Collection[int] = ()) -> int | None:
        """The pod, with the reservation made; `exclude` failed this request. None: it is held here."""

    def released(self, now: float) -> list[tuple[Request, int]]:
        """Held requests that have got their pod since the last call."""

    def refused(self, now: float) -> list[Request]:
        """Held requests that were turned away since the last call."""

    def first_token(self, request: Request, pod: int, now: float) -> None:
        """Its first chunk came."""

    def ended(self, request: Request, pod: int, now: float, *, failed: bool, cached_tokens: int) -> None:
        """Its answer is whole, or an error."""


class Immediate:
    """Defaults for pickers that hold nothing."""

    def released(self, now: float) -> list[tuple[Request, int]]:
        """Nothing was held."""
        return []

    def refused(self, now: float) -> list[Request]:
        """Nothing was held."""
        return []

    def first_token(self, request: Request, pod: int, now: float) -> None:
        """Most do not look."""

    def ended(self, request: Request, pod: int, now: float, *, failed: bool, cached_tokens: int) -> None:
        """Most do not look."""
