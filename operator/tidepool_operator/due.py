"""What is to be looked at: keys in the queue, each of a pool, a workflow or a run."""

import random
from dataclasses import dataclass
from enum import StrEnum

from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, AGENT_WORKFLOW_RUN, MODEL_POOL, Kind
from tidepool_operator.cluster.store import Key, Store
from tidepool_operator.cluster.workqueue import WorkQueue


class Work(StrEnum):
    """What a key in the queue is of."""

    POOL = "pool"
    WORKFLOW = "workflow"
    RUN = "run"


_KINDS: dict[Work, Kind] = {
    Work.POOL: MODEL_POOL,
    Work.WORKFLOW: AGENT_WORKFLOW,
    Work.RUN: AGENT_WORKFLOW_RUN,
}


@dataclass(frozen=True, slots=True)
class Item:
    """One key in the queue."""

    work: Work
    key: Key


class Due:
    """Puts what the store has into the queue."""

    def __init__(self, store: Store, queue: WorkQueue[Item]) -> None:
        self._store = store
        self._queue = queue

    def all(self) -> None:
        """Everything, now."""
        for item in self._items():
            self._queue.add(item)

    def spread(self, period_seconds: float) -> None:
        """Everything, over the whole period."""
        for item in self._items():
            self._queue.add(item, random.uniform(0.0, period_seconds))  # noqa: S311 - spreads load

    def pool(self, key: Key) -> None:
        """One pool."""
        self._queue.add(Item(Work.POOL, key))

    def run(self, key: Key) -> None:
        """One run."""
        self._queue.add(Item(Work.RUN, key))

    def workflows(self, namespace: str) -> None:
        """All workflows of a namespace."""
        for key in self._store.keys(AGENT_WORKFLOW):
            if key.namespace == namespace:
                self._queue.add(Item(Work.WORKFLOW, key))

    def namesakes(self, workflow: Key) -> None:
        """Workflows of that name in any namespace."""
        for key in self._store.keys(AGENT_WORKFLOW):
            if key.name == workflow.name:
                self._queue.add(Item(Work.WORKFLOW, key))

    def forget(self, work: Work, key: Key) -> None:
        """It is gone."""
        self._queue.forget(Item(work, key))

    def _items(self) -> list[Item]:
        return [Item(work, key) for work, kind in _KINDS.items() for key in self._store.keys(kind)]
