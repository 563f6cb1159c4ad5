"""What a decision is made from and what comes of it.

Zero, missing and stale are three things: `Known(0.0)` is the only one that says that nothing was going on.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

from tidepool_api.scaling import Mode, SelectPolicy
from tidepool_operator.scaling.capacity import Capacity
from tidepool_operator.scaling.mix import Kind


@dataclass(frozen=True, slots=True)
class Known:
    """A figure that is fresh enough to act on; `age_seconds` is that of the scrape below it."""

    value: float
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Stale:
    """The last figure seen, too old to act on."""

    value: float
    age_seconds: float
    reason: str = "too old"


@dataclass(frozen=True, slots=True)
class Missing:
    """No figure at all; never read as zero."""

    reason: str = "not in Prometheus"


Sample = Known | Stale | Missing
_UNREAD: Final = Missing("not read yet")


class PodState(StrEnum):
    """Where a live pod (one that is not being deleted) stands."""

    PENDING = "pending"  # no node yet
    STARTING = "starting"  # on a node, its engine has not started once
    UNREADY = "unready"  # its engine had started, and the pod is not ready now
    READY = "ready"


@dataclass(frozen=True, slots=True)
class LivePod:
    """A pod of a pool as the operator's cache knows it, without those that are being deleted.

    `startup_seconds` is the time from its creation to its being ready, for one that is ready and never restarted;
    `created_at` is in Unix seconds.
    """

    name: str
    state: PodState
    startup_seconds: float | None = None
    created_at: float | None = None
    variant: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class PodReading:
    """Figures of one live pod. KV usage is a ratio; rates are per second, over the last minute."""

    name: str
    state: PodState
    kv_usage: Sample = _UNREAD
    waiting: Sample = _UNREAD
    running: Sample = _UNREAD
    prompt_tokens_rate: Sample = _UNREAD
    cached_tokens_rate: Sample = _UNREAD
    output_tokens_rate: Sample = _UNREAD
    requests_rate: Sample = _UNREAD
    requests_ended: Sample = _UNREAD  # a count since the pod began
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Demand:
    """What all gateways together hold, refuse and have in flight for a pool.

    `held` and `refused` count requests; `refused` is over the last half minute, so that a refusal is seen by
    more than one tick. While a gateway is silent, `held` and `refused` are known only if the others' sum says that
    somebody asks. `gateways` is the number of those that could wake the pool. `coming`: calls at once, beyond
    those in flight, that runs of workflows will make soon; nothing lacks where it is not told.
    """

    held: Sample = _UNREAD
    refused: Sample = _UNREAD
    in_flight: Sample = _UNREAD
    gateways: int = 0
    coming: Sample = _UNREAD


# Pods and how many of each: figures that are one and the same object are looked at once.
Counted = tuple[tuple[PodReading, int], ...]


@dataclass(frozen=True)  # without slots, for what is kept of it
class PoolReading:
    """Everything that one tick knows of one pool; `key` is "namespace/name".

    `trouble` says in words why figures are missing when the cause is not the pod's own, such as Prometheus away.
    """

    key: str
    pods: tuple[PodReading, ...] = ()
    demand: Demand = Demand()
    time_to_first_token_seconds: Sample = _UNREAD  # 90th percentile over all pods
    time_per_output_token_seconds: Sample = _UNREAD  # 90th percentile over all pods
    trouble: str | None = None
    identity: str = ""  # the pool's, see ScaledPool

    @cached_property
    def counted(self) -> Counted:
        """All pods. In a cluster each is another one; a replay shows the same one many times."""
        found: dict[int, tuple[PodReading, int]] = {}
        for pod in self.pods:
            _, count = found.get(id(pod), (pod, 0))
            found[id(pod)] = (pod, count + 1)
        return tuple(found.values())

    @cached_property
    def serving(self) -> Counted:
        """The pods that serve."""
        return tuple(each for each in self.counted if each[0].state is PodState.READY)

    @cached_property
    def ready(self) -> int:
        """How many pods serve."""
        return sum(count for _, count in self.serving)

    @cached_property
    def coming(self) -> int:
        """Pods asked for that have not served yet."""
        return sum(count for pod, count in self.counted if pod.state in (PodState.PENDING, PodState.STARTING))


@dataclass(frozen=True, slots=True)
class RatePolicy:
    """At most `pods` replicas, or `percent` of them, within any `period_seconds`; one of the two is set."""

    period_seconds: float
    pods: int | None = None
    percent: float | None = None


@dataclass(frozen=True, slots=True)
class Behavior:
    """How fast one direction may go, and for how long it looks back before it goes."""

    stabilization_seconds: float
    policies: tuple[RatePolicy, ...]
    select: SelectPolicy = SelectPolicy.MAX


# The HPA's own defaults: https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#default-behavior
SCALE_UP_DEFAULT: Final = Behavior(0.0, (RatePolicy(15.0, percent=100.0), RatePolicy(15.0, pods=4)))
SCALE_DOWN_DEFAULT: Final = Behavior(300.0, (RatePolicy(15.0, percent=100.0),))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Bounds from each time of `cron` on, for so long; without an end: until another one has a say in them."""

    cron: str
    time_zone: str = "UTC"
    min_replicas: int | None = None
    max_replicas: int | None = None
    duration_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class ScalingSpec:
    """A pool's `spec.scaling` in plain numbers (`spec.from_api` makes it).

    `min_by` and `max_by` name the schedule that a bound is from, as the end of a sentence (`schedules.bounded`).
    """

    min_replicas: int
    max_replicas: int
    mode: Mode = Mode.AUTO
    kv_utilization: float = 0.8
    time_to_first_token_seconds: float | None = None
    time_per_output_token_seconds: float | None = None
    idle_after_seconds: float = 600.0
    predicts: bool = False
    season_seconds: float = 86_400.0
    scale_up: Behavior = SCALE_UP_DEFAULT
    scale_down: Behavior = SCALE_DOWN_DEFAULT
    schedules: tuple[Schedule, ...] = ()
    variants: tuple[Kind, ...] = ()  # their capacity as the spec has it
    min_by: str = ""
    max_by: str = ""


@dataclass(frozen=True, slots=True)
class ScaledPool:
    """A pool with `scaling`, as the operator's cache knows it this moment; `replicas` is spec.replicas."""

    namespace: str
    name: str
    replicas: int
    spec: ScalingSpec
    pods: tuple[LivePod, ...] = ()
    identity: str = ""  # of model and flags: what is learned of one says nothing of another
    mix: Mapping[str, int] = field(default_factory=dict)  # replicas by variant

    @property
    def key(self) -> str:
        """The name that gateways and load reports use."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Moment:
    """The 90th percentile of demand (tokens a second, prompts without cached ones) at a time (Unix seconds)."""

    at: float
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """Demand at moments up to the time that a new pod needs, the last one at or after it.

    `startup_seconds` is the 90th percentile of start-ups; `heard` the experts that speak beside last value;
    `coverage` the share of recent outcomes within the 90 % band; `seasoned` is whether it rests on a whole season.
    """

    startup_seconds: float
    moments: tuple[Moment, ...]
    heard: tuple[str, ...] = ()
    coverage: float = math.nan
    seasoned: bool = True


@dataclass(frozen=True, slots=True)
class Learned:
    """What one replica serves within the targets (tokens a second of one kind alone), and how long one starts."""

    prefill_tokens_per_second: float
    output_tokens_per_second: float
    source: str
    startup_p50_seconds: float | None = None
    startup_p90_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Replicas that a pool wanted and did not get, a stable reason, and what to do about it."""

    replicas: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The autoscaler's answer for one pool; `time` is Unix seconds, `replicas` what the pool should have.

    `reason` is CamelCase and stable, `message` says it in words with the numbers behind it, `binding` names what
    decided (kv, waiting, latency, announced, prefill, decode, demand, idle, bounds, data or none), `forecast` says
    what is expected where anything is, `learned` what a replica can serve, where it is known, `samples` holds the
    figures as read, `mix` the replicas by variant, where there are any,
    and `refused` what other pools or the cluster left it without (arbitration.py).
    """

    time: float
    replicas: int
    reason: str
    message: str
    binding: str = "none"
    forecast: str = ""
    learned: Learned | None = None
    samples: Mapping[str, str] = field(default_factory=dict)
    mix: Mapping[str, int] = field(default_factory=dict)
    refused: Refused | None = None
    lacking: tuple[str, ...] = ()  # variants of `refused`


@dataclass(frozen=True, slots=True)
class VariantMemory:
    """What is remembered of a pool's kinds of accelerator.

    `needed` are (time, capacity) within the window of shrinking, without those that a later one outdoes.
    `pending_since` says since when pods of a variant find no node, `lacking_until` how long none is asked for.
    """

    learned: Mapping[str, Capacity] = field(default_factory=dict)
    needed: tuple[tuple[float, float], ...] = ()
    pending_since: Mapping[str, float] = field(default_factory=dict)
    lacking_until: Mapping[str, float] = field(default_factory=dict)
    cheaper_since: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What one decision hands to the next of the same pool. An empty one is how a restarted operator begins."""

    # Looking began, or began anew after somebody else changed the replicas: no scale-down before the
    # stabilisation window has passed since then.
    since: float | None = None
    replicas: int | None = None  # spec.replicas as last seen
    decided: int | None = None
    # (time, replicas) wanted within the windows, without those that a later one outdoes.
    wanted_high: tuple[tuple[float, int], ...] = ()
    wanted_low: tuple[tuple[float, int], ...] = ()
    changes: tuple[tuple[float, int], ...] = ()  # (time, replicas added) by decisions that were carried out
    idle_since: float | None = None
    requests_ended: tuple[tuple[str, float], ...] = ()  # (pod, count) at the last look
    starting_since: float | None = None
    waiting_since: float | None = None
    # (time, requests without a place) of the looks of the last minute.
    queued: tuple[tuple[float, float], ...] = ()
    # Running requests per ready pod at which others last had to wait.
    saturated_running: float | None = None
    saturated_at: float | None = None
    ready_pods: int | None = None
    ready_pods_since: float | None = None
    capacity: Capacity = field(default_factory=Capacity)
    capacity_read_at: float | None = None
    # (time, prompt and output tokens a second) as a mean that forgets, see ahead.SMOOTHING_SECONDS.
    demand: tuple[float, float, float] | None = None
    startups: tuple[tuple[str, float], ...] = ()  # (pod, seconds from creation to ready), the newest last
    variants: VariantMemory = field(default_factory=VariantMemory)
