"""What is due when something in the cluster changes."""

from typing import Any

import pytest

from tidepool_operator.changes import Changes
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, MODEL_POOL, Kind, Object
from tidepool_operator.cluster.names import Names
from tidepool_operator.cluster.store import Key, Store
from tidepool_operator.cluster.workqueue import WorkQueue
from tidepool_operator.due import Due, Item, Work

ASKS = {"rules": [{"name": "a", "classifier": {"url": "http://judge.tools/"}}]}


def item(name: str, namespace: str = "a", **spec: Any) -> Object:
    return {"metadata": {"namespace": namespace, "name": name, "resourceVersion": "1", "uid": name}, "spec": spec}


class Here:
    def __init__(self, *workflows: Object) -> None:
        store = Store()
        for one in workflows:
            store.put(AGENT_WORKFLOW, one)
        self.queue: WorkQueue[Item] = WorkQueue()
        self.told: list[str] = []
        self._changes = Changes(
            Due(store, self.queue),
            Names(),
            lambda: self.told.append("fleet"),
            lambda: self.told.append("hosts"),
            lambda raw: self.told.append(raw["metadata"]["name"]),
        )

    async def due(self, kind: Kind, before: Object | None, after: Object | None) -> set[Item]:
        self._changes(kind, before, after)
        return {await self.queue.take() for _ in range(len(self.queue))}


async def test_a_workflow_that_comes_or_goes_is_news_to_its_namespace_and_to_its_namesakes() -> None:
    workflows = [item("x"), item("y"), item("x", "b"), item("z", "b")]
    near = {Item(Work.WORKFLOW, Key("a", name)) for name in ("x", "y")}

    assert await Here(*workflows).due(AGENT_WORKFLOW, None, workflows[0]) == {
        *near,
        Item(Work.WORKFLOW, Key("b", "x")),
    }
    assert await Here(*workflows[1:]).due(AGENT_WORKFLOW, workflows[0], None) == {
        Item(Work.WORKFLOW, Key("a", "y")),
        Item(Work.WORKFLOW, Key("b", "x")),
    }
    assert await Here(*workflows).due(AGENT_WORKFLOW, workflows[0], workflows[0]) == near


async def test_figures_of_a_workflow_are_news_to_nobody() -> None:
    before, after = item("x"), item("x")
    after["metadata"]["resourceVersion"] = "2"
    after["status"] = {"runs": {"active": 1}, "latency": {"p50": "1s"}}
    here = Here(before, item("y"))

    assert await here.due(AGENT_WORKFLOW, before, after) == set()
    assert here.told == []

    after["status"]["conditions"] = [{"type": "Accepted"}]
    assert len(await here.due(AGENT_WORKFLOW, before, after)) == 2
    assert here.told == ["fleet"]


@pytest.mark.parametrize(
    ("before", "after", "asked"),
    [
        (None, item("p", traffic=ASKS), True),
        (item("p"), item("p", traffic=ASKS), True),
        (item("p", traffic=ASKS), item("p", traffic=ASKS), False),
        (item("p", traffic=ASKS), item("p"), False),
        (None, item("p"), False),
    ],
)
async def test_a_new_classifier_has_its_namespace_asked_for_what_is_allowed(
    before: Object | None, after: Object, asked: bool
) -> None:
    here = Here()

    await here.due(MODEL_POOL, before, after)

    assert ("hosts" in here.told) is asked
    assert "fleet" in here.told
