"""What the runs of a gateway will ask of its pools soon, looked at when the operator is told."""

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final, Protocol

from tidepool_router.workflow.core.coming import Course, announced

_log: Final = logging.getLogger("tidepool.workflow")
LOOK_SECONDS: Final = 1.0
# Of more runs than this some are looked at, evenly, and count for all.
MOST_RUNS: Final = 256


class Going(Protocol):
    """A run under way."""

    def course(self) -> Course:
        """Its calls from now on, as they were foreseen when something last happened in it."""


class Foretelling:
    """Of the runs that are `active`. What was found holds for a second."""

    def __init__(self, active: Mapping[str, Going], now: Callable[[], float] = monotonic) -> None:
        self._active = active
        self._now = now
        self._looked_at = float("-inf")
        self._found: Mapping[str, int] = {}

    def coming(self) -> Mapping[str, int]:
        """Calls by pool, beyond those in flight."""
        now = self._now()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            going = list(self._active.values())
            some = going[:: -(-len(going) // MOST_RUNS) or 1]
            try:
                self._found = announced([one.course() for one in some], now, len(going))
            except Exception:  # the report tells of held requests, too: a defect here must not keep it back
                self._found = {}
                _log.exception("what runs will ask soon is not known; please report it")
        return self._found
