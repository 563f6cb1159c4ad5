"""All pools, a row each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tidepool_api.status import PoolCondition
from tidepool_operator.console.views.figures import PoolFigures
from tidepool_operator.console.views.words import (
    JSON,
    needs_somebody,
    number,
    seconds_of,
    shortened,
    split,
    without_none,
)
from tidepool_operator.pool.model import Object
from tidepool_operator.pool.pod_status import condition
from tidepool_operator.pool.reasons import Reason
from tidepool_operator.scaling.model import Decision, Demand, Known, Sample

# Pods of a row that are shown one by one; of a larger pool the fullest.
MOST_PODS: Final = 16


class State(StrEnum):
    """How a pool is, in one word; the worst first."""

    FAILED = "failed"  # it does not serve, and somebody has to act
    DEGRADED = "degraded"  # it serves, and somebody has to act
    STARTING = "starting"
    CHANGING = "changing"  # it serves, and its pods are being replaced or their number changed
    READY = "ready"
    ZERO = "zero"
    LEAVING = "leaving"
    NEW = "new"  # nobody has looked at it yet


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What is known of a pool: the ModelPool and its pods as the cache has them, and figures."""

    raw: Object
    pods: Sequence[Object] = ()
    figures: PoolFigures = field(default_factory=PoolFigures)
    demand: Demand = field(default_factory=Demand)
    decision: Decision | None = None

    @property
    def key(self) -> str:
        """As "namespace/name"."""
        return f"{self.raw['metadata'].get('namespace', '')}/{self.raw['metadata']['name']}"

    @property
    def status(self) -> Mapping[str, Any]:
        """The ModelPool's status."""
        return self.raw.get("status") or {}

    @property
    def scaling(self) -> Mapping[str, Any]:
        """The spec's `scaling`, empty without."""
        return self.raw["spec"].get("scaling") or {}


def row(facts: PoolFacts) -> JSON:
    """One pool in the list. Times in seconds, KV use as a ratio, tokens a second."""
    state, speaks = state_of(facts.raw)
    reason = str(speaks.get("reason") or "")
    what, remedy = split(reason, str(speaks.get("message") or ""))
    # In mode Recommend that is what would be; else the spec is the newest word.
    wanted = facts.raw["spec"].get("replicas", 1)
    if facts.scaling.get("mode") == "Recommend":
        wanted = facts.status.get("desiredReplicas", wanted)
    return without_none(
        {
            "state": str(state),
            "reason": reason,
            "what": shortened(what),
            "do": shortened(remedy) if remedy else None,
            "model": (facts.raw["spec"].get("model") or {}).get("name"),
            "now": sum(is_ready(pod) for pod in facts.pods if not _leaves(pod)),
            "pods": sum(not _leaves(pod) for pod in facts.pods),
            "want": wanted,
            **_figures(facts),
            **_targets(facts.scaling),
        }
    )


def state_of(raw: Object) -> tuple[State, Mapping[str, Any]]:
    """The state, and the condition that says most about it."""
    ready = condition(raw, PoolCondition.READY)
    if raw["metadata"].get("deletionTimestamp"):
        return State.LEAVING, {}
    if not ready:
        return State.NEW, {}
    degraded = condition(raw, PoolCondition.DEGRADED)
    if ready.get("status") != "True":
        bad = degraded.get("status") == "True" or needs_somebody(str(ready.get("reason")))
        return (State.FAILED if bad else State.STARTING), ready
    warns = [degraded] if degraded.get("status") == "True" else _unmet(raw)
    return (State.DEGRADED, warns[0]) if warns else _well(raw, ready)


def _well(raw: Object, ready: Mapping[str, Any]) -> tuple[State, Mapping[str, Any]]:
    """Of a pool that serves."""
    if ready.get("reason") == Reason.SCALED_TO_ZERO:
        return State.ZERO, ready
    progress = condition(raw, PoolCondition.PROGRESSING)
    return (State.CHANGING, progress) if progress.get("status") == "True" else (State.READY, ready)


def _unmet(raw: Object) -> Sequence[Mapping[str, Any]]:
    """What takes nothing away now and will, where it is not told as degraded: no room, no figures to scale by."""
    found = (condition(raw, PoolCondition.CAPACITY_AVAILABLE), condition(raw, PoolCondition.SCALING_ACTIVE))
    return [one for one in found if one.get("status") == "False" and needs_somebody(str(one.get("reason")))]


def _figures(facts: PoolFacts) -> JSON:
    figures, pods = facts.figures, _shown(facts)
    return {
        "kv": [number(figures.of(name, "kv"), 2) for name in pods] or None,
        "queue": [number(figures.of(name, "waiting")) for name in pods] or None,
        "running": number(figures.total("running")),
        "in": number(figures.total("prompt_tokens")),
        "out": number(figures.total("output_tokens")),
        "ttft": number(figures.first_token_seconds, 2),
        "tpot": number(figures.each_token_seconds, 2),
        "held": counted(facts.demand.held),
    }


def _shown(facts: PoolFacts) -> list[str]:
    """Names of the pods that have figures, in their order; of many the fullest."""
    names = sorted(pod["metadata"]["name"] for pod in facts.pods if pod["metadata"]["name"] in facts.figures.pods)
    if len(names) <= MOST_PODS:
        return names
    return sorted(sorted(names, key=lambda name: -(facts.figures.of(name, "kv") or 0.0))[:MOST_PODS])


def _targets(scaling: Mapping[str, Any]) -> JSON:
    targets = scaling.get("targets") or {}
    return {
        "ttftTarget": seconds_of(targets.get("timeToFirstToken")),
        "tpotTarget": seconds_of(targets.get("timePerOutputToken")),
    }


def counted(sample: Sample) -> float | None:
    """A count that is known and says that somebody waits."""
    return number(sample.value) if isinstance(sample, Known) and sample.value else None


def is_ready(pod: Object) -> bool:
    """Whether the pod serves."""
    return condition(pod, "Ready").get("status") == "True"


def _leaves(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))
