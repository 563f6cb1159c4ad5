"""What happened in a run as its journal has it: for whoever asks a gateway that has not seen it happen."""

from collections.abc import Mapping
from typing import Any

from tidepool_router.workflow.core.states import Ending, Key, Phase


def step_event(key: Key, phase: Phase, at: float, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """A unit begins, waits or has ended; `at` in Unix seconds."""
    return {"type": "step", "step": key.path, "item": key.item, "phase": phase.value, **more, "at": round(at, 3)}


def past(endings: Mapping[Key, Ending], now: float) -> list[dict[str, Any]]:
    """Beginnings and ends of units, in the order of time; now, where an earlier release wrote down no times."""
    found = []
    for key, ending in endings.items():
        told = {"reason": ending.reason, "tokens": ending.output.tokens}
        if ending.began is not None:
            found.append(step_event(key, Phase.RUNNING, ending.began))
        found.append(step_event(key, ending.phase, now if ending.ended is None else ending.ended, **told))
    return sorted(found, key=lambda event: event["at"])
