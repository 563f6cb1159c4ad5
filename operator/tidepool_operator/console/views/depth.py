"""One pool in depth: conditions, decisions, rollouts, pods with their ledgers."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidepool_api.contract import (
    ENGINE_CONTAINER,
    REVISION_LABEL,
    ROLE_LABEL,
    ROUTER_CONTAINER,
    VARIANT_LABEL,
)
from tidepool_api.load import LoadReport
from tidepool_operator.console.views.pools import PoolFacts, counted, is_ready, row
from tidepool_operator.console.views.words import JSON, condition_told, moment, number, seconds_of, without_none
from tidepool_operator.pool.model import Object
from tidepool_operator.pool.pod_status import container
from tidepool_operator.scaling.model import Decision

# Pods whose ledgers are shown; each is asked every second while somebody looks.
MOST_PODS: Final = 64
_LEDGER: Final = (
    ("running", "running"),
    ("waiting", "waiting"),
    ("held", "held"),
    ("queuedTokens", "queued_tokens"),
    ("heldTokens", "held_tokens"),
    ("expectedTokens", "expected_tokens"),
    ("kvTokens", "kv_tokens"),
    ("kvCapacity", "kv_capacity_tokens"),
    ("opened", "opened_total"),
    ("closed", "closed_total"),
    ("limit", "limit"),
)


def head(facts: PoolFacts) -> JSON:
    """What the pool is, as its spec has it."""
    raw, spec, status = facts.raw, facts.raw["spec"], facts.status
    model, engine, scaling = spec.get("model") or {}, spec.get("engine") or {}, facts.scaling
    targets = scaling.get("targets") or {}
    accelerator = spec.get("accelerator") or {}
    return without_none(
        {
            "key": facts.key,
            "row": row(facts),
            "model": model.get("name") or raw["metadata"]["name"],
            "aliases": list(model.get("aliases") or ()) or None,
            "uri": model.get("uri"),
            "image": engine.get("image"),
            "preset": engine.get("preset"),
            "accelerator": _accelerator(accelerator),
            "url": status.get("url"),
            "policy": (spec.get("routing") or {}).get("policy"),
            "created": moment(raw["metadata"].get("creationTimestamp")),
            "generation": raw["metadata"].get("generation"),
            "seen": status.get("observedGeneration"),
            "mode": scaling.get("mode", "Auto") if scaling else None,
            "min": scaling.get("minReplicas") if scaling else None,
            "max": scaling.get("maxReplicas") if scaling else None,
            "kvTarget": number(_fraction(targets.get("kvUtilization"))),
            "idleAfter": seconds_of(scaling.get("idleAfter")),
            "held": counted(facts.demand.held),
            "refused": counted(facts.demand.refused),
            "inFlight": counted(facts.demand.in_flight),
            "capacity": _capacity(status.get("capacity") or {}),
            "args": list(status.get("engineArgs") or ()) or None,
        }
    )


def _accelerator(accelerator: Mapping[str, Any]) -> str | None:
    resource = accelerator.get("resource")
    return None if resource is None else f"{accelerator.get('count', 1)} {resource}"


def _fraction(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None


def _capacity(told: Mapping[str, Any]) -> JSON | None:
    startup = told.get("startupSeconds") or {}
    found = without_none(
        {
            "prefill": told.get("prefillTokensPerSecond"),
            "output": told.get("outputTokensPerSecond"),
            "from": told.get("learnedFrom"),
            "startup50": startup.get("p50"),
            "startup90": startup.get("p90"),
        }
    )
    return found or None


def conditions(facts: PoolFacts) -> list[JSON]:
    """All conditions, as the status has them."""
    return [condition_told(entry) for entry in facts.status.get("conditions") or []]


def decisions(facts: PoolFacts) -> JSON:
    """The decision in force, what it rests on, and those that changed the count, the newest first.

    Where this process decides, its own word is newer than the status, which is written once a minute.
    """
    told = facts.status.get("scaling") or {}
    last = told.get("lastDecision")
    refused = told.get("refused")
    found: JSON = {"history": [_told(entry) for entry in told.get("history") or []]}
    if facts.decision is not None:
        found["now"] = _decided(facts.decision)
        found["samples"] = dict(facts.decision.samples)
        one = facts.decision.refused
        refused = None if one is None else {"replicas": one.replicas, "reason": one.reason, "message": one.message}
    elif last:
        found["now"] = _told(last)
    if refused:
        found["refused"] = {name: refused.get(name) for name in ("replicas", "reason", "message")}
    return found


def _told(entry: Mapping[str, Any]) -> JSON:
    return without_none(
        {
            "at": moment(entry.get("time")),
            "replicas": entry.get("replicas"),
            "reason": entry.get("reason"),
            "message": entry.get("message"),
            "forecast": entry.get("forecast") or None,
        }
    )


def _decided(decision: Decision) -> JSON:
    return without_none(
        {
            "at": number(decision.time, 10),
            "replicas": decision.replicas,
            "reason": decision.reason,
            "message": decision.message,
            "forecast": decision.forecast or None,
            "binding": decision.binding,
            "mix": dict(decision.mix) or None,
        }
    )


def rollouts(facts: PoolFacts, deployments: Sequence[Object]) -> list[JSON]:
    """Revisions that have pods or are to have some, the newest first."""
    status = facts.status
    current, update = status.get("currentRevision"), status.get("updateRevision")
    variants = {entry.get("updateRevision") for entry in status.get("variants") or []}
    found = []
    for item in deployments:
        labels, spec, told = item["metadata"].get("labels") or {}, item.get("spec") or {}, item.get("status") or {}
        revision = labels.get(REVISION_LABEL, "")
        wanted, there = spec.get("replicas", 0), told.get("replicas", 0)
        newest = revision == update or revision in variants
        if not (newest or wanted or there):
            continue
        found.append(
            without_none(
                {
                    "revision": revision,
                    "variant": labels.get(VARIANT_LABEL),
                    "role": labels.get(ROLE_LABEL),
                    "newest": newest,
                    "serves": revision == current,
                    "want": wanted,
                    "pods": there,
                    "ready": told.get("readyReplicas", 0),
                    "image": _image(spec),
                    "since": moment(item["metadata"].get("creationTimestamp")),
                }
            )
        )
    return sorted(found, key=lambda one: (-(one.get("since") or 0.0), one["revision"]))


def _image(spec: Mapping[str, Any]) -> str | None:
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or []
    return next((one.get("image") for one in containers if one.get("name") == ENGINE_CONTAINER), None)


def pods(facts: PoolFacts, loads: Mapping[str, LoadReport]) -> dict[str, JSON]:
    """The pool's pods by name; `loads` are the reports of those that answered just now."""
    names = sorted(pod["metadata"]["name"] for pod in facts.pods)[:MOST_PODS]
    by_name = {pod["metadata"]["name"]: pod for pod in facts.pods}
    return {name: _pod(by_name[name], facts, loads.get(name)) for name in names}


def _pod(pod: Object, facts: PoolFacts, load: LoadReport | None) -> JSON:
    metadata, name = pod["metadata"], pod["metadata"]["name"]
    labels = metadata.get("labels") or {}
    engine, router = container(pod, ENGINE_CONTAINER), container(pod, ROUTER_CONTAINER)
    return without_none(
        {
            "state": _state(pod, engine),
            "why": _why(pod, engine),
            "node": (pod.get("spec") or {}).get("nodeName"),
            "created": moment(metadata.get("creationTimestamp")),
            "restarts": engine.get("restartCount") or None,
            "routerRestarts": router.get("restartCount") or None,
            "revision": labels.get(REVISION_LABEL),
            "variant": labels.get(VARIANT_LABEL),
            "role": labels.get(ROLE_LABEL),
            "in": number(facts.figures.of(name, "prompt_tokens")),
            "cached": number(facts.figures.of(name, "cached_tokens")),
            "out": number(facts.figures.of(name, "output_tokens")),
            "ledger": None if load is None else _ledger(load),
        }
    )


def _state(pod: Object, engine: Object) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "draining"
    if is_ready(pod):
        return "ready"
    if not (pod.get("spec") or {}).get("nodeName"):
        return "pending"
    return "unready" if engine.get("started") else "starting"


def _why(pod: Object, engine: Object) -> str | None:
    """Kubernetes' own word for what a pod waits for."""
    waiting = (engine.get("state") or {}).get("waiting") or {}
    conditions = (pod.get("status") or {}).get("conditions") or []
    unplaced: Object = next((one for one in conditions if one.get("type") == "PodScheduled"), {})
    if unplaced.get("status") == "False":
        return str(unplaced.get("message") or unplaced.get("reason") or "")[:300] or None
    return None if is_ready(pod) else waiting.get("reason")


def _ledger(load: LoadReport) -> JSON:
    return without_none(
        {
            "health": str(load.health),
            "kv": number(load.kv_usage, 2),
            "exhausted": number(load.kv_exhausted_seconds, 2),
            "prefillSpeed": number(load.prefill_tokens_per_second, 2),
            "outputSpeed": number(load.output_tokens_per_second, 2),
            "adapters": list(load.adapters) or None,
            **{name: getattr(load, attribute) for name, attribute in _LEDGER},
        }
    )
