"""What the operator asks about pods in trouble: few, short, seldom, and not at all about pods that are well."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from pools.objects import pod
from tidepool_api.load import Health, LoadReport
from tidepool_operator.cluster.clues import ClueReader
from tidepool_operator.cluster.kinds import Object
from tidepool_operator.errors import ApiError, Forbidden, Unavailable

ENDED = {
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"exitCode": 1, "message": "RuntimeError: See root cause above."}},
    "restartCount": 1,
    "ready": False,
}
FALLEN = {"started": True, "ready": False, "state": {"running": {"startedAt": "2020-01-01T00:00:00Z"}}}
MOUNT = {
    "reason": "FailedMount",
    "message": "timed out",
    "lastTimestamp": "2026-01-01T00:00:01Z",
    "involvedObject": {"fieldPath": "spec.containers{engine}"},
}


class Cluster:
    """API server and sidecars, scripted; `asked` has what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.text = "INFO 11-30 06:00:00 [x.py:1] hello\n" * 500 + "ValueError: no"
        self.refuses: ApiError | None = None
        self.now = 1000.0
        self.node = ""
        self.comes = asyncio.Event()
        self.comes.set()

    async def log(self, namespace: str, name: str, container: str, **how: Any) -> str:
        self.asked.append(("log", name, container, how["previous"], how["limit"] <= 256 * 1024))
        if self.refuses:
            raise self.refuses
        await self.comes.wait()
        return self.text

    async def events_of(self, namespace: str, uid: str, limit: int) -> list[Object]:
        self.asked.append(("events", uid))
        if self.refuses:
            raise self.refuses
        return [MOUNT]

    async def loads(self, pods: list[Object]) -> Mapping[str, LoadReport]:
        self.asked.append(("load", *(one["metadata"]["name"] for one in pods)))
        return {one["metadata"]["name"]: LoadReport(health=Health.HUNG) for one in pods}

    async def trouble(self, name: str) -> str:
        self.asked.append(("node", name))
        return self.node

    def reader(self, patience_seconds: float = 5.0) -> ClueReader:
        found: Any = self
        return ClueReader(found, found, found, lambda: self.now, patience_seconds=patience_seconds)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_pods_that_are_well_cost_no_request(cluster: Cluster) -> None:
    found = await cluster.reader().read("default", [pod("a", "r", ready=True), pod("b", "r")])

    assert found == ({}, None)
    assert cluster.asked == []


async def test_the_log_of_an_ended_engine_is_read_once_in_its_life(cluster: Cluster) -> None:
    reader, crashed = cluster.reader(), pod("a", "r", engine=ENDED)
    first, again = await reader.read("default", [crashed])
    cluster.now += again or 0
    await reader.read("default", [crashed])
    await reader.read("default", [pod("a", "r", engine={**ENDED, "restartCount": 2})])

    assert first["a"].log.endswith("ValueError: no")
    assert len(first["a"].log) < 1000, "no more is kept than the errors and the end"
    assert [what for what, *_ in cluster.asked] == ["log", "events", "events", "log", "events"]
    assert cluster.asked[0] == ("log", "a", "engine", False, True)


async def test_the_life_before_is_asked_for_while_the_engine_tries_again(cluster: Cluster) -> None:
    await cluster.reader().read("default", [pod("a", "r", engine={**ENDED, "state": {"running": {}}})])

    assert cluster.asked[0] == ("log", "a", "engine", True, True)


async def test_an_engine_that_fell_silent_is_asked_how_it_is(cluster: Cluster) -> None:
    found, _ = await cluster.reader().read("default", [pod("a", "r", engine=FALLEN)])

    assert found["a"].health is Health.HUNG


async def test_of_a_pod_on_a_node_that_is_lost_no_log_and_no_router_is_asked_for(cluster: Cluster) -> None:
    """Nobody would answer, and each wait would hold up the pool."""
    cluster.node = "node n1 is gone"
    found, _ = await cluster.reader().read("default", [pod("a", "r", engine={**FALLEN, "ready": True})])

    assert found["a"].node == "node n1 is gone"
    assert [what for what, *_ in cluster.asked] == ["node", "events"]


async def test_a_kubelet_that_is_slow_with_logs_holds_a_pool_up_once_in_a_while_only(cluster: Cluster) -> None:
    cluster.comes.clear()
    reader, crashed = cluster.reader(0.05), [pod(name, "r", engine=ENDED) for name in ("a", "b")]
    async with asyncio.timeout(20):
        first, _ = await reader.read("default", crashed)
        second, _ = await reader.read("default", crashed)

    assert first == second
    assert {found.log for found in first.values()} == {""}
    assert [what for what, *_ in cluster.asked].count("log") == 2, "once a pod"


async def test_a_log_that_came_too_late_is_asked_for_again_after_a_while(cluster: Cluster) -> None:
    cluster.comes.clear()
    reader, crashed = cluster.reader(0.05), pod("a", "r", engine=ENDED)
    before, again = await reader.read("default", [crashed])
    cluster.comes.set()
    cluster.now += again or 0
    after, _ = await reader.read("default", [crashed])

    assert before["a"].log == ""
    assert after["a"].log.endswith("ValueError: no")


async def test_what_was_just_asked_is_not_asked_again(cluster: Cluster) -> None:
    reader, crashed = cluster.reader(), pod("a", "r", engine=ENDED)
    for _ in range(5):
        cluster.now += 1.0
        await reader.read("default", [crashed])

    assert len(cluster.asked) == 2


async def test_a_pod_that_is_in_trouble_for_long_is_looked_at_seldom(cluster: Cluster) -> None:
    reader, crashed = cluster.reader(), pod("a", "r", engine=ENDED)
    looks = 0
    began = cluster.now
    while cluster.now < began + 3600:
        _, again = await reader.read("default", [crashed])
        assert again is not None
        cluster.now += again
        looks += 1

    assert looks < 30


async def test_of_many_pods_that_fail_alike_a_few_are_asked_about(cluster: Cluster) -> None:
    found, _ = await cluster.reader().read("default", [pod(f"p{n}", "r", engine=ENDED) for n in range(100)])

    assert len(found) == 4


@pytest.mark.parametrize("refusal", [Forbidden("no"), Unavailable("no kubelet")], ids=str)
async def test_without_the_right_or_the_kubelet_the_diagnosis_has_a_gap_and_goes_on(
    cluster: Cluster, refusal: ApiError, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refuses = refusal
    reader = cluster.reader()
    found, _ = await reader.read("default", [pod("a", "r", engine=ENDED)])
    await reader.read("default", [pod("b", "r", engine=ENDED)])

    assert (found["a"].log, found["a"].events) == ("", ())
    assert len([entry for entry in caplog.records if entry.levelname == "WARNING"]) == 1
