"""What a step that chooses is asked: which of its steps next, with what, or nothing more."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tidepool_router.workflow.core.plan import StepPlan
from tidepool_router.workflow.core.turns import PICK, SAID

# A model that does not come to an end would write until its context is full.
_TEXT: dict[str, Any] = {"type": "string", "maxLength": 4000}
# What a template reads of a pick is a text, or a number for tools that count.
_VALUE: dict[str, Any] = {"anyOf": [_TEXT, {"type": ["number", "boolean"]}]}


def schema(options: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """JSON Schema of the answer: one shape for each step that may be picked, and one for none."""
    nothing = _shape({"type": "null"}, {SAID: _TEXT})
    shapes = [_shape({"enum": [name]}, dict.fromkeys(reads, _VALUE)) for name, reads in options.items()]
    return {"anyOf": [*shapes, nothing]}


def messages(
    step: StepPlan, written: Sequence[Mapping[str, Any]], turns: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What the model is sent: how to answer, what the workflow says, and the `turns` so far.

    The turns come last, so that each question begins as the one before did, which engines remember.
    """
    found = [dict(one) for one in written]
    if found and found[0]["role"] == "system":
        found[0]["content"] = f"{found[0]['content']}\n\n{_how(step.options)}"
    else:
        found.insert(0, {"role": "system", "content": _how(step.options)})
    for turn in turns:
        pick = {PICK: turn["step"], **turn["pick"]}
        came = turn["text"] if turn["status"] == "Succeeded" else turn["reason"]
        found.append({"role": "assistant", "content": json.dumps(pick, ensure_ascii=False)})
        found.append({"role": "user", "content": f"{turn['step']} {turn['status']}: {came}"})
    return found


def _shape(pick: dict[str, Any], members: dict[str, Any]) -> dict[str, Any]:
    properties = {PICK: pick, **members}
    closed = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed}


def _how(options: Mapping[str, Sequence[str]]) -> str:
    shapes = [json.dumps({PICK: name, **dict.fromkeys(reads, "...")}) for name, reads in options.items()]
    nothing = json.dumps({PICK: None, SAID: "..."})
    return (
        f"Say what to do next, as one JSON object: {' or '.join(shapes)}. "
        f"When nothing more is to be done, answer {nothing} with what you found."
    )
