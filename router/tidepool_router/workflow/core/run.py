"""One run: events in, effects out. What holds for each graph of steps in it: frame.py.

Each event is sent to the frame that it speaks of; one that has finished meanwhile has no use for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidepool_api.workflow import Measure
from tidepool_router.workflow.core.board import MAX_CALLS, Board, Entry, Place
from tidepool_router.workflow.core.frame import MAX_ITEMS, Frame
from tidepool_router.workflow.core.plan import Plan, StepPlan
from tidepool_router.workflow.core.states import Call, Effect, Ending, Finish, Key, Stop, Verdict
from tidepool_router.workflow.core.turns import nested
from tidepool_router.workflow.core.work import StepWork

__all__ = ["MAX_ITEMS", "Entry", "Run"]


class Run:
    """`ended_before` are the endings of an earlier life of this run, by key: they stand for calls.

    `given` is its input, `most_calls` the tries of calls that it may make.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        deadline: float,
        ended_before: Mapping[Key, Ending] | None = None,
        given: object = None,
        most_calls: int = MAX_CALLS,
    ) -> None:
        self.plan = plan
        self.deadline = deadline
        known = dict(ended_before or {})
        self._board = Board(known, calls_left=most_calls - len(known), most_calls=most_calls)
        place = Place(lambda _: self._board.effects.append(Finish()), given=given)
        self.root = Frame(plan, self._board, place, deadline, nested)

    # What is known of it.

    @property
    def verdict(self) -> Verdict:
        """How it stands."""
        return self.root.verdict

    @property
    def reason(self) -> str:
        """Why it did not succeed."""
        return self.root.reason

    @property
    def answer(self) -> str | None:
        """What it came to."""
        return self.root.answer

    @property
    def tokens(self) -> int:
        """What all its calls have used."""
        return self.root.tokens

    @property
    def measures(self) -> Mapping[Measure, int]:
        """What it does without for its budget, and how many tokens were used when that began."""
        return self.root.saving.measures

    @property
    def finished(self) -> bool:
        """Whether all is over, exit steps too."""
        return self.root.finished

    @property
    def works(self) -> Mapping[str, StepWork]:
        """The workflow's own steps."""
        return self.root.works

    @property
    def exit_work(self) -> StepWork | None:
        """The step that runs last."""
        return self.root.exit_work

    def frame(self, within: str) -> Frame | None:
        """The graph of steps at a scope, while it is under way."""
        return self.root if not within else self._board.frames.get(within)

    def frames(self) -> Iterator[Frame]:
        """All that are under way, the outer ones first."""
        yield from list(self._board.frames.values())

    def step(self, key: Key) -> StepPlan | None:
        """The step of a key, while its graph is under way."""
        frame = self.frame(key.within)
        return None if frame is None else frame.step(key.step)

    # Events. Each returns what to do now, in this order.

    def begin(self, now: float) -> list[Effect]:
        """Start."""
        self.root.begin(now)
        return self._taken()

    def expanded(self, step: str, items: Sequence[Any], now: float, within: str = "") -> list[Effect]:
        """The items of a step."""
        if (frame := self.frame(within)) is not None:
            frame.expanded(step, items, now)
        return self._taken()

    def unexpandable(self, step: str, why: str, now: float, within: str = "") -> list[Effect]:
        """The step's items cannot be made."""
        if (frame := self.frame(within)) is not None:
            frame.unexpandable(step, why, now)
        return self._taken()

    def entered(self, key: Key, attempt: int, entry: Entry, now: float) -> list[Effect]:
        """A step that runs a workflow, or that chooses, goes on as that."""
        if (frame := self.frame(key.within)) is not None:
            frame.entered(key, attempt, entry, now)
        return self._taken()

    def ended(self, key: Key, ending: Ending, now: float) -> list[Effect]:
        """A unit of work is over for good."""
        if (frame := self.frame(key.within)) is not None:
            frame.ended(key, ending, now)
        return self._taken()

    def retry_at(self, key: Key, attempt: int, now: float) -> float | None:
        """When a try that failed at `now` is made again; None: it is not, and the failure stands."""
        frame = self.frame(key.within)
        return None if frame is None else frame.retry_at(key, attempt, now)

    def failed(self, key: Key, attempt: int, at: float) -> list[Effect]:
        """A try failed, and is made again at the time that `retry_at` told."""
        if (frame := self.frame(key.within)) is not None:
            frame.failed(key, attempt, at)
        return self._taken()

    def used(self, tokens: int, now: float, within: str = "") -> list[Effect]:
        """Tokens that a call has used, whether it succeeded or not."""
        (self.frame(within) or self.root).used(tokens, now)
        return self._taken()

    def composed(self, answer: str, now: float, within: str = "") -> list[Effect]:
        """The answer of the run, or of a workflow in it."""
        if (frame := self.frame(within)) is not None:
            frame.composed(answer, now)
        return self._taken()

    def uncomposable(self, why: str, now: float, within: str = "") -> list[Effect]:
        """The answer cannot be made."""
        if (frame := self.frame(within)) is not None:
            frame.uncomposable(why, now)
        return self._taken()

    def cancel(self, reason: str, now: float) -> list[Effect]:
        """End now. Without effect when the run is over and only its exit step runs."""
        self.root.stop(reason, now)
        return self._taken()

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: deadlines, timeouts, waits between tries. The outer bounds go first."""
        for frame in self.frames():
            if not frame.finished:
                frame.tick(now)
        return self._taken()

    def next_wake(self) -> float | None:
        """When `tick` has something to do at the latest; None: the run is over."""
        if self.finished:
            return None
        return min((at for frame in self._board.frames.values() for at in frame.wakes()), default=self.deadline)

    def _taken(self) -> list[Effect]:
        effects, self._board.effects = self._board.effects, []
        stopped = {effect.key for effect in effects if isinstance(effect, Stop)}
        called = {effect.key for effect in effects if isinstance(effect, Call) and effect.key in stopped}
        if not called:
            return effects
        # Begun and stopped by one event: never begun.
        return [one for one in effects if not (isinstance(one, Call | Stop) and one.key in called)]
