"""What the process tells: events, health, metrics, verdicts on workflows, and its own settings."""

from typing import Any

import pytest

from scripted.plain import plain
from tidepool_api.language.problems import Problem, Reason
from tidepool_operator.cluster.health import Figures, HealthServer
from tidepool_operator.cluster.kinds import Object
from tidepool_operator.errors import Unavailable
from tidepool_operator.events import Recorder
from tidepool_operator.pool.model import Note, Severity
from tidepool_operator.settings import read
from tidepool_operator.workflows import workflow_status

POOL: Object = {
    "apiVersion": "tidepool.dev/v1alpha1",
    "kind": "ModelPool",
    "metadata": {"name": "llama", "namespace": "default", "uid": "u1", "generation": 3},
}


class Posted:
    """Where events go."""

    def __init__(self) -> None:
        self.events: list[Object] = []
        self.fails = False

    async def event(self, _namespace: str, item: Object) -> None:
        if self.fails:
            raise Unavailable("away")
        self.events.append(item)


def recorder(posted: Posted) -> Recorder:
    return Recorder(posted, "one")  # type: ignore[arg-type]


async def test_the_same_words_are_said_once() -> None:
    posted = Posted()
    tells = recorder(posted)
    for message in ("a", "a", "b"):
        await tells.post(POOL, Note(Severity.WARNING, "EngineCrashed", message))

    assert [event["note"] for event in posted.events] == ["a", "b"]
    assert posted.events[0]["regarding"]["uid"] == "u1"


async def test_a_long_message_fits_into_an_event() -> None:
    posted = Posted()
    await recorder(posted).post(POOL, Note(Severity.NORMAL, "Serving", "ü" * 2000))

    assert len(posted.events[0]["note"].encode()) <= 1024


async def test_an_event_that_cannot_be_posted_holds_up_nothing() -> None:
    posted = Posted()
    posted.fails = True

    await recorder(posted).post(POOL, Note(Severity.NORMAL, "Serving", "x"))


async def test_health_answers_503_with_every_complaint() -> None:
    complaints: dict[str, str] = {}
    server = HealthServer(lambda: complaints, lambda: {"queue_length": 2.0}, Figures(reconciles=4))
    await server.start("127.0.0.1", 0)
    async with plain(f"http://127.0.0.1:{server.port}") as client:
        well = await client.get("/healthz")
        complaints["watch of Pod"] = "3 changes not told"
        ill = await client.get("/healthz")
        page = (await client.get("/metrics")).text
    await server.close()

    assert (well.status_code, ill.status_code) == (200, 503)
    assert ill.text == "watch of Pod: 3 changes not told\n"
    assert "tidepool_operator_reconciles_total 4\n" in page
    assert "tidepool_operator_queue_length 2\n" in page


def conditions(problems: list[Problem], status: Any = None) -> dict[str, Object]:
    made = workflow_status({**POOL, "status": status or {}}, problems, "now")
    return {entry["type"]: entry for entry in made["conditions"]}


def test_a_sound_workflow_whose_pool_is_missing_is_accepted_and_not_ready() -> None:
    found = conditions([Problem("spec.steps[0].llm.pools[0].name", "there is no x", Reason.POOL_NOT_FOUND)])

    assert (found["Accepted"]["status"], found["Ready"]["status"]) == ("True", "False")
    assert found["Ready"]["reason"] == "PoolNotFound"
    assert found["Ready"]["observedGeneration"] == 3


def test_a_broken_workflow_is_neither() -> None:
    found = conditions([Problem("spec.steps[0].depends", "has a cycle", Reason.DEPENDENCY_CYCLE)])

    assert (found["Accepted"]["reason"], found["Ready"]["reason"]) == ("DependencyCycle", "DependencyCycle")
    assert "spec.steps[0].depends" in found["Accepted"]["message"]


def test_a_workflows_transition_time_stays_while_the_status_does() -> None:
    first = workflow_status(POOL, [], "then")
    found = conditions([], first)

    assert {entry["lastTransitionTime"] for entry in found.values()} == {"then"}


def test_settings_come_from_the_environment_and_flags_win() -> None:
    environment = {
        "POD_NAMESPACE": "tidepool",
        "POD_NAME": "op-1",
        "TIDEPOOL_ROUTER_IMAGE": "r:1",
        "TIDEPOOL_WATCH_NAMESPACES": "a, b,",
    }
    found = read(["run", "--router-image", "r:2"], environment)

    assert (found.namespace, found.router_image, found.watch_namespaces) == ("tidepool", "r:2", ("a", "b"))
    assert found.identity.startswith("op-1-")
    assert read([], environment).identity != found.identity, "a restarted process is another candidate"


def test_a_bad_flag_is_refused() -> None:
    with pytest.raises(SystemExit):
        read(["--health-port", "many"], {})


def test_two_workflows_of_one_name_hear_of_each_other() -> None:
    ready = workflow_status(POOL, [], "now", ["b/chat", "c/chat"])["conditions"][1]

    assert (ready["status"], ready["reason"]) == ("True", "NameShared")
    assert "its name is that of b/chat, c/chat too" in ready["message"]
    where = f"{POOL['metadata']['namespace']}/{POOL['metadata']['name']}"
    assert ready["message"].endswith(f"call this one as the model workflow/{where}.")
