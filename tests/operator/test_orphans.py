"""What a deletion left on purpose: each is counted, told of once, and never touched."""

from dataclasses import dataclass, field

import pytest

from pools.objects import raw_pool
from tidepool_api.contract import MANAGED_BY, MANAGED_BY_LABEL, POOL_LABEL
from tidepool_operator.cluster.kinds import DEPLOYMENT, JOB, LEADER_WORKER_SET, MODEL_POOL, SERVICE, Kind, Object
from tidepool_operator.cluster.store import Store
from tidepool_operator.errors import ApiError, Unavailable
from tidepool_operator.events import Recorder
from tidepool_operator.orphans import Orphans


def left(name: str, **metadata: object) -> Object:
    """Made for the pool `llama`, with no owner."""
    labels = {MANAGED_BY_LABEL: MANAGED_BY, POOL_LABEL: "llama"}
    own = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1", "labels": labels}
    return {"metadata": {**own, **metadata}, "spec": {}}


@dataclass
class Cluster:
    """A store, the LeaderWorkerSets that a list gives (or its error), and the events that are posted."""

    groups: list[Object] = field(default_factory=list)
    error: ApiError | None = None
    told: list[tuple[str, str, str]] = field(default_factory=list)
    store: Store = field(default_factory=Store)

    async def event(self, _namespace: str, item: Object) -> None:
        about = item["regarding"]
        self.told.append((about["apiVersion"], about["kind"], about["name"]))

    async def list_groups(self) -> list[Object]:
        if self.error is not None:
            raise self.error
        return self.groups

    def orphans(self) -> Orphans:
        return Orphans(self.store, Recorder(self, "one"), self.list_groups)  # type: ignore[arg-type]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (DEPLOYMENT, [("apps/v1", "Deployment", "a")]),
        (LEADER_WORKER_SET, [("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "a")]),
        (SERVICE, []),
        (JOB, []),
    ],
    ids=lambda value: str(value) if isinstance(value, Kind) else "",
)
async def test_what_is_left_is_counted_and_what_holds_accelerators_is_told_to_people(
    cluster: Cluster, kind: Kind, told: list[tuple[str, str, str]]
) -> None:
    if kind == LEADER_WORKER_SET:
        cluster.groups = [left("a")]  # nobody watches them, so the store has none
    else:
        cluster.store.put(kind, left("a"))
    orphans = cluster.orphans()
    await orphans.look()
    await orphans.look()

    assert orphans.count == 1
    assert cluster.told == told, "once"


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"ownerReferences": [{"uid": "u"}]}, "the garbage collector sees to it"),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, "it goes already"),
        ({"labels": {POOL_LABEL: "llama"}}, "no operator made it"),
        ({"labels": {MANAGED_BY_LABEL: MANAGED_BY}}, "it is of no pool: the fleet of the gateways"),
    ],
)
async def test_what_somebody_looks_after_is_no_orphan(cluster: Cluster, metadata: Object, why: str) -> None:
    cluster.store.put(DEPLOYMENT, left("a", **metadata))
    cluster.groups = [left("b", **metadata)]
    orphans = cluster.orphans()
    await orphans.look()

    assert (orphans.count, cluster.told) == (0, []), why


async def test_a_pool_of_the_name_takes_it_over_and_it_counts_no_more(cluster: Cluster) -> None:
    cluster.store.put(DEPLOYMENT, left("a"))
    orphans = cluster.orphans()
    await orphans.look()
    before = orphans.count
    cluster.store.put(MODEL_POOL, raw_pool())
    await orphans.look()

    assert (before, orphans.count) == (1, 0)


async def test_a_list_that_fails_forgets_nothing_and_stops_nobody(cluster: Cluster) -> None:
    cluster.groups = [left("a")]
    orphans = cluster.orphans()
    await orphans.look()
    cluster.error = Unavailable("no answer")
    await orphans.look()

    assert orphans.count == 1
