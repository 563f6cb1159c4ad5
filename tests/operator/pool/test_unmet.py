"""What pools lack is a gauge of each, for alerts."""

from typing import Any

import pytest

from tidepool_operator.pool.unmet import unmet

ROOM = ("CapacityAvailable", "False", "InsufficientAccelerators")
NO_FIGURES = ("ScalingActive", "False", "MetricsMissing")


def pool(*conditions: tuple[str, str, str], refused: str = "", **metadata: Any) -> dict[str, Any]:
    told = [{"type": kind, "status": status, "reason": reason} for kind, status, reason in conditions]
    scaling = {"refused": {"replicas": 2, "reason": refused, "message": "m"}} if refused else {}
    status = {"conditions": told, "scaling": scaling}
    return {"metadata": {"namespace": "team", "name": "chat", **metadata}, "spec": {}, "status": status}


@pytest.mark.parametrize(
    ("raw", "gauges", "reason"),
    [
        (pool(ROOM), {'held_back{pool="team/chat",reason="InsufficientAccelerators"}'}, "pods wait for devices"),
        (
            pool(("CapacityAvailable", "True", "Enough"), refused="QuotaExceeded"),
            {'held_back{pool="team/chat",reason="QuotaExceeded"}'},
            "no pod waits, since none was asked for",
        ),
        (pool(ROOM, refused=ROOM[2]), set(unmet([pool(ROOM)])), "one cause, one series"),
        (pool(NO_FIGURES), {'figures_missing{pool="team/chat"}'}, "Prometheus is away"),
        (pool(("ScalingActive", "False", "ScalingOff")), set(), "somebody else scales it"),
        (pool(("CapacityAvailable", "False", "Starting")), set(), "nobody has to act"),
        (pool(ROOM, deletionTimestamp="2026-01-01T00:00:00Z"), set(), "it goes"),
        ({"metadata": {"namespace": "team", "name": "new"}, "spec": {}}, set(), "nobody has looked at it yet"),
    ],
)
def test_what_a_pool_lacks_is_told(raw: dict[str, Any], gauges: set[str], reason: str) -> None:
    assert set(unmet([raw])) == gauges, reason
