"""Where one step of a run stands: its units of work, one, or one an item."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidepool_router.workflow.core.plan import StepPlan
from tidepool_router.workflow.core.states import BROKEN, ENDED, Key, Output, Phase


@dataclass(slots=True)
class Unit:
    """One unit of work. `ready`: its item is there. `until`: the end of the try under way.

    `tokens`: what the units that it is made of have used, in all tries.
    """

    value: Any = None
    ready: bool = True
    phase: Phase = Phase.PENDING
    reason: str = ""
    output: Output = field(default_factory=Output)
    attempt: int = 0
    until: float = 0.0
    wake_at: float = 0.0
    timed_out: bool = False
    tokens: int = 0


class StepWork:
    """One step."""

    __slots__ = ("calling", "expanding", "opened", "phase", "plan", "reason", "units", "within")

    def __init__(self, plan: StepPlan, within: str = "") -> None:
        self.plan = plan
        self.within = within
        self.phase = Phase.PENDING
        self.reason = ""
        self.units: list[Unit] = []
        self.opened = False  # the units are known
        self.calling = False
        self.expanding = False  # somebody makes the items

    @property
    def path(self) -> str:
        """Where it is in the run."""
        return self.within + self.plan.name

    @property
    def ended(self) -> bool:
        """Whether it is over, for good."""
        return self.phase in ENDED

    def open(self, items: Sequence[Any] | None) -> None:
        """The units: one for each item, or one. What takes the items of another step waits for each."""
        self.phase, self.opened = Phase.RUNNING, True
        ready = self.plan.source is None
        self.units = [Unit()] if items is None else [Unit(value, ready) for value in items]

    def keyed(self) -> Iterator[tuple[Key, Unit]]:
        """Units with their keys, in the order of the items."""
        for index, unit in enumerate(self.units):
            yield Key(self.plan.name, index if self.plan.fans_out else None, self.within), unit

    def running(self) -> Iterator[tuple[Key, Unit]]:
        """Units with a try under way."""
        return ((key, unit) for key, unit in self.keyed() if unit.phase is Phase.RUNNING)

    def unit(self, key: Key) -> Unit | None:
        """The unit of a key of this step."""
        index = key.item or 0
        return self.units[index] if index < len(self.units) else None

    def judge(self) -> tuple[Phase, str]:
        """How the step has ended, by its units, which all have."""
        broken = [(key, unit) for key, unit in self.keyed() if unit.phase in BROKEN]
        if not self.plan.fans_out:
            return self.units[0].phase, self.units[0].reason
        if broken:
            key, unit = broken[0]
            return Phase.FAILED, f"{len(broken)} of {len(self.units)} items, the first {key}: {unit.reason}"
        if self.units and all(unit.phase is Phase.SKIPPED for unit in self.units):
            if self.plan.source is not None:
                return Phase.OMITTED, f"no item of {self.plan.source} came"
            return Phase.SKIPPED, "every item was skipped"
        return Phase.SUCCEEDED, ""

    def end(self, phase: Phase, reason: str) -> None:
        """Over, for good."""
        self.phase, self.reason, self.expanding = phase, reason, False

    def __repr__(self) -> str:
        return f"<{self.plan.name} {self.phase} {self.reason}>"
