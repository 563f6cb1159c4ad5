"""How many more pods of a shape the scheduler could place now, from the nodes and the pods of the whole cluster.

The rules are the scheduler's own filters as far as they can be judged from nodes and pods (k8s.io/kubernetes
pkg/scheduler/framework/plugins: nodeunschedulable, tainttoleration, nodeaffinity, noderesources/fit). What it also
looks at (affinity between pods, volumes, ports, preemption) is left out: a pod that finds no place after all is
seen by the rollout, which then goes on without a surge.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from tidepool_api.contract import MANAGED_BY, MANAGED_BY_LABEL
from tidepool_api.units import quantity_value

Object = dict[str, Any]
Amounts = Mapping[str, Decimal]

_REPELS: Final = ("NoSchedule", "NoExecute")
_OVER: Final = ("Succeeded", "Failed")
_UNSCHEDULABLE: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_NONE: Final = Decimal(0)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pod asks of its node."""

    requests: Amounts
    spec: Object = field(default_factory=dict)  # nodeSelector, affinity, tolerations and nodeName are read


@dataclass(frozen=True, slots=True)
class Node:
    """A node, and what of it nobody has asked for yet."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Object, ...]
    ready: bool
    free: Amounts


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod is and what it holds there."""

    node: str
    requests: Amounts
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """One look at the cluster: its nodes, where pods of pools are (by uid), and pods that wait for a node."""

    nodes: tuple[Node, ...] = ()
    placed: Mapping[str, Place] = field(default_factory=dict)
    waiting: Mapping[str, Shape] = field(default_factory=dict)

    def places(self, shape: Shape, mine: Set[str] = frozenset(), limit: int = 10_000) -> int:
        """How many pods of `shape` find a place after all that wait already, but for `mine` (uids)."""
        free = {node.name: dict(node.free) for node in self.nodes}
        for uid, other in self.waiting.items():
            if uid not in mine:
                self._put(other, free, 1)
        return self._put(shape, free, limit)

    def makes_place(self, shape: Shape, leaving: str) -> bool:
        """Whether a pod of `shape` finds a place where the pod `leaving` (its uid) is now."""
        place = self.placed.get(leaving)
        node = next((node for node in self.nodes if place and node.name == place.node), None)
        if place is None or node is None or not admits(node, shape):
            return False
        return all(
            amount <= node.free.get(name, _NONE) + place.requests.get(name, _NONE)
            for name, amount in shape.requests.items()
        )

    def _put(self, shape: Shape, free: Mapping[str, dict[str, Decimal]], limit: int) -> int:
        """Take up to `limit` places out of `free`."""
        found = 0
        for node in self.nodes:
            if found >= limit:
                break
            if not admits(node, shape):
                continue
            left = free[node.name]
            while found < limit and all(
                left.get(name, _NONE) >= amount for name, amount in shape.requests.items()
            ):
                for name, amount in shape.requests.items():
                    left[name] -= amount
                found += 1
        return found


class Stock:
    """A working copy of a room, for trying out who could be where: places are taken out of it and given back.

    Pods of pools that are going count as gone: their places are soon free. Nobody has taken a place for those that
    wait for a node.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._free = {node.name: dict(node.free) for node in room.nodes}
        self._held = {uid: place for uid, place in room.placed.items() if place.node in self._free}
        for uid, place in room.placed.items():
            if place.leaving:
                self.give_back(uid)

    @property
    def waiting(self) -> Mapping[str, Shape]:
        """Pods that wait for a node, by uid."""
        return self._room.waiting

    def take(self, shape: Shape) -> bool:
        """Take a place; False where there is none."""
        for node in self._room.nodes:
            if self._fits(shape, node, {}):
                self._add(node.name, shape.requests, -1)
                return True
        return False

    def exchange(self, shape: Shape, uid: str) -> bool:
        """Take a place that the pod `uid` makes by leaving; False where that makes none."""
        place = self._held.get(uid)
        node = next((one for one in self._room.nodes if place is not None and one.name == place.node), None)
        if place is None or node is None or not self._fits(shape, node, place.requests):
            return False
        self.give_back(uid)
        self._add(node.name, shape.requests, -1)
        return True

    def give_back(self, uid: str) -> None:
        """The pod `uid` leaves its place, if it has one."""
        place = self._held.pop(uid, None)
        if place is not None:
            self._add(place.node, place.requests, 1)

    def placed(self, uid: str) -> bool:
        """Whether the pod has a place that it does not leave."""
        return uid in self._held

    def _fits(self, shape: Shape, node: Node, more: Amounts) -> bool:
        free = self._free[node.name]
        enough = all(
            amount <= free.get(name, _NONE) + more.get(name, _NONE) for name, amount in shape.requests.items()
        )
        return enough and admits(node, shape)

    def _add(self, node: str, requests: Amounts, sign: int) -> None:
        free = self._free[node]
        for name, amount in requests.items():
            free[name] = free.get(name, _NONE) + sign * amount


class Survey:
    """Takes nodes and pods in, page by page, and keeps only what a Room needs."""

    def __init__(self, nodes: Iterable[Object]) -> None:
        self._nodes = {node["metadata"]["name"]: node for node in map(_slim, nodes)}
        self._used: dict[str, dict[str, Decimal]] = {name: {} for name in self._nodes}
        self._placed: dict[str, Place] = {}
        self._waiting: dict[str, Shape] = {}

    def add(self, pods: Iterable[Object]) -> None:
        """Count pods: one that goes holds its place until it is gone, one that has ended holds none."""
        for pod in pods:
            spec, metadata = pod["spec"], pod["metadata"]
            if (pod.get("status") or {}).get("phase") in _OVER:
                continue
            node, requests = spec.get("nodeName"), requested(spec)
            if not node:
                if not metadata.get("deletionTimestamp"):
                    self._waiting[metadata["uid"]] = Shape(requests, _where(spec))
                continue
            if node in self._used:
                _add(self._used[node], requests)
            if (metadata.get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGED_BY:
                self._placed[metadata["uid"]] = Place(node, requests, bool(metadata.get("deletionTimestamp")))

    def room(self) -> Room:
        """What has been taken in."""
        nodes = tuple(_node(node, self._used[name]) for name, node in sorted(self._nodes.items()))
        return Room(nodes, self._placed, self._waiting)


def shape_of(template: Object) -> Shape:
    """The shape of a pod template's pods."""
    return Shape(requested(template["spec"]), _where(template["spec"]))


def requested(spec: Object) -> dict[str, Decimal]:
    """What a pod's spec asks for in all, and one of `pods` (k8s.io/component-helpers resource.PodRequests).

    Init containers that restart run beside the containers; the others run before them, one after the other.
    """
    total: dict[str, Decimal] = {}
    beside: dict[str, Decimal] = {}
    peak: dict[str, Decimal] = {}
    for container in spec.get("containers") or []:
        _add(total, _asked(container))
    for container in spec.get("initContainers") or []:
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            _add(beside, asked)
            asked = {}
        for name in {*beside, *asked}:
            peak[name] = max(peak.get(name, _NONE), beside.get(name, _NONE) + asked.get(name, _NONE))
    _add(total, beside)
    total = {name: max(total.get(name, _NONE), peak.get(name, _NONE)) for name in {*total, *peak}}
    total |= _asked(spec)  # resources of the pod as a whole go before those of its containers
    _add(total, {name: _amount(str(value)) for name, value in (spec.get("overhead") or {}).items()})
    return {name: amount for name, amount in total.items() if amount} | {"pods": Decimal(1)}


def admits(node: Node, shape: Shape) -> bool:
    """Whether a node takes pods of this shape, its room left aside."""
    spec = shape.spec
    if not node.ready or (spec.get("nodeName") or node.name) != node.name:
        return False
    if any(not _tolerated(taint, spec.get("tolerations") or []) for taint in node.taints):
        return False
    if any(node.labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    needed = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return needed is None or any(_meets(node, term) for term in needed.get("nodeSelectorTerms") or [])


def _tolerated(taint: Object, tolerations: Sequence[Object]) -> bool:
    return any(
        one.get("effect") in (None, "", taint.get("effect"))
        and one.get("key") in (None, "", taint.get("key"))
        and (one.get("operator") == "Exists" or (one.get("value") or "") == (taint.get("value") or ""))
        for one in tolerations
    )


def _meets(node: Node, term: Object) -> bool:
    labels, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not labels and not fields:
        return False  # an empty term matches no node
    return all(_holds(one, node.labels) for one in labels) and all(
        _holds(one, {"metadata.name": node.name}) for one in fields
    )


_COMPARED: Final[Mapping[str, Callable[[str | None, Sequence[str]], bool]]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: _number(value) > _number(values[0] if values else None),
    "Lt": lambda value, values: _number(value) < _number(values[0] if values else None),
}


def _holds(one: Object, labels: Mapping[str, str]) -> bool:
    compared = _COMPARED.get(one.get("operator", ""))
    return compared is not None and compared(labels.get(one.get("key", "")), one.get("values") or [])


def _number(text: str | None) -> float:
    # Comparisons with what is no number are false, as they are to the scheduler.
    return float(text) if text is not None and text.lstrip("-").isdigit() else float("nan")


def _slim(node: Object) -> Object:
    """Without the list of images, which is most of a node."""
    status = node.get("status") or {}
    kept = {"allocatable": status.get("allocatable") or {}, "conditions": status.get("conditions") or []}
    return {"metadata": node["metadata"], "spec": node.get("spec") or {}, "status": kept}


def _node(node: Object, used: Amounts) -> Node:
    allocatable = {name: _amount(str(value)) for name, value in node["status"]["allocatable"].items()}
    taints = [taint for taint in node["spec"].get("taints") or [] if taint.get("effect") in _REPELS]
    if node["spec"].get("unschedulable"):
        taints.append(_UNSCHEDULABLE)
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"]["conditions"])
    return Node(
        name=node["metadata"]["name"],
        labels=node["metadata"].get("labels") or {},
        taints=tuple(taints),
        ready=ready,
        free={name: amount - used.get(name, _NONE) for name, amount in allocatable.items()},
    )


def _where(spec: Object) -> Object:
    return {name: spec[name] for name in ("nodeSelector", "affinity", "tolerations", "nodeName") if spec.get(name)}


def _asked(container: Object) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    # The API server makes a limit without a request a request as well.
    asked = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return {name: _amount(str(value)) for name, value in asked.items()}


def _add(total: dict[str, Decimal], more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, _NONE) + amount


@lru_cache(maxsize=4096)
def _amount(text: str) -> Decimal:
    """A quantity; what is in exponents is read as Python does, what is unreadable is nothing."""
    try:
        return quantity_value(text)
    except ValueError:
        try:
            return Decimal(text)
        except ArithmeticError:
            return _NONE
