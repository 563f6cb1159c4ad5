"""What an expression of `depends` comes to, when all steps that it names have ended."""

from collections.abc import Mapping

from tidepool_api.language import depends
from tidepool_api.language.depends import Ended, Expression, Result
from tidepool_router.workflow.core.states import BROKEN, Phase
from tidepool_router.workflow.core.work import StepWork


def holds(expression: Expression, works: Mapping[str, StepWork]) -> bool:
    """Whether it is true."""
    match expression:
        case Ended():
            return _ended(expression, works[expression.step])
        case depends.Not(operand):
            return not holds(operand, works)
        case depends.All(operands):
            return all(holds(operand, works) for operand in operands)
        case depends.Any(operands):
            return any(holds(operand, works) for operand in operands)


def told(expression: Expression, works: Mapping[str, StepWork]) -> str:
    """Why a step was omitted, for people."""
    names = dict.fromkeys(end.step for end in depends.ends(expression))
    found = ", ".join(f"{name} is {works[name].phase}" for name in names)
    return f"depends ({expression}) came out false: {found}"


def _ended(end: Ended, work: StepWork) -> bool:
    if end.result is None:
        return work.phase in (Phase.SUCCEEDED, Phase.SKIPPED)
    if end.result is Result.ANY_SUCCEEDED:
        return any(unit.phase is Phase.SUCCEEDED for unit in work.units)
    if end.result is Result.ALL_FAILED:
        return bool(work.units) and all(unit.phase in BROKEN for unit in work.units)
    return work.phase.value == end.result.value
