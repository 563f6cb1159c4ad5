"""What the language has and no gateway runs yet: refused, never ignored. Take an entry out with the change that
builds its part."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tidepool_api.language.problems import Problem, Reason
from tidepool_api.language.steps import mapping, outline

_KINDS: Final = {
    "mcp": "call the tool with an http step, or leave the step out",
    "workflow": "write its steps into this workflow",
    "choose": "let depends and when say what comes next",
}


def not_yet(workflow: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of a workflow, as the API server gives it, that a later release will not have."""
    for step in outline(mapping(workflow, "spec")).steps:
        for kind in step.kinds:
            if kind in _KINDS:
                message = f"steps of this kind cannot be run yet; {_KINDS[kind]}"
                yield Problem(f"{step.path}.{kind}", message, Reason.NOT_BUILT_YET)
