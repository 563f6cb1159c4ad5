"""What a workflow does without, one measure after the other, as the tokens of its budget are used."""

from collections.abc import Iterator

from tidepool_api.workflow import Measure
from tidepool_router.workflow.core.board import Board, spent
from tidepool_router.workflow.core.plan import Plan
from tidepool_router.workflow.core.states import Save


class Saving:
    """Of one frame, whose `scope` is told. `measures`: what is in force, and how many tokens were used by then.

    A run that is taken over has used what its endings tell of, so it goes on doing without. `overspent`: why it
    had failed by then, whatever its exit step used since; empty where it had not.
    """

    def __init__(self, plan: Plan, board: Board, scope: str, tokens: int) -> None:
        self._plan = plan
        self._board = board
        self._scope = scope
        exit_step = "" if plan.exit is None else scope + plan.exit.name
        self.overspent = self.failure(spent(board.known, scope, exit_step))
        self.measures: dict[Measure, int] = {}
        for measure in self._due(tokens):
            self._begin(measure, tokens)

    def failure(self, tokens: int) -> str:
        """Why the run fails at so many tokens; empty where it does not."""
        budget = self._plan.budget_tokens
        if budget is None or self._plan.measures or tokens < budget:
            return ""
        return f"BudgetExceeded: {tokens} tokens of {budget} are used"

    def begun(self, tokens: int) -> Iterator[Measure]:
        """Measures that begin at so many tokens, each told of before the next one."""
        for measure in self._due(tokens):
            self._begin(measure, tokens)
            self._board.effects.append(Save(measure, tokens, self._scope))
            yield measure

    def _due(self, tokens: int) -> list[Measure]:
        return [one for one, at in self._plan.measures if tokens >= at and one not in self.measures]

    def _begin(self, measure: Measure, tokens: int) -> None:
        self.measures[measure] = tokens
        if measure is Measure.SMALLER_MODEL:
            inside = f" in {self._scope}" if self._scope else ""
            self._board.saved.append(f"all but the pools of least quality from {tokens} tokens on{inside}")
