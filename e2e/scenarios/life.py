"""The life of a pool, step by step. Demo and test tell the same story with the same code."""

import time
from collections.abc import Callable
from typing import Any

from scenarios.kube import Object, condition, wait_for
from scenarios.streams import Load, Stream
from scenarios.world import POOL_LABEL, SYSTEM_NAMESPACE, World

# An engine on two busy cores needs 50 to 120 s to start, and a rollout starts two beside two that work.
START_SECONDS = 300.0
STREAMS = 16
# A few more than the bound, since a client loop is between two requests now and then.
LOOPS = 20
OWNED_KINDS = (
    "deployments,replicasets,pods,services,endpointslices,configmaps,serviceaccounts,"
    "poddisruptionbudgets,networkpolicies"
)


def apply_pool(world: World) -> None:
    """kubectl apply; Ready is seen on the ModelPool and by kubectl wait."""
    with world.transition("apply: 0 -> 1"):
        world.kube.apply(world.pool)
        world.wait_settled(1, timeout_seconds=START_SECONDS)
    world.kube.run(
        *("wait", "--for=condition=Ready", f"modelpool/{world.name}", "-n", world.namespace, "--timeout=60s")
    )
    wait_for(
        f"model {world.model} at the gateway",
        lambda: world.model in world.gateway_models() or None,
        timeout_seconds=60,
    )


def scale_up(world: World, load: Load) -> None:
    """Load until Prometheus' figures ask for a second replica."""
    load.keep(LOOPS)
    with world.transition("load: 1 -> 2", load, streams=STREAMS) as one:
        seen = wait_for(
            "a decision for 2 replicas",
            lambda: world.resource() if world.resource()["spec"]["replicas"] == 2 else None,
            timeout_seconds=120,
        )
        one.prometheus = world.waiting_by_pod()
        world.evidence.say(f"spec.replicas is {seen['spec']['replicas']}")
        world.wait_settled(2, timeout_seconds=START_SECONDS)
        one.decision = decision_for(world, 2)


def roll_out(world: World, load: Load, change: Object) -> None:
    """A change of the spec: new pods up, old ones drained, streams run on."""
    with world.transition("spec change: rollout", load, streams=STREAMS) as one:
        before = set(one.pods_before.values())
        world.kube.patch("modelpool", world.name, world.namespace, change)
        wait_for(
            "only pods of the new revision",
            lambda: _rolled(world, before),
            timeout_seconds=2 * START_SECONDS,
        )
        world.wait_settled(2, timeout_seconds=START_SECONDS)


def _rolled(world: World, before: set[str]) -> bool | None:
    resource = world.resource()
    status = resource.get("status") or {}
    current = status.get("observedGeneration") == resource["metadata"]["generation"]
    uids = {pod["metadata"]["uid"] for pod in world.pods()}
    return (current and not uids & before and status.get("updatedReplicas") == 2) or None


def restart_operator(world: World, load: Load) -> None:
    """The operator is killed and comes back; no engine pod is touched."""
    selector = "tidepool.dev/component=operator"
    with world.transition("operator restarted", load, streams=STREAMS) as one:
        old = world.kube.exists("pods", SYSTEM_NAMESPACE, selector)
        world.kube.run("delete", "pod", "-n", SYSTEM_NAMESPACE, "-l", selector, "--grace-period=0", "--force")
        world.kube.run(
            *("rollout", "status", "deployment", "-n", SYSTEM_NAMESPACE, "-l", selector, "--timeout=90s"),
            timeout_seconds=100,
        )
        assert set(world.kube.exists("pods", SYSTEM_NAMESPACE, selector)).isdisjoint(old)
        _touch_and_see(world)
        assert world.uids() == one.pods_before, "the operator's restart touched a pod"


def _touch_and_see(world: World) -> None:
    """The new operator works: a change that restarts nothing is observed."""
    world.kube.patch(
        "modelpool", world.name, world.namespace, {"spec": {"routing": {"queue": {"maxWaiting": 300}}}}
    )
    generation = world.resource()["metadata"]["generation"]
    wait_for(
        "the restarted operator to observe a change",
        lambda: (world.resource().get("status") or {}).get("observedGeneration") == generation or None,
        timeout_seconds=120,
    )


def kill_engine(world: World, load: Load, kill: Callable[[Object], None]) -> list[Stream]:
    """An engine dies by SIGKILL; only its streams fail, each with an error event. Returns those."""
    failed_before = len(load.failed())
    with world.transition("engine killed", load, streams=STREAMS) as one:
        pod = world.ready_pods()[0]
        name = pod["metadata"]["name"]
        restarts = engine_restarts(pod)
        wait_for(
            f"streams on {name}",
            lambda: [s for s in load.receiving() if s.pod == name] or None,
            timeout_seconds=60,
        )
        on_it = {stream.number for stream in load.running() if stream.pod in (name, "")}
        kill(pod)
        wait_for(
            "the engine container to be restarted",
            lambda: _restarted(world, name, restarts),
            timeout_seconds=START_SECONDS,
        )
        world.wait_settled(2, timeout_seconds=START_SECONDS)
        assert world.uids() == one.pods_before, "an engine that died must restart in its pod"
    failed = load.failed()[failed_before:]
    strangers = [one for one in failed if one.number not in on_it and one.pod != name]
    assert strangers == [], f"streams failed that were not on the engine that was killed: {strangers}"
    silent = [one for one in failed if not one.error_event]
    assert silent == [], f"streams on the killed engine ended without an error event: {silent}"
    return failed


def engine_restarts(pod: Object) -> int:
    """How often the engine's container was restarted."""
    statuses = pod["status"].get("containerStatuses", [])
    return sum(one["restartCount"] for one in statuses if one["name"] == "engine")


def _restarted(world: World, name: str, restarts: int) -> bool | None:
    pods = [pod for pod in world.pods() if pod["metadata"]["name"] == name]
    return (bool(pods) and engine_restarts(pods[0]) > restarts) or None


def scale_down(world: World, load: Load, slow: int, slow_tokens: int) -> None:
    """Load falls; 2 -> 1 while slow streams are open on both pods. The one that goes drains."""
    load.keep(0)
    wait_for("the load to end", lambda: not load.running() or None, timeout_seconds=120)
    # By the pods' own addresses: a picker may well find one of two idle pods good enough for three streams.
    load.send(slow, tokens=slow_tokens, routes=world.pod_routes())
    wait_for(
        "slow streams on both pods",
        lambda: len({s.pod for s in load.receiving()}) == 2 or None,
        timeout_seconds=30,
    )
    with world.transition("load falls: 2 -> 1", load) as one:
        one.prometheus = world.waiting_by_pod()
        leaving = wait_for("a pod that leaves", lambda: _leaving(world), timeout_seconds=180)
        open_on_it = [stream for stream in load.receiving() if stream.pod == leaving]
        assert open_on_it, f"no stream was open on {leaving} when it was told to go"
        world.evidence.say(f"{leaving} goes with {len(open_on_it)} slow streams open")
        one.decision = decision_for(world, 1)
        world.wait_settled(1, timeout_seconds=START_SECONDS)
        # The pod has gone, and with it its connections; the clients read to their ends in their own time.
        wait_for(
            "the clients to see the ends of its streams",
            lambda: all(stream.ended is not None for stream in open_on_it) or None,
            timeout_seconds=60,
        )
        cut = [stream for stream in open_on_it if not stream.whole]
        assert cut == [], f"streams on the pod that went were cut: {cut}"
        world.facts["slow_streams_on_leaving_pod"] = [(s.received, s.asked) for s in open_on_it]


def _leaving(world: World) -> str | None:
    going = [pod["metadata"]["name"] for pod in world.pods() if pod["metadata"].get("deletionTimestamp")]
    return going[0] if going else None


def to_zero(world: World) -> None:
    """Nobody asks: the pool goes to zero and stays Ready."""
    with world.transition("idle: 1 -> 0") as one:
        wait_for("no pods", lambda: not world.pods() or None, timeout_seconds=START_SECONDS)
        wait_for(
            "status of a pool at zero",
            lambda: condition(world.resource(), "Ready").get("reason") == "ScaledToZero" or None,
            timeout_seconds=30,
        )
        one.decision = decision_for(world, 0)


def back_from_zero(world: World, load: Load, requests: int = STREAMS) -> None:
    """Requests wait while the first pod starts; each is answered whole."""
    first = len(load.records)
    with world.transition("demand: 0 -> 1") as one:
        sent = time.monotonic()
        load.send(requests)
        wait_for(
            "a decision for 1 replica",
            lambda: world.resource()["spec"]["replicas"] == 1 or None,
            timeout_seconds=60,
            every_seconds=0.05,
        )
        world.facts["zero_to_decision_seconds"] = round(time.monotonic() - sent, 2)
        world.wait_settled(1, timeout_seconds=START_SECONDS)
        one.decision = decision_for(world, 1)
        wait_for(
            "all requests that waited to be answered",
            lambda: all(stream.ended is not None for stream in load.records[first:]) or None,
            timeout_seconds=120,
        )
    waited = load.records[first:]
    assert len(waited) == requests
    assert [stream for stream in waited if not stream.whole] == []


def delete_pool(world: World) -> None:
    """kubectl delete; nothing that carries the pool's label is left."""
    world.kube.run("delete", "modelpool", world.name, "-n", world.namespace, "--timeout=60s")
    with world.transition("deleted"):
        wait_for("nothing of the pool", lambda: not leftovers(world) or None, timeout_seconds=120)


def leftovers(world: World) -> list[str]:
    """Names of objects that carry the pool's label."""
    return world.kube.exists(OWNED_KINDS, world.namespace, f"{POOL_LABEL}={world.name}")


def decision_for(world: World, replicas: int) -> dict[str, Any]:
    """The decision in status that led to that many replicas: the newest change, else what was decided last."""

    def look() -> dict[str, Any] | None:
        scaling = (world.resource().get("status") or {}).get("scaling") or {}
        history = [*(scaling.get("history") or []), scaling.get("lastDecision") or {}]
        return next((dict(one) for one in history if one.get("replicas") == replicas and one.get("message")), None)

    return wait_for(f"a decision for {replicas} in status", look, timeout_seconds=60)
