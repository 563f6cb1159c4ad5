"""A cluster in miniature: Deployments make pods, a scheduler places them on accelerators, engines come up.

Each step is one that a real cluster takes by itself; a test decides which and when.
"""

from dataclasses import dataclass, field, replace

from pools.objects import NOW, observe, pod, raw_pool
from tidepool_api import contract
from tidepool_operator.pool.model import Object, Plan, format_time
from tidepool_operator.pool.plan import plan


@dataclass(frozen=True)
class SimPod:
    """One pod and how far it has come."""

    name: str
    revision: str
    scheduled: bool = False
    ready: bool = False
    deleting: bool = False
    cost: int | None = None
    born: float = NOW


@dataclass
class World:
    """The pool `llama`, its Deployments and pods, `accelerators` for them; `broken` revisions never come up."""

    accelerators: int
    spec: Object
    status: Object = field(default_factory=dict)
    generation: int = 1
    now: float = NOW
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    pods: dict[str, SimPod] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    serial: int = 0

    def change(self, **spec: object) -> None:
        """Somebody edits the spec."""
        self.spec = {**self.spec, **spec}
        self.generation += 1

    # The operator.

    def look(self) -> Plan:
        """What the operator would do now."""
        raw = raw_pool(status=self.status, generation=self.generation, **self.spec)
        pods = tuple(self._pod(found) for found in self.pods.values())
        return plan(observe(raw, objects=tuple(self.objects.values()), pods=pods), self.now)

    def reconcile(self) -> Plan:
        """The operator does it."""
        made = self.look()
        for item in made.applies:
            key = (item["kind"], item["metadata"]["name"])
            created = self.objects.get(key, {}).get("metadata", {}).get("creationTimestamp", format_time(self.now))
            metadata = {**item["metadata"], "uid": "/".join(key), "creationTimestamp": created}
            self.objects[key] = {**item, "metadata": metadata}
        for mark in made.marks:
            self.pods[mark.pod] = replace(self.pods[mark.pod], cost=mark.cost)
        for scale in made.scales:
            self.objects["Deployment", scale.deployment]["spec"]["replicas"] = scale.replicas
        for doomed in made.deletes:
            del self.objects[doomed.kind, doomed.name]
        if made.status is not None:
            self.status = {key: value for key, value in made.status.items() if value is not None}
        return made

    # The cluster.

    def sync_replicas(self) -> None:
        """The ReplicaSets' controller: makes pods, and takes away in its own order of ranks."""
        for item in list(self.objects.values()):
            if item["kind"] != "Deployment":
                continue
            revision = item["metadata"]["labels"][contract.REVISION_LABEL]
            live = [found for found in self.pods.values() if found.revision == revision and not found.deleting]
            wanted = item["spec"]["replicas"]
            for _ in range(wanted - len(live)):
                self.serial += 1
                name = f"p{self.serial}"
                self.pods[name] = SimPod(name, revision, born=self.now)
            # kubernetes pkg/controller/controller_utils.go, ActivePodsWithRanks.
            ranked = sorted(live, key=lambda found: (found.scheduled, found.ready, found.cost or 0, found.name))
            for found in ranked[: max(0, len(live) - wanted)]:
                if found.scheduled:
                    self.pods[found.name] = replace(found, deleting=True)
                else:
                    del self.pods[found.name]

    def schedule(self) -> None:
        """Oldest first, as long as there are accelerators; pods that go hold theirs until they are gone."""
        free = self.accelerators - sum(found.scheduled for found in self.pods.values())
        waiting = [found for found in self.pods.values() if not found.scheduled and not found.deleting]
        for found in waiting[: max(0, free)]:
            self.pods[found.name] = replace(found, scheduled=True)

    def start_one(self) -> None:
        """One engine that is placed, and can, comes up."""
        for found in self.pods.values():
            if found.scheduled and not found.ready and not found.deleting and found.revision not in self.broken:
                self.pods[found.name] = replace(found, ready=True, born=self.now)
                return

    def fail_one(self, index: int) -> None:
        """One engine that served does not any more."""
        serving = [found for found in self.pods.values() if found.ready and not found.deleting]
        if serving:
            found = serving[index % len(serving)]
            self.pods[found.name] = replace(found, ready=False)

    def finish_one(self) -> None:
        """One pod that goes is gone."""
        for found in self.pods.values():
            if found.deleting:
                del self.pods[found.name]
                return

    def settle(self, rounds: int = 60) -> None:
        """Let everything happen, in turns."""
        for _ in range(rounds):
            self.now += 1.0
            self.reconcile()
            self.sync_replicas()
            self.schedule()
            self.start_one()
            self.finish_one()

    # What a client has.

    def serving(self) -> int:
        """Pods that serve and stay, whichever the controller takes next."""
        total = 0
        for item in self.objects.values():
            if item["kind"] == "Deployment":
                revision = item["metadata"]["labels"][contract.REVISION_LABEL]
                ready = sum(
                    found.ready
                    for found in self.pods.values()
                    if found.revision == revision and not found.deleting
                )
                total += min(item["spec"]["replicas"], ready)
        return total

    def replicas(self) -> dict[str, int]:
        """Replica counts by revision."""
        return {
            item["metadata"]["labels"][contract.REVISION_LABEL]: item["spec"]["replicas"]
            for item in self.objects.values()
            if item["kind"] == "Deployment"
        }

    def _pod(self, found: SimPod) -> Object:
        return pod(
            found.name,
            found.revision,
            ready=found.ready,
            deleting=found.deleting,
            scheduled=found.scheduled,
            cost=found.cost,
            age_seconds=NOW - found.born,
            ready_for_seconds=NOW - found.born,
        )
