"""What a plan is made from, and the plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from tidepool_api.load import Health, LoadReport
from tidepool_api.modelpool import ModelPool
from tidepool_api.trust import TrustedCallers
from tidepool_operator.pool.room import Room
from tidepool_operator.scaling.model import Decision

# An object as the API server speaks it.
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SidecarTLS:
    """`secret_name`: of a Secret in each pool's namespace. `server_name`: what all certificates name."""

    secret_name: str
    server_name: str


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """What the operator's own installation adds to what a pool asks for."""

    router_image: str
    operator_namespace: str
    # Whose proofs sidecars are to ask for, apart from the pool's own; None: they believe everybody.
    trust: TrustedCallers | None = None
    # Fields of a ModelPool that the cluster's CRD lacks.
    stale_fields: tuple[str, ...] = ()
    # Between gateways and sidecars; None: plain HTTP.
    tls: SidecarTLS | None = None
    # Whether the cluster has LeaderWorkerSets; None: not known yet.
    groups: bool | None = None


@dataclass(frozen=True, slots=True)
class Happening:
    """One event about a pod: Kubernetes' reason and words, and the part of the pod that it is about."""

    reason: str
    message: str
    place: str = ""  # such as spec.containers{engine}


@dataclass(frozen=True, slots=True)
class Clues:
    """Answers; what could not be had is empty. `log` is the end of the engine's log, events stand oldest first.

    `node` is what is wrong with the pod's node, in words.
    """

    log: str = ""
    events: tuple[Happening, ...] = ()
    health: Health | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """One look at a pool; all objects are those with the pool's label in its namespace.

    `problems` say why the spec cannot be served ("field: what to do"). `refused` holds the API server's words by
    revision, from the strict dry run; `taken` names objects ("Service llama") that exist and belong to somebody
    else. `loads` are load reports by pod name, `clues` what was asked about pods in trouble, `loaders` pods of
    Jobs that load files and do not get on, `gateways` the addresses of the gateways' pods, `namesakes` the other
    pools ("namespace/name") by a model name that they serve too. `room` is what the whole cluster has; None: not
    looked at, or not ours to see. `history` holds past decisions, the newest first.
    """

    pool: ModelPool
    raw_status: Mapping[str, Any]
    settings: RenderSettings
    problems: tuple[str, ...] = ()
    objects: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    taken: tuple[str, ...] = ()
    loads: Mapping[str, LoadReport] = field(default_factory=dict)
    clues: Mapping[str, Clues] = field(default_factory=dict)
    loaders: tuple[Object, ...] = ()
    gateways: tuple[str, ...] = ()
    namesakes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    room: Room | None = None
    decision: Decision | None = None
    history: tuple[Decision, ...] = ()


class Severity(StrEnum):
    """Types of a Kubernetes event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Note:
    """A Kubernetes event about the pool, for people."""

    severity: Severity
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Scale:
    """A new replica count of a Deployment or a LeaderWorkerSet."""

    deployment: str
    replicas: int
    kind: str = "Deployment"


@dataclass(frozen=True, slots=True)
class Mark:
    """A pod's deletion cost; None takes the mark away."""

    pod: str
    cost: int | None


@dataclass(frozen=True, slots=True)
class Doomed:
    """An object to delete: that very one, by its uid, and only as it was seen; it may be of use again by now."""

    api_version: str
    kind: str
    name: str
    uid: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in this order: checks, applies, marks, scales, deletes, status, notes.

    `checks` are objects for the strict dry run; when one is refused nothing else may be done, and the plan is made
    anew with the refusal. `status` is the whole new status, None when it says what it said. `wants_loads`: make
    the plan anew with load reports, since pods are being chosen. `wants_room`: make it anew with a look at the
    cluster's nodes, since a rollout could go further where there is room.
    """

    checks: tuple[Object, ...] = ()
    applies: tuple[Object, ...] = ()
    marks: tuple[Mark, ...] = ()
    scales: tuple[Scale, ...] = ()
    deletes: tuple[Doomed, ...] = ()
    status: Object | None = None
    notes: tuple[Note, ...] = ()
    wants_loads: bool = False
    wants_room: bool = False
    requeue_after_seconds: float | None = None


def parse_time(text: str | None) -> float | None:
    """Unix seconds of an RFC 3339 time; None for nothing."""
    return datetime.fromisoformat(text).timestamp() if text else None


def format_time(seconds: float) -> str:
    """RFC 3339, whole seconds, as metav1.Time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
