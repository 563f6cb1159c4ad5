"""What a unit of work is made of, where it is not one call: a workflow, or turns in which a model picks steps.

A turn is two frames, one after the other: the question what to do, and the step that was picked. So a pick is
asked for, tried again, timed and kept like every other unit, and so is what runs then.
"""

from typing import Any, Final

from tidepool_api.workflow import Measure
from tidepool_router.workflow.core.board import Entry, Place, spent
from tidepool_router.workflow.core.frame import Frame
from tidepool_router.workflow.core.plan import Plan
from tidepool_router.workflow.core.states import BROKEN, Ending, Key, Output, Phase
from tidepool_router.workflow.core.values import step_read
from tidepool_router.workflow.core.work import Unit

# Members of a model's answer: the step that it picks, null for none, and what it has to say then.
PICK: Final = "step"
SAID: Final = "text"


def nested(outer: Frame, key: Key, unit: Unit, entry: Entry, until: float, now: float) -> "Frame | Turns":
    """The inside of a unit of `outer`: the workflow of the entry, or turns where it has none."""

    def over(now: float) -> None:
        outer.nest_over(key, now)

    if entry.plan is None:
        return Turns(outer, key, unit.value, until)
    own = now + entry.plan.deadline_seconds
    step = outer.step(key.step)
    bound = entry.plan.spec.deadline if own <= until or step.step.timeout is None else step.step.timeout
    place = Place(over, f"{key}#{unit.attempt}/", outer, entry.given, bound=bound)
    return Frame(entry.plan, outer.board, place, min(own, until), outer.nesting)


class Turns:
    """The turns of one unit, `key`, of a step of `outer` that chooses; `item` is its item."""

    def __init__(self, outer: Frame, key: Key, item: Any, until: float) -> None:  # noqa: ANN401 - JSON
        self.tokens = spent(outer.board.known, f"{key}.")
        self._outer = outer
        self._key = key
        self._item = item
        self._until = until
        self._step = outer.step(key.step)
        self._turns: list[dict[str, Any]] = []
        self._pick: dict[str, Any] = {}
        self._frame: Frame | None = None
        self._going = False
        self._ending: Ending | None = None

    def saves(self, measure: Measure) -> bool:
        """Outer."""
        return self._outer.saves(measure)

    def used(self, tokens: int, now: float) -> None:
        """Outer."""
        self.tokens += tokens
        self._outer.used(tokens, now)

    def begin(self, now: float) -> None:
        """Nest."""
        self._ask(now)

    def stop(self, reason: str, now: float) -> None:
        """Nest."""
        self._ending = Ending(Phase.OMITTED, reason)
        if self._frame is not None:
            self._frame.stop(reason, now)

    def ending(self) -> Ending:
        """Nest."""
        assert self._ending is not None  # noqa: S101 - it is over
        output = Output(self._ending.output.text, self._turns, self.tokens)
        return Ending(self._ending.phase, self._ending.reason, output)

    def _ask(self, now: float) -> None:
        plan = self._outer.plan.asking[self._step.name]
        self._open(plan, len(self._turns) + 1, {"item": self._item} if self._step.fans_out else {}, now)

    def _open(self, plan: Plan, turn: int, more: dict[str, Any], now: float) -> None:
        """A frame of the turn that is next; with `turn` the question, without it what was picked."""
        outer = self._outer.values()
        own = {"text": "", "json": None, "status": Phase.RUNNING.value, "reason": "", "turns": list(self._turns)}
        above = {**outer, "steps": {**outer["steps"], self._step.name: own}, **more}
        scope = f"{self._key}.{len(self._turns) + 1}/"
        place = Place(self._go, scope, self, above=above, turn=turn)
        self._frame = Frame(plan, self._outer.board, place, self._until, self._outer.nesting)
        self._frame.begin(now)

    def _go(self, now: float) -> None:
        """A frame is over. What is known of an earlier life ends at once, so this loops and nests no calls."""
        if self._going:
            return
        self._going = True
        while self._frame is not None and self._frame.finished:
            frame, self._frame = self._frame, None
            if self._ending is None:
                came_of = self._came_of_question if frame.place.turn else self._came_of_step
                self._ending = came_of(frame, now)
        self._going = False
        if self._frame is None and self._ending is not None:
            self._outer.nest_over(self._key, now)

    def _came_of_question(self, frame: Frame, now: float) -> Ending | None:
        work = frame.works[self._step.name]
        if work.phase is not Phase.SUCCEEDED:
            return Ending(work.phase, work.reason)
        answer = work.units[0].output.data
        self._pick = answer if isinstance(answer, dict) else {}
        name = self._pick.get(PICK)
        if name is None:
            return Ending(Phase.SUCCEEDED, "", Output(str(self._pick.get(SAID) or "")))
        choose = self._step.step.choose
        if choose is None or name not in choose.among:
            return Ending(Phase.FAILED, f"picked {str(name)[:80]!r}, which is not among its steps")
        more = {"pick": {member: value for member, value in self._pick.items() if member != PICK}}
        self._open(self._outer.plan.alone[name], 0, more, now)
        return None

    def _came_of_step(self, frame: Frame, now: float) -> Ending | None:
        work = next(iter(frame.works.values()))
        pick = {member: value for member, value in self._pick.items() if member != PICK}
        self._turns.append({"step": work.plan.name, "pick": pick, **step_read(work)})
        if work.phase in BROKEN and not work.plan.soft:
            return Ending(work.phase, f"turn {len(self._turns)}: {work.plan.name} {work.phase}: {work.reason}")
        choose, turns = self._step.step.choose, len(self._turns)
        if choose is None or turns >= choose.max_turns:
            return Ending(Phase.SUCCEEDED)
        if self.saves(Measure.FEWER_BRANCHES) and not self._outer.board.began(f"{self._key}.{turns + 1}"):
            self._outer.board.saved.append(f"turns of {self._key} after {turns}")
            return Ending(Phase.SUCCEEDED, f"stopped after {turns} turns, for the budget")
        self._ask(now)
        return None
