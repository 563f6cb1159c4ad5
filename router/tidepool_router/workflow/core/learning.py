"""What a run teaches the profiles: how long its steps took, what they used, and how often they ran."""

from typing import Final

from tidepool_router.workflow.core.profiles import Profiles
from tidepool_router.workflow.core.run import Run
from tidepool_router.workflow.core.states import Ending, Key, Phase, Verdict

_RAN: Final = frozenset((Phase.SUCCEEDED, Phase.FAILED, Phase.ERRORED))


class Learning:
    """Of one run."""

    def __init__(self, run: Run, profiles: Profiles) -> None:
        self._run = run
        self._profiles = profiles
        # When units under way did.
        self.since: dict[Key, float] = {}

    def began(self, key: Key, now: float) -> None:
        """A unit is called; the first try counts."""
        self.since.setdefault(key, now)

    def ended(self, key: Key, ending: Ending, now: float) -> None:
        """A unit has ended, and the run does not know it yet."""
        began = self.since.pop(key, None)
        frame = self._run.frame(key.within)
        if began is not None and frame is not None and ending.phase is Phase.SUCCEEDED:
            tokens = ending.output.tokens
            self._profiles.worked(frame.plan.name, key.step, tokens=tokens, seconds=now - began, now=now)

    def finished(self, now: float) -> None:
        """The run is over. Of one that failed, what did not run says nothing."""
        if self._run.verdict is Verdict.SUCCEEDED:
            for name, work in self._run.works.items():
                ran = sum(unit.phase in _RAN for unit in work.units)
                self._profiles.ended(self._run.plan.name, name, ran, now)
