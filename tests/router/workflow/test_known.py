"""What a gateway says of the workflows that it is given."""

import copy
import logging
from typing import Any

import pytest

from tidepool_api.routing import FleetWorkflow
from tidepool_router.workflow.manager import Workflows

SPEC: dict[str, Any] = {
    "steps": [{"name": "a", "llm": {"pools": [{"name": "p"}], "messages": [{"role": "user", "content": "x"}]}}]
}
SOUND = FleetWorkflow(name="default/sound", spec=SPEC)


UNSOUND = FleetWorkflow(name="default/unsound", spec={"steps": [{"name": "a", "retries": 3}]})


def mistyped() -> FleetWorkflow:
    spec = copy.deepcopy(SPEC)
    spec["deadlin"] = "5s"
    spec["steps"][0]["llm"]["temperature"] = 0
    return FleetWorkflow(name="default/mistyped", spec=spec)


def test_fields_that_have_no_effect_are_named_once_sr_2946(caplog: pytest.LogCaptureFixture) -> None:
    nobody: Any = None
    workflows = Workflows(nobody, nobody, "test")

    with caplog.at_level(logging.WARNING, "tidepool.workflow"):
        for _ in range(3):  # as often as the document is read, and while its pool is not there
            workflows.apply([mistyped(), SOUND, UNSOUND], ["default/p"])
            workflows.apply([mistyped(), SOUND, UNSOUND], [])

    told = [record.__dict__ for record in caplog.records]
    assert [(one["workflow"], one["fields"]) for one in told] == [
        ("default/mistyped", "spec.steps[0].llm.temperature, spec.deadlin"),
        ("default/unsound", "spec.steps[0].retries"),
    ]
    # Whoever asks for the workflows reads it, too.
    assert workflows.known["default/mistyped"].ignored == ("spec.steps[0].llm.temperature", "spec.deadlin")
    assert not workflows.known["default/sound"].ignored
