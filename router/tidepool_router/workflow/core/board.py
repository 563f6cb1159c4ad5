"""What all frames of one run share, and what a frame is to those around it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidepool_api.workflow import Measure
from tidepool_router.workflow.core.plan import Plan
from tidepool_router.workflow.core.states import Effect, Ending, Key

if TYPE_CHECKING:
    from tidepool_router.workflow.core.frame import Frame

# Workflows that run workflows, and picks of picks; it also ends what would run itself.
MAX_DEPTH: Final = 6
# Tries that a run may make, whatever fan-outs, picks, workflows and retries come to when they are multiplied; and
# those of its exit step.
MAX_CALLS: Final = 10_000
EXIT_CALLS: Final = 100
_MOST_TOLD: Final = 20


class Outer(Protocol):
    """What a frame is part of."""

    def saves(self, measure: Measure) -> bool:
        """Whether it does without, for its own budget or one above."""

    def used(self, tokens: int, now: float) -> None:
        """Tokens were used inside."""


class Nest(Outer, Protocol):
    """What a unit of work is made of, in place of one call: a workflow, or the turns of a step that chooses."""

    tokens: int

    def begin(self, now: float) -> None:
        """Start."""

    def stop(self, reason: str, now: float) -> None:
        """End it. Nothing is begun any more but exit steps of workflows."""

    def ending(self) -> Ending:
        """How it has ended."""


@dataclass(slots=True)
class Board:
    """`known`: endings of an earlier life, until they are taken. `effects`: what is to be done next.

    `frames`: those that have not finished, by scope, the outer ones before the inner ones. `saved`: what was done
    without for a budget, in words, in the order in which it came to it. `calls_left`: tries that it may make,
    `most_calls` in all.
    """

    known: dict[Key, Ending] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    frames: dict[str, "Frame"] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)
    calls_left: int = MAX_CALLS
    most_calls: int = MAX_CALLS

    def began(self, unit: str) -> bool:
        """Whether an earlier life has ended some of this step, unit of a step, or turn: it had begun it, then."""
        return any(_part_of(key, unit) for key in self.known)

    def told(self) -> str:
        """What the run did without; empty where that is nothing."""
        if not self.saved:
            return ""
        more = len(self.saved) - _MOST_TOLD
        rest = f" and {more} more" if more > 0 else ""
        return f"degraded for the budget: {', '.join(self.saved[:_MOST_TOLD])}{rest}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a frame stands: its scope, what it is part of, and whom to tell when it is over.

    `above`: what its templates read; None: `given` and its own steps. `turn`: its one step is asked what it picks.
    `bound`: its deadline in words.
    """

    over: Callable[[float], None]
    scope: str = ""
    outer: Outer | None = None
    given: Any = None
    above: dict[str, Any] | None = None
    turn: int = 0
    bound: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A step that chooses, or that runs a workflow, `plan`, on `given`, begins."""

    plan: Plan | None = None
    given: Any = None


def spent(known: Mapping[Key, Ending], inside: str = "", but_for: str = "") -> int:
    """Tokens that endings tell of, those whose `within` begins so; each is counted once, where it was used.

    `but_for`: not those of this step.
    """
    chosen = [key for key in known if key.within.startswith(inside) and not (but_for and _part_of(key, but_for))]
    wholes = {owner for key in chosen for owner in key.owners()}
    return sum(known[key].output.tokens for key in chosen if str(key) not in wholes)


def _part_of(key: Key, unit: str) -> bool:
    return unit in (key.path, str(key)) or key.within.startswith(tuple(unit + mark for mark in "#.[/"))
