"""What a pool's conditions say of its scaling, and what to do where its figures are missing."""

from dataclasses import replace
from typing import Any

import pytest

from pools.objects import NOW, condition, observe, raw_pool
from tidepool_operator.pool.plan import plan
from tidepool_operator.scaling.model import Decision

SCALING = {"scaling": {"maxReplicas": 4}}
WELL = Decision(time=NOW, replicas=1, reason="WithinTargets", message="KV at 40%", binding="kv")
BLIND = Decision(time=NOW, replicas=1, reason="MetricsMissing", message="Prometheus: no answer", binding="data")


@pytest.mark.parametrize(
    ("spec", "decision", "expected", "says"),
    [
        ({}, None, ("False", "ScalingOff"), ["HPA or KEDA"]),
        (SCALING, None, ("False", "NoDecision"), ["not decided"]),
        (SCALING, WELL, ("True", "WithinTargets"), ["KV at 40%"]),
        # What is wrong, in Prometheus' words, and what to do.
        (SCALING, BLIND, ("False", "MetricsMissing"), ["Prometheus: no answer", "Check that Prometheus answers"]),
    ],
)
def test_scaling_is_active_while_there_are_figures_to_decide_by(
    spec: dict[str, Any], decision: Decision | None, expected: tuple[str, str], says: list[str]
) -> None:
    status = plan(replace(observe(raw_pool(**spec)), decision=decision), NOW).status

    assert status is not None
    found = condition(status, "ScalingActive")
    assert (found["status"], found["reason"]) == expected
    assert [words for words in says if words not in found["message"]] == []
