"""The pods of a pool, counted by revision."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidepool_api.contract import ENGINE_CONTAINER, POD_DELETION_COST, REVISION_LABEL, VARIANT_LABEL
from tidepool_operator.pool.clues import NO_CLUES
from tidepool_operator.pool.diagnosis import Finding, diagnose
from tidepool_operator.pool.model import Clues, Object, parse_time
from tidepool_operator.pool.pod_status import condition
from tidepool_operator.pool.reasons import Reason


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod, as far as plans look at it."""

    name: str
    uid: str
    revision: str
    ready: bool
    started: bool
    deleting: bool
    cost: int | None
    created_at: float
    changed_at: float  # when its readiness last changed, or its creation
    finding: Finding | None
    unplaced_since: float | None = None  # when the scheduler looked and found no node
    leaving_since: float | None = None  # when it was told to go
    variant: str = ""
    loads: bool = False  # its engine runs, and has not started yet
    rank: int | None = None  # of a group's leader: the highest go first


@dataclass(frozen=True, slots=True)
class Counted:
    """One revision: what its Deployment asks for and what there is. Pods that go are not counted in `live`."""

    revision: str
    deployment: Object | None
    pods: tuple[PodFacts, ...] = ()

    @property
    def replicas(self) -> int:
        """spec.replicas of the Deployment, 0 without one."""
        return int(self.deployment["spec"].get("replicas", 1)) if self.deployment else 0

    @property
    def variant(self) -> str:
        """The kind of accelerator, where the pool has several."""
        labels = (self.deployment["metadata"].get("labels") or {}) if self.deployment else {}
        return labels.get(VARIANT_LABEL) or next((pod.variant for pod in self.pods), "")

    @property
    def live(self) -> tuple[PodFacts, ...]:
        """Pods that are not going."""
        return tuple(pod for pod in self.pods if not pod.deleting)

    @property
    def ready(self) -> int:
        """Pods that serve and are not going."""
        return sum(pod.ready for pod in self.live)

    @property
    def idle(self) -> int:
        """Replicas that go first when there are to be fewer, and do not serve."""
        if self.deployment is None or self.deployment["kind"] == "Deployment":
            return self.replicas - min(self.replicas, self.ready)
        # A LeaderWorkerSet takes its last groups, whichever serve.
        last = self.replicas - 1
        ranks = [last if pod.rank is None else pod.rank for pod in self.live if pod.ready]
        return last - max((rank for rank in ranks if rank <= last), default=-1)

    @property
    def short_of_accelerators(self) -> int:
        """Pods that wait for accelerators."""
        return sum(
            pod.finding is not None and pod.finding.reason is Reason.INSUFFICIENT_ACCELERATORS for pod in self.live
        )

    @property
    def changed_at(self) -> float:
        """When this revision last got on: was made, or a pod of it became ready. 0 when it does not exist."""
        made = parse_time(self.deployment["metadata"].get("creationTimestamp")) if self.deployment else 0.0
        return max([made or 0.0, *(pod.changed_at for pod in self.pods if pod.ready)])


def pod_facts(pod: Object, accelerator: str, clues: Clues = NO_CLUES) -> PodFacts:
    """Narrow one pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    statuses = {entry["name"]: entry for entry in status.get("containerStatuses") or []}
    engine = statuses.get(ENGINE_CONTAINER, {})
    ready = condition(pod, "Ready")
    created = parse_time(metadata.get("creationTimestamp")) or 0.0
    placed = condition(pod, "PodScheduled")
    refused = placed.get("status") == "False" and placed.get("reason") == "Unschedulable"
    cost = (metadata.get("annotations") or {}).get(POD_DELETION_COST)
    return PodFacts(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        revision=(metadata.get("labels") or {}).get(REVISION_LABEL, ""),
        ready=ready.get("status") == "True",
        started=bool(engine.get("started")),
        deleting=bool(metadata.get("deletionTimestamp")),
        cost=int(cost) if cost and cost.lstrip("-").isdigit() else None,
        created_at=created,
        changed_at=parse_time(ready.get("lastTransitionTime")) or created,
        finding=diagnose(pod, accelerator, clues),
        unplaced_since=(parse_time(placed.get("lastTransitionTime")) or created) if refused else None,
        leaving_since=_leaving_since(metadata),
        variant=(metadata.get("labels") or {}).get(VARIANT_LABEL, ""),
        loads=not engine.get("started") and "running" in (engine.get("state") or {}),
    )


def _leaving_since(metadata: Object) -> float | None:
    # The API server writes the end of the grace period there.
    until = parse_time(metadata.get("deletionTimestamp"))
    return None if until is None else until - int(metadata.get("deletionGracePeriodSeconds") or 0)


def count(deployments: Sequence[Object], pods: Iterable[PodFacts]) -> dict[str, Counted]:
    """Revisions by name; pods without a Deployment (it is being deleted) count as a revision of their own."""
    by_revision: dict[str, list[PodFacts]] = {}
    for pod in pods:
        by_revision.setdefault(pod.revision, []).append(pod)
    made = {(item["metadata"].get("labels") or {}).get(REVISION_LABEL, ""): item for item in deployments}
    return {
        revision: Counted(revision, made.get(revision), tuple(by_revision.get(revision, ())))
        for revision in sorted({*made, *by_revision})
    }
