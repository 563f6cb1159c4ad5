"""States of steps and runs, what is asked of the rim, and what comes back."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tidepool_api.language.depends import Result
from tidepool_api.workflow import Measure


class Phase(StrEnum):
    """Where a step, or one item of it, stands. The words of what has ended are those of `depends`."""

    PENDING = "Pending"
    RUNNING = "Running"
    WAITING = "Waiting"  # for its next try
    SUCCEEDED = Result.SUCCEEDED.value
    FAILED = Result.FAILED.value
    ERRORED = Result.ERRORED.value  # a template or an answer that cannot be used
    SKIPPED = Result.SKIPPED.value  # `when` came out false
    OMITTED = Result.OMITTED.value  # `depends` came out false, or the run was over before


ENDED: Final = frozenset((Phase.SUCCEEDED, Phase.FAILED, Phase.ERRORED, Phase.SKIPPED, Phase.OMITTED))
BROKEN: Final = frozenset((Phase.FAILED, Phase.ERRORED))


class Verdict(StrEnum):
    """How a run stands."""

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


@dataclass(frozen=True, slots=True)
class Key:
    """One unit of work, done at most once to its end: a step, or one item of a step that fans out.

    `within` says where in the run: empty for the workflow's own steps, `sub#1/` in the first try of the step `sub`
    that runs a workflow, `look[0].2/` in turn 2 of item 0 of the step `look` that chooses. What a model picked in
    that turn is `look[0].2/look`, and what ran then `look[0].2/NAME`.
    """

    step: str
    item: int | None = None
    within: str = ""

    @classmethod
    def at(cls, path: str, item: int | None) -> "Key":
        """The key whose `path` and item these are."""
        within, slash, step = path.rpartition("/")
        return cls(step, item, within + slash)

    @property
    def path(self) -> str:
        """Where its step is in the run."""
        return self.within + self.step

    def owners(self) -> Iterator[str]:
        """The units that it is a part of, as texts of their keys, the outermost first."""
        parts = self.within.split("/")[:-1]
        for depth, part in enumerate(parts):
            owner = part[: max(part.rfind("."), part.rfind("#"))]
            yield "/".join((*parts[:depth], owner))

    def __str__(self) -> str:
        return self.path if self.item is None else f"{self.path}[{self.item}]"


@dataclass(frozen=True, slots=True)
class Output:
    """What a step made: `text`, and `data` where the text is JSON; `tokens` that all its tries used together.

    `pool`: who answered, where a model did; `seed`: with which it was asked.
    """

    text: str = ""
    data: Any = None
    tokens: int = 0
    pool: str = ""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How one unit of work ended, for good: what the journal keeps.

    `began`, its first try, and `ended` are in Unix seconds, for people; nothing is decided by them.
    """

    phase: Phase
    reason: str = ""
    output: Output = field(default_factory=Output)
    began: float | None = field(default=None, compare=False)
    ended: float | None = field(default=None, compare=False)


# What a run asks for.


@dataclass(frozen=True, slots=True)
class Expand:
    """Make the items of this step (`withParam`): answer with `expanded` or `unexpandable`."""

    step: str
    within: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """Do this, as try number `attempt` from 1, until `until` at the latest. `cheap`: of candidates the one of
    least quality is to be asked.

    Answer with `ended` when it is over for good (the journal has it by then), or with `failed`. A step that runs a
    workflow, or that chooses, is answered with `entered`, where its own condition holds. `turn`, from 1: the
    step chooses, and is asked for what it picks in that turn.
    """

    key: Key
    attempt: int
    until: float
    value: Any = None  # the item
    cheap: bool = False
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Keep:
    """A unit that is made of others has ended so: write it down, and answer with `ended`."""

    key: Key
    ending: Ending


@dataclass(frozen=True, slots=True)
class TimeOut:
    """This try has had its time: stop it, and answer with `failed`."""

    key: Key
    attempt: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this at once; nobody waits for its answer."""

    key: Key


@dataclass(frozen=True, slots=True)
class Compose:
    """Make the answer of the run, or of a workflow in it: answer with `composed` or `uncomposable`."""

    within: str = ""


@dataclass(frozen=True, slots=True)
class Save:
    """From now on, `tokens` used, the workflow does without this: nothing to do but to write it down."""

    measure: Measure
    tokens: int
    within: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over, its exit step too."""


Effect = Expand | Call | Keep | TimeOut | Stop | Compose | Save | Finish
