"""Live figures of workflows: what is written of what a gateway counts, and how seldom."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api.workflow_run import RunTotals
from tidepool_operator.cluster.gateway_runs import GatewayRuns, RunRefused
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, Kind, Object
from tidepool_operator.cluster.store import Key, Store
from tidepool_operator.workflow_figures import WorkflowFigures, figures_due, figures_of

ZERO = {"runs": {"active": 0, "succeeded": 0, "failed": 0}}


def workflow(name: str = "research", status: Object | None = None, **metadata: Any) -> Object:
    told = {"namespace": "team", "name": name, "resourceVersion": "1", **metadata}
    return {"metadata": told, "spec": {}, "status": status or {}}


def totals(**more: Any) -> dict[str, RunTotals]:
    return {"team/research": RunTotals(workflow="team/research", **more)}


@pytest.mark.parametrize(
    ("count", "shown"), [(0, 0), (7, 7), (99, 99), (100, 100), (104, 100), (1249, 1200), (1_260_000, 1_300_000)]
)
def test_counts_are_exact_while_they_are_small(count: int, shown: int) -> None:
    assert figures_of(RunTotals(workflow="", active=count))["runs"]["active"] == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0ms"),
        (0.0123, "12ms"),
        (0.456, "460ms"),
        (0.999, "1s"),
        (1.26, "1.3s"),
        (14.2, "14s"),
        (133.0, "130s"),
    ],
)
def test_times_have_two_digits(seconds: float, shown: str) -> None:
    told = figures_of(RunTotals(workflow="", p50_seconds=seconds, p95_seconds=seconds))

    assert told["latency"] == {"p50": shown, "p95": shown}


def test_what_has_moved_is_written_and_nothing_else() -> None:
    known = totals(active=2, succeeded=1204, failed=1, p50_seconds=1.26, p95_seconds=14.2)
    runs = {"active": 2, "succeeded": 1200, "failed": 1}
    latency = {"p50": "1.3s", "p95": "14s"}

    assert figures_due(workflow(), known, None, 0.0) == {"runs": runs, "latency": latency}
    assert figures_due(workflow(status={"runs": runs, "latency": latency}), known, None, 0.0) == {}
    assert figures_due(workflow(status={"runs": ZERO["runs"], "latency": latency}), known, None, 0.0) == {
        "runs": runs
    }


def test_a_workflow_that_is_not_told_of_has_no_runs() -> None:
    before = {"runs": {"active": 2, "succeeded": 1, "failed": 0}, "latency": {"p50": "1s", "p95": "1s"}}

    assert figures_due(workflow(status=before), {}, None, 0.0) == {**ZERO, "latency": None}
    assert figures_due(workflow(status=ZERO), {}, None, 0.0) == {}


def test_figures_are_written_once_a_minute_at_most() -> None:
    known = totals(active=2)

    assert figures_due(workflow(), known, 100.0, 159.9) == {}
    assert figures_due(workflow(), known, 100.0, 160.0) != {}


def test_a_workflow_that_is_on_its_way_out_is_left_alone() -> None:
    assert figures_due(workflow(deletionTimestamp="2026-01-01T00:00:00Z"), totals(active=2), None, 0.0) == {}


@dataclass
class FakeApi:
    """Writes as the API server does."""

    store: Store
    statuses: list[tuple[str, Object]] = field(default_factory=list)

    async def status(self, kind: Kind, namespace: str, name: str, status: Object) -> Object:
        self.statuses.append((name, status))
        raw = self.store.get(kind, Key(namespace, name)) or {}
        version = str(int(raw["metadata"]["resourceVersion"]) + 1)
        merged = {**raw["status"], **status}
        return {**raw, "metadata": {**raw["metadata"], "resourceVersion": version}, "status": merged}


@dataclass
class Here:
    store: Store
    api: FakeApi
    figures: WorkflowFigures
    gateway: ScriptedEngine
    answer: list[tuple[bytes, Any]]
    now: list[float]


@pytest.fixture
async def here() -> AsyncIterator[Here]:
    answer: list[tuple[bytes, Any]] = [(b"200 OK", {"workflows": []})]
    now = [1000.0]

    async def script(seen: Seen) -> None:
        status, body = answer[0]
        await seen.answer(json.dumps(body).encode(), status)

    async with ScriptedEngine(script) as gateway:
        store = Store()
        api = FakeApi(store)
        client = GatewayRuns(lambda: ["127.0.0.1"], gateway.port)
        figures = WorkflowFigures(api, store, client, lambda: now[0])  # type: ignore[arg-type]
        yield Here(store, api, figures, gateway, answer, now)
        await client.close()


async def test_five_hundred_idle_workflows_cost_one_request_a_look_and_no_writes(here: Here) -> None:
    for index in range(500):
        here.store.put(AGENT_WORKFLOW, workflow(f"w{index}"))
    await here.figures.look()
    here.api.statuses.clear()

    for _ in range(5):
        here.now[0] += 60.0
        await here.figures.look()

    assert here.api.statuses == []
    assert [seen.line for seen in here.gateway.requests] == [b"GET /runs/totals HTTP/1.1"] * 6


async def test_one_that_runs_is_written_and_the_others_are_not(here: Here) -> None:
    for name in ("research", "idle"):
        here.store.put(AGENT_WORKFLOW, workflow(name, ZERO))
    for active in (1, 2, 3):
        here.answer[0] = (b"200 OK", {"workflows": [{"workflow": "team/research", "active": active}]})
        await here.figures.look()
        here.now[0] += 30.0

    assert [(name, status["runs"]["active"]) for name, status in here.api.statuses] == [
        ("research", 1),
        ("research", 3),
    ]


async def test_without_workflows_nobody_is_asked(here: Here) -> None:
    await here.figures.look()

    assert list(here.gateway.requests) == []


@pytest.mark.parametrize(
    "answer",
    [
        (b"501 Not Implemented", {"error": {"code": "no_store", "message": "no store"}}),
        (b"405 Method Not Allowed", {"error": {"code": "unknown_path", "message": "of an earlier release"}}),
        (b"503 Service Unavailable", {"error": {"code": "store_failed", "message": "away"}}),
        (b"200 OK", {"workflows": [{}]}),
    ],
)
async def test_what_no_gateway_can_tell_stays_as_it_was(here: Here, answer: tuple[bytes, Any]) -> None:
    here.store.put(AGENT_WORKFLOW, workflow(status={"runs": {"active": 2, "succeeded": 0, "failed": 0}}))
    here.answer[0] = answer

    with pytest.raises(RunRefused):
        await here.figures.look()

    assert here.api.statuses == []
