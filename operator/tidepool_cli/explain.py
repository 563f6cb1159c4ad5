"""Why a pool has as many replicas as it has, why it is not Ready, and what to do. Pure: objects in, view out."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from tidepool_cli.kubectl import Object
from tidepool_cli.tables import Paint, age, moment, plain, table

_MOST_EVENTS = 8


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of the pool."""

    name: str
    state: str
    ready: bool
    restarts: int
    revision: str
    node: str
    created: str | None


@dataclass(frozen=True, slots=True)
class PoolView:
    """What is told of a pool; `decisions` as in its status, the newest first."""

    namespace: str
    name: str
    ready: bool
    reason: str
    message: str
    since: str | None
    stale: bool
    wanted: int | None
    counted: int
    serving: int
    bounds: str
    url: str
    figures: dict[str, Any]
    refused: dict[str, Any]
    decisions: tuple[dict[str, Any], ...]
    conditions: tuple[dict[str, Any], ...]
    pods: tuple[PodView, ...]
    events: tuple[dict[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)


def view(pool: Object, pods: Sequence[Object], events: Sequence[Object]) -> PoolView:
    """What the objects say of a pool."""
    metadata, spec, status = pool["metadata"], pool.get("spec") or {}, pool.get("status") or {}
    conditions = tuple(status.get("conditions") or ())
    ready: Object = next((each for each in conditions if each.get("type") == "Ready"), {})
    scaling = status.get("scaling") or {}
    return PoolView(
        namespace=metadata.get("namespace", "default"),
        name=metadata["name"],
        ready=ready.get("status") == "True",
        reason=ready.get("reason", "NotSeenYet"),
        message=ready.get("message") or "The operator has not looked at this pool yet; is it running?",
        since=ready.get("lastTransitionTime"),
        stale=status.get("observedGeneration", 0) != metadata.get("generation", 0),
        wanted=status.get("desiredReplicas", spec.get("replicas", 1)),
        counted=status.get("replicas") or 0,
        serving=status.get("readyReplicas") or 0,
        bounds=_bounds(spec),
        url=status.get("url", ""),
        figures=dict(status.get("figures") or {}),
        refused=dict(scaling.get("refused") or {}),
        decisions=_decisions(scaling),
        conditions=conditions,
        pods=tuple(sorted((_pod(each) for each in pods), key=lambda each: each.name)),
        events=_events(events),
    )


def _bounds(spec: Object) -> str:
    scaling = spec.get("scaling")
    if not scaling:
        return f"fixed at {spec.get('replicas', 1)}; there is no scaling"
    mode = scaling.get("mode", "Auto")
    return f"{scaling.get('minReplicas', 1)} to {scaling.get('maxReplicas', '?')}, mode {mode}"


def _decisions(scaling: Object) -> tuple[dict[str, Any], ...]:
    last, history = scaling.get("lastDecision"), list(scaling.get("history") or ())
    if last and last not in history:
        history.insert(0, last)
    return tuple(history)


def _pod(pod: Object) -> PodView:
    status, metadata = pod.get("status") or {}, pod["metadata"]
    containers = status.get("containerStatuses") or []
    ready = any(
        each.get("type") == "Ready" and each.get("status") == "True" for each in status.get("conditions") or []
    )
    return PodView(
        name=metadata["name"],
        state="Terminating" if metadata.get("deletionTimestamp") else _state(status, containers),
        ready=ready,
        restarts=sum(each.get("restartCount", 0) for each in containers),
        revision=(metadata.get("labels") or {}).get("tidepool.dev/revision", ""),
        node=(pod.get("spec") or {}).get("nodeName", ""),
        created=metadata.get("creationTimestamp"),
    )


def _state(status: Object, containers: Sequence[Object]) -> str:
    """The container's own word where one waits or has ended: that is what stands in the way."""
    for each in containers:
        for kind in ("waiting", "terminated"):
            reason = ((each.get("state") or {}).get(kind) or {}).get("reason")
            if reason:
                return f"{each['name']}: {reason}"
    unscheduled = next(
        (
            each.get("reason", "")
            for each in status.get("conditions") or []
            if each.get("type") == "PodScheduled" and each.get("status") == "False"
        ),
        "",
    )
    return unscheduled or str(status.get("phase", "Unknown"))


def _events(events: Sequence[Object]) -> tuple[dict[str, Any], ...]:
    told = [
        {
            "time": each.get("lastTimestamp")
            or each.get("eventTime")
            or each["metadata"].get("creationTimestamp"),
            "type": each.get("type", ""),
            "reason": each.get("reason", ""),
            "message": each.get("message", ""),
        }
        for each in events
    ]
    return tuple(sorted(told, key=lambda each: str(each["time"]), reverse=True)[:_MOST_EVENTS])


def text(found: PoolView, now: datetime, paint: Paint) -> str:
    """For people: the verdict and its remedy first, then why so many replicas, then what stands behind it."""
    verdict = paint("green", "Ready") if found.ready else paint("red", "not Ready")
    lines = [
        f"{paint('bold', f'{found.namespace}/{found.name}')}: {verdict} for {age(moment(found.since), now)}"
        f" ({plain(found.reason)})",
        f"  {plain(found.message)}",
    ]
    if found.stale:
        lines.append("  The operator has not yet taken up the last change of the spec.")
    lines += [
        "",
        f"Replicas: {found.wanted} wanted, {found.serving} ready of {found.counted} pods ({found.bounds})",
    ]
    lines += _why(found, now)
    bad = [each for each in found.conditions if _is_bad(each)]
    if bad:
        lines += ["", "Conditions that ask for something:"]
        lines += [
            f"  {plain(each['type'])} ({plain(each.get('reason', ''))}): {plain(each.get('message', ''))}"
            for each in bad
        ]
    if found.pods:
        heads = ("POD", "STATE", "READY", "RESTARTS", "REVISION", "AGE", "NODE")
        rows = [
            (
                *(each.name, each.state, "yes" if each.ready else "no", each.restarts, each.revision),
                *(age(moment(each.created), now), each.node),
            )
            for each in found.pods
        ]
        lines += ["", table(heads, rows)]
    if found.events:
        lines += ["", "Events, the newest first:"]
        lines += [
            f"  {age(moment(each['time']), now)} ago  {plain(each['reason'])}: {plain(each['message'])}"
            for each in found.events
        ]
    if found.url:
        lines += ["", f"Inside the cluster: {plain(found.url)}"]
    return "\n".join(lines)


def _is_bad(condition: Object) -> bool:
    wrong = "True" if condition.get("type") == "Degraded" else "False"
    idle = condition.get("type") == "Progressing" or condition.get("reason") in ("ScalingOff", "NoDecision")
    return condition.get("type") != "Ready" and condition.get("status") == wrong and not idle


def _why(found: PoolView, now: datetime) -> list[str]:
    lines = []
    if found.decisions:
        last = found.decisions[0]
        lines.append(f"  Why: {plain(last.get('message', ''))} ({age(moment(last.get('time')), now)} ago)")
        if last.get("forecast"):
            lines.append(f"  Expected: {plain(last['forecast'])}")
    if found.refused:
        lines.append(f"  Left without {found.refused.get('replicas')}: {plain(found.refused.get('message', ''))}")
    lines += [
        f"  Before, {age(moment(each.get('time')), now)} ago: {plain(each.get('message', ''))}"
        for each in found.decisions[1:4]
    ]
    return lines
