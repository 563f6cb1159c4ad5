"""A cluster in miniature: Deployments make pods, a scheduler places them on accelerators, engines come up.

Each step is one that a real cluster takes by itself; a test decides which and when. The operator is told of the
nodes where `sees`, by a look that may be older than what it does.
"""

from dataclasses import dataclass, field, replace

from pools.objects import NOW, observe, pod, raw_pool
from tidepool_api import contract
from tidepool_operator.pool.model import Object, Plan, format_time
from tidepool_operator.pool.plan import plan
from tidepool_operator.pool.room import Room, Survey

GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class SimPod:
    """One pod and how far it has come."""

    name: str
    revision: str
    node: str | None = None
    refused: float | None = None
    ready: bool = False
    deleting: bool = False
    cost: int | None = None
    born: float = NOW
    told: float = NOW
    role: str = contract.ROLE_MIXED

    @property
    def scheduled(self) -> bool:
        """Whether it has found its place."""
        return self.node is not None


@dataclass
class World:
    """The pool `llama`, its Deployments and pods, `accelerators` for them on nodes of `width`; `broken` revisions
    never come up. `others` are accelerators that somebody else holds, by node."""

    accelerators: int
    spec: Object
    status: Object = field(default_factory=dict)
    generation: int = 1
    now: float = NOW
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    pods: dict[str, SimPod] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    serial: int = 0
    width: int = 2
    sees: bool = False
    others: dict[str, int] = field(default_factory=dict)
    requeued: float | None = None

    def change(self, **spec: object) -> None:
        """Somebody edits the spec."""
        self.spec = {**self.spec, **spec}
        self.generation += 1

    # The operator.

    def look(self) -> Plan:
        """What the operator would do now."""
        raw = raw_pool(status=self.status, generation=self.generation, **self.spec)
        pods = tuple(self._pod(found) for found in self.pods.values())
        observed = observe(raw, objects=tuple(self.objects.values()), pods=pods)
        made = plan(observed, self.now)
        # As the reconcile does it.
        return plan(replace(observed, room=self.room()), self.now) if made.wants_room and self.sees else made

    def reconcile(self) -> Plan:
        """The operator does it."""
        made = self.look()
        self.requeued = made.requeue_after_seconds
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
                self.pods[name] = SimPod(name, revision, born=self.now, role=_role(item))
            # kubernetes pkg/controller/controller_utils.go, ActivePodsWithRanks.
            ranked = sorted(live, key=lambda found: (found.scheduled, found.ready, found.cost or 0, found.name))
            for found in ranked[: max(0, len(live) - wanted)]:
                if found.scheduled:
                    self.pods[found.name] = replace(found, deleting=True, told=self.now)
                else:
                    del self.pods[found.name]

    def schedule(self) -> None:
        """Oldest first, as long as there are accelerators; pods that go hold theirs until they are gone."""
        for found in [found for found in self.pods.values() if not found.scheduled and not found.deleting]:
            node = next((name for name, free in self.free().items() if free > 0), None)
            if node is not None:
                self.pods[found.name] = replace(found, node=node)
            elif found.refused is None:
                self.pods[found.name] = replace(found, refused=self.now)

    def nodes(self) -> dict[str, int]:
        """Accelerators by node."""
        whole, rest = divmod(self.accelerators, self.width)
        sizes = [self.width] * whole + [rest] * bool(rest)
        return {f"n{number}": size for number, size in enumerate(sizes)}

    def free(self) -> dict[str, int]:
        """Accelerators that nobody holds, by node."""
        held = [found.node for found in self.pods.values()]
        return {name: size - held.count(name) - self.others.get(name, 0) for name, size in self.nodes().items()}

    def room(self) -> Room:
        """What a list of all nodes and pods would show."""
        survey = Survey(_node(name, size) for name, size in self.nodes().items())
        survey.add(_asking(found.name, found.node) for found in self.pods.values())
        survey.add(
            {**_asking(f"{name}-other-{number}", name), "metadata": {"uid": f"{name}-other-{number}"}}
            for name, count in self.others.items()
            for number in range(count)
        )
        return survey.room()

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
        """Let everything happen, in turns, until nothing does any more."""
        for _ in range(rounds):
            self.now += 1.0
            before = self.pods.copy()
            made = self.reconcile()
            self.sync_replicas()
            self.schedule()
            self.start_one()
            self.finish_one()
            if self.pods == before and made == Plan(requeue_after_seconds=made.requeue_after_seconds):
                return

    # What a client has.

    def serving(self, *, prefill: bool = False) -> int:
        """Pods that serve and stay, whichever the controller takes next; prefill pods or the others."""
        total = 0
        for item in self.objects.values():
            if item["kind"] == "Deployment" and (_role(item) == contract.ROLE_PREFILL) is prefill:
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
        made = pod(
            found.name,
            found.revision,
            ready=found.ready,
            deleting=found.deleting,
            scheduled=found.scheduled or found.refused is None,
            cost=found.cost,
            age_seconds=NOW - found.born,
            ready_for_seconds=NOW - found.born,
        )
        made["metadata"]["labels"][contract.ROLE_LABEL] = found.role
        if not found.scheduled:
            made["spec"]["nodeName"] = None
        if not found.scheduled and found.refused is not None:
            made["status"]["conditions"][-1]["lastTransitionTime"] = format_time(found.refused)
        if found.deleting:
            made["metadata"] |= {
                "deletionTimestamp": format_time(found.told + 3900),
                "deletionGracePeriodSeconds": 3900,
            }
        return made


def _role(deployment: Object) -> str:
    role: str = deployment["metadata"]["labels"][contract.ROLE_LABEL]
    return role


def _node(name: str, gpus: int) -> Object:
    allocatable = {GPU: str(gpus), "cpu": "64", "memory": "512Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": name}, "status": {"allocatable": allocatable, "conditions": ready}}


def _asking(name: str, node: str | None) -> Object:
    metadata = {"uid": f"uid-{name}", "labels": {contract.MANAGED_BY_LABEL: contract.MANAGED_BY}}
    containers = [{"resources": {"limits": {GPU: "1"}}}]
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": containers}, "status": {}}
