"""A run again, to the same result: its tools' answers are those of the first one, and models are asked alike.

The endings of tools stand for their calls, as endings do when a run is taken over. A seed makes a model's answer
the same where it is asked the same, and each call goes to the pool that answered it then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from zlib import crc32

from tidepool_router.workflow.core.plan import Plan
from tidepool_router.workflow.core.states import Call, Ending, Key

_TOOLS: Final = frozenset(("http", "mcp"))


@dataclass(frozen=True, slots=True)
class Replay:
    """Of the run `of`. `asked`: who answered a call, and with which seed, by the texts of keys."""

    of: str
    asked: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For the journal."""
        return {"of": self.of, "asked": self.asked}

    @staticmethod
    def read(raw: Mapping[str, Any] | None) -> "Replay | None":
        """From the journal."""
        return (
            None
            if raw is None
            else Replay(raw["of"], {key: (one[0], one[1]) for key, one in raw["asked"].items()})
        )


def replay_of(run: str, endings: Mapping[Key, Ending]) -> Replay:
    """Of a run that ended so."""
    made = {str(key): ending.output for key, ending in endings.items()}
    return Replay(run, {key: (output.pool, output.seed) for key, output in made.items() if output.pool})


def of_tools(endings: Mapping[Key, Ending], plan: Plan, plans: Mapping[str, Plan]) -> dict[Key, Ending]:
    """Those of tools. `plans`: of the workflows that are run inside, by name."""
    tools = {key: ending for key, ending in endings.items() if _kind(key, plan, plans) in _TOOLS}
    # They took their time then.
    return {key: replace(ending, began=None, ended=None) for key, ending in tools.items()}


def differing(first: Mapping[Key, Ending], second: Mapping[Key, Ending]) -> list[str]:
    """Units that ended otherwise, or in one of two runs alone, in the order of the first one."""

    def made(ending: Ending | None) -> object:
        return None if ending is None else (ending.phase, ending.output.text, ending.output.data)

    return [str(key) for key in {**first, **second} if made(first.get(key)) != made(second.get(key))]


def seed_of(seed: int, call: Call) -> int:
    """Of one try of a run's call: another one for each, for an answer that did not fit would come again."""
    return crc32(f"{seed} {call.key} {call.attempt}".encode()) >> 1


def _kind(key: Key, plan: Plan, plans: Mapping[str, Plan]) -> str:
    """Which kind of step a key is of; empty where nobody knows it."""
    here: Plan | None = plan
    for part in key.within.split("/")[:-1]:
        name, inside, _ = part.partition("#")
        step = None if here is None or not inside else _step(here, name.partition("[")[0])
        if step is not None and step.workflow is not None:
            here = plans.get(step.workflow.name)
    found = None if here is None else _step(here, key.step)
    return next((kind for kind in _TOOLS if getattr(found, kind, None) is not None), "")


def _step(plan: Plan, name: str) -> Any:  # noqa: ANN401 - a step or None
    return next((step for step in plan.spec.steps if step.name == name), None)
