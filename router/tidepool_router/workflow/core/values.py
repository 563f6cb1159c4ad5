"""What templates read: the input, and what came of the steps."""

from collections.abc import Mapping
from typing import Any

from tidepool_router.workflow.core.states import Phase
from tidepool_router.workflow.core.work import StepWork, Unit


def steps_read(works: Mapping[str, StepWork]) -> dict[str, Any]:
    """`steps` as templates see it: those that have ended, by name.

    `text` of a step that did not run is empty and `json` null, as in Argo. Of a step that fans out, `results` has
    every item in the order of the input, `json` their data (or texts), and `text` the texts of those that
    succeeded, one a line. A step that chooses has its `turns`, which are its `json`, too.
    """
    return {name: step_read(work) for name, work in works.items() if work.ended}


def step_read(work: StepWork) -> dict[str, Any]:
    """What came of one step."""
    status = work.phase.value
    if not work.plan.fans_out:
        unit = work.units[0] if work.units else Unit()
        found = {"text": unit.output.text, "json": unit.output.data, "status": status, "reason": work.reason}
        return {**found, "turns": unit.output.data or []} if work.plan.kind == "choose" else found
    done = [unit for unit in work.units if unit.phase is Phase.SUCCEEDED]
    return {
        "text": "\n".join(unit.output.text for unit in done),
        "json": [_data(unit) for unit in work.units],
        "results": [item_read(unit) for unit in work.units],
        "status": status,
        "reason": work.reason,
    }


def item_read(unit: Unit) -> dict[str, Any]:
    """One of `results`, which is also what flows on to a step that takes them."""
    return {"text": unit.output.text, "json": unit.output.data, "status": unit.phase.value}


def _data(unit: Unit) -> Any:  # noqa: ANN401 - JSON
    if unit.phase is not Phase.SUCCEEDED:
        return None
    return unit.output.text if unit.output.data is None else unit.output.data
