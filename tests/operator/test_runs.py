"""Run objects: begun at a gateway, followed, bounded, ended when they are gone, deleted when it is time."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from scripted.upstreams import ScriptedEngine, Seen
from tidepool_operator.cluster.client import Client
from tidepool_operator.cluster.gateway_runs import GatewayRuns, RunRefused
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW_RUN, Kind, Object
from tidepool_operator.cluster.store import Key, Store
from tidepool_operator.parts import Parts
from tidepool_operator.pool.model import format_time
from tidepool_operator.runs import MOST_AT_ONCE, RunObjects
from tidepool_operator.settings import Settings

KEY = Key("team", "research-1")


@dataclass
class FakeApi:
    """Writes into the store, as the watch would tell it."""

    store: Store
    statuses: list[Object] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    async def status(self, kind: Kind, namespace: str, name: str, status: Object) -> Object:
        self.statuses.append(status)
        raw = self.store.get(kind, Key(namespace, name)) or {}
        version = str(int(raw["metadata"]["resourceVersion"]) + 1)
        return {
            **raw,
            "metadata": {**raw["metadata"], "resourceVersion": version},
            "status": {**raw.get("status", {}), **status},
        }

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "") -> bool:
        self.deleted.append(uid)
        return True


@dataclass
class Here:
    """One operator and one gateway. `answers` are what the gateway says, by method."""

    store: Store
    api: FakeApi
    runs: RunObjects
    gateway: ScriptedEngine
    answers: dict[str, tuple[bytes, Any]]

    def put(self, status: Object | None = None, name: str = KEY.name, **spec: Any) -> None:
        uid = f"uid-{name}"
        raw = {
            "metadata": {"namespace": KEY.namespace, "name": name, "uid": uid, "resourceVersion": "1"},
            "spec": {"workflow": "research", "input": {"q": "why"}, "ttlAfterFinished": "1h", **spec},
        }
        self.store.put(AGENT_WORKFLOW_RUN, raw if status is None else {**raw, "status": status})

    @property
    def asked(self) -> list[str]:
        return [b" ".join(seen.line.split(b" ")[:2]).decode() for seen in self.gateway.requests]


def report(**more: Any) -> tuple[bytes, Any]:
    found = {"run": "object-u", "phase": "Running", "created": time.time(), "tokens": 7, "steps": 1, **more}
    return b"200 OK", found


def refusal(status: bytes, code: str, message: str = "because") -> tuple[bytes, Any]:
    return status, {"error": {"code": code, "message": message}}


@pytest.fixture
async def here() -> AsyncIterator[Here]:
    answers: dict[str, tuple[bytes, Any]] = {}

    async def script(seen: Seen) -> None:
        status, body = answers[seen.line.split(b" ")[0].decode()]
        await seen.answer(json.dumps(body).encode(), status)

    async with ScriptedEngine(script) as gateway:
        store = Store()
        api = FakeApi(store)
        client = GatewayRuns(lambda: ["127.0.0.1"], gateway.port)
        yield Here(store, api, RunObjects(api, store, client), gateway, answers)  # type: ignore[arg-type]
        await client.close()


async def test_a_run_is_begun_and_followed_to_its_end(here: Here) -> None:
    here.put()
    began = time.time()
    here.answers["PUT"] = report(created=began)

    again = await here.runs(KEY)
    order = json.loads(here.gateway.requests[0].body)
    here.answers["PUT"] = report(phase="Succeeded", created=began, ended=100.0, output="salt", tokens=14, steps=2)
    await here.runs(KEY)

    assert again == 1.0
    assert here.asked == ["PUT /runs/uid-research-1"] * 2
    assert order == {"namespace": "team", "workflow": "research", "input": {"q": "why"}, "begun": False}
    assert json.loads(here.gateway.requests[1].body)["begun"] is True
    first, last = here.api.statuses
    assert (first["phase"], first["run"], first["tokens"]) == ("Running", "object-u", 7)
    assert last == {
        "phase": "Succeeded",
        "tokens": 14,
        "steps": 2,
        "finished": "1970-01-01T00:01:40Z",
        "output": "salt",
        "outputCut": False,
    }


async def test_progress_alone_is_not_written_each_time(here: Here) -> None:
    here.put()
    for steps in range(5):
        here.answers["PUT"] = report(steps=steps, created=100.0)
        await here.runs(KEY)

    assert len(here.api.statuses) == 1


@pytest.mark.parametrize(
    ("answer", "phase"),
    [
        (refusal(b"404 Not Found", "workflow_not_found"), "Pending"),  # it may be applied a moment later
        (refusal(b"422 Unprocessable Content", "workflow_not_accepted"), "Pending"),
        (refusal(b"501 Not Implemented", "no_store"), "Pending"),
        (refusal(b"429 Too Many Requests", "too_many_runs"), "Pending"),
        (refusal(b"400 Bad Request", "invalid_input"), "Failed"),  # it would be the same again
        (refusal(b"413 Content Too Large", "input_too_long"), "Failed"),
    ],
)
async def test_what_may_pass_is_waited_for_and_what_cannot_fails(
    here: Here, answer: tuple[bytes, Any], phase: str
) -> None:
    here.put()
    here.answers["PUT"] = answer

    await here.runs(KEY)

    (status,) = here.api.statuses
    assert (status["phase"], status["reason"]) == (phase, "because")


async def test_a_run_that_has_begun_stays_as_it_is_while_no_gateway_answers(here: Here) -> None:
    here.put({"phase": "Running", "run": "object-u"})
    here.answers["PUT"] = refusal(b"503 Service Unavailable", "store_failed")

    assert await here.runs(KEY) == 5.0
    assert here.api.statuses == []


async def test_a_run_of_which_nothing_is_kept_any_more_is_told_as_failed(here: Here) -> None:
    here.put({"phase": "Running", "run": "object-u"})
    here.answers["PUT"] = refusal(b"410 Gone", "run_forgotten")

    await here.runs(KEY)

    assert here.api.statuses[0]["phase"] == "Failed"


async def test_an_input_that_no_object_should_hold_is_refused(here: Here) -> None:
    here.put(input={"q": "x" * 70_000})

    await here.runs(KEY)

    assert "begin the run at the gateway" in here.api.statuses[0]["reason"]
    assert here.asked == []


async def test_objects_are_for_people_so_they_are_few_at_a_time(here: Here) -> None:
    for index in range(MOST_AT_ONCE):
        here.put({"phase": "Running", "run": "r"}, name=f"other-{index}")
    here.put()

    await here.runs(KEY)

    assert here.api.statuses[0]["phase"] == "Pending"
    assert "begin many at the gateway" in here.api.statuses[0]["reason"]


async def test_a_run_is_cancelled_by_its_field(here: Here) -> None:
    here.put({"phase": "Running", "run": "object-u"}, cancel=True)
    here.answers |= {"DELETE": (b"200 OK", {}), "PUT": report(phase="Cancelled", ended=100.0)}
    here.put(name="early", cancel=True)

    await here.runs(KEY)
    await here.runs(Key("team", "early"))

    assert here.asked == ["DELETE /runs/uid-research-1", "PUT /runs/uid-research-1"]
    assert [status["phase"] for status in here.api.statuses] == ["Cancelled", "Cancelled"]


async def test_a_run_whose_object_is_deleted_is_cancelled(here: Here) -> None:
    here.put({"phase": "Running", "run": "object-u"})
    here.answers["GET"] = (b"200 OK", {"runs": [{"uid": "uid-research-1", "namespace": "team"}]})
    here.answers["DELETE"] = (b"200 OK", {})
    await here.runs.sweep()
    raw = here.store.get(AGENT_WORKFLOW_RUN, KEY)
    assert raw is not None

    here.store.forget(AGENT_WORKFLOW_RUN, KEY)
    here.runs.deleted(raw)
    await here.runs.sweep()

    assert here.asked == ["GET /runs", "GET /runs", "DELETE /runs/uid-research-1"]


async def test_a_run_whose_object_went_while_nobody_looked_is_cancelled_at_the_second_look(here: Here) -> None:
    here.answers["GET"] = (b"200 OK", {"runs": [{"uid": "lost", "namespace": "team"}]})
    here.answers["DELETE"] = (b"200 OK", {})

    await here.runs.sweep()
    once = here.asked
    await here.runs.sweep()

    assert once == ["GET /runs"]  # the object may not be known here yet
    assert here.asked[-1] == "DELETE /runs/lost"


async def test_runs_of_namespaces_that_others_look_after_are_left_alone(here: Here) -> None:
    here.answers["GET"] = (b"200 OK", {"runs": [{"uid": "theirs", "namespace": "other"}]})
    here.runs._namespaces = frozenset(("team",))

    for _ in range(3):
        await here.runs.sweep()

    assert set(here.asked) == {"GET /runs"}


async def test_an_object_goes_when_its_time_is_over(here: Here) -> None:
    here.put({"phase": "Succeeded", "finished": "2020-01-01T00:00:00Z"})
    assert await here.runs(KEY) is None
    assert here.api.deleted == ["uid-research-1"]

    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    here.put({"phase": "Failed", "finished": soon}, name="young")
    again = await here.runs(Key("team", "young"))
    assert again is not None
    assert 3500.0 < again < 3700.0
    assert len(here.api.deleted) == 1


async def test_the_time_of_runs_is_the_api_servers_and_not_this_machines() -> None:
    """A machine two hours ahead would delete objects an hour before their time."""
    then = 1_000_000_000.0
    async with Client(Configuration(), local=lambda: then) as client:
        parts = Parts(Settings("default", "one"), client)
        status = {"phase": "Succeeded", "finished": format_time(then - 600.0)}
        metadata = {"namespace": KEY.namespace, "name": KEY.name, "uid": "u", "resourceVersion": "1"}
        raw = {"metadata": metadata, "spec": {"ttlAfterFinished": "1h"}, "status": status}
        parts.store.put(AGENT_WORKFLOW_RUN, raw)
        again = await parts.runs(KEY)

    assert again == 3001.0


async def test_a_gateway_that_does_not_answer_is_named() -> None:
    client = GatewayRuns(lambda: ["127.0.0.1"], 1)
    with pytest.raises(RunRefused, match=r"127\.0\.0\.1 does not answer"):
        await client.open()
    await client.close()
    with pytest.raises(RunRefused, match="no gateway serves"):
        await GatewayRuns(list).open()


@pytest.mark.parametrize("run", ["../../drain", "..", "x/../../../drain", "run-1?x=/", "run-1#", ""])
async def test_who_looks_at_a_run_leads_the_operator_to_no_other_path_of_a_gateway(here: Here, run: str) -> None:
    # The console's page names the run, and nobody is asked who they are there; a drain would end the gateway.
    here.answers["GET"] = refusal(b"404 Not Found", "run_not_found")
    client = GatewayRuns(lambda: ["127.0.0.1"], here.gateway.port)

    with pytest.raises(RunRefused, match="no run's id"):
        await client.told(run)
    await client.close()

    assert here.asked == []
