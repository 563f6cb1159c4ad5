"""Scaling ahead of demand on the real cluster: real Prometheus, real pods whose engines take a minute to start.

A day is half an hour long. Its history is in Prometheus; its morning, in which demand grows fourfold within five
minutes, is lived through by two pools at once, of which one predicts. Then the engines' metrics take older names,
and Prometheus is killed and comes back. Beside it: a pool whose pods find no node, and one that somebody scales by
hand. FAST of fast_days.py says by how much forecasts hurry; nothing else of the operator is changed.
"""

import contextlib
import json
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cluster import lifecycle, prometheus
from scenarios import programs
from scenarios.arrivals import Arrivals, arriving
from scenarios.engine_double import OLD_NAMES, ORDERS
from scenarios.evidence import BUILD, prometheus_sample
from scenarios.kube import Object, condition, is_ready, wait_for
from scenarios.pools import NAMESPACE, double_pool, double_source
from scenarios.world import POOL_LABEL, SYSTEM_NAMESPACE, World
from tidepool_api import rules

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.soak,
    pytest.mark.timeout(1800),
]

DAY_SECONDS, RISE_SECONDS, DAYS = 1800.0, 300.0, 8
LOW, HIGH = 50.0, 250.0  # output tokens a second
TOKENS, PROMPT_TOKENS = 100, 40
LOADING_SECONDS = 55.0
# From the first request to the rise.
QUIET_SECONDS, HIGH_SECONDS = 150.0, 100.0
STARTS_SECONDS = LOADING_SECONDS + 45.0
FIRST_SECONDS, EACH_SECONDS = 2.0, 0.15
# Ten tokens a second for each stream, and KV cache for some ten streams: 50 tokens a second take 0.6 of a replica.
SPEED = {"BASE_SECONDS": 0.1, "LOADING_SECONDS": LOADING_SECONDS}
SIZE = ("--max-num-seqs=64", "--num-gpu-blocks-override=64")
AHEAD, BEHIND, STUCK, BY_HAND = "ahead", "behind", "stuck", "by-hand"
FILES = {"fast_days.py": Path(__file__).with_name("fast_days.py")}
OPERATOR = "tidepool.dev/component=operator"


@dataclass(slots=True)
class Watched:
    """What was seen of a pool, every two seconds: time, replicas wanted, ready, and the decision."""

    name: str
    seen: list[tuple[float, int, int, str]] = field(default_factory=list)

    def look(self, world: World) -> None:
        pool = world.kube.get("modelpool", self.name, NAMESPACE) or {}
        status = pool.get("status") or {}
        told = ((status.get("scaling") or {}).get("lastDecision") or {}).get("message", "")
        self.seen.append((time.time(), pool["spec"].get("replicas", 1), status.get("readyReplicas", 0), told))

    def at(self, moment: float) -> tuple[int, int]:
        """Replicas wanted and ready then."""
        before = [one for one in self.seen if one[0] <= moment] or self.seen[:1]
        return before[-1][1], before[-1][2]

    def changes(self) -> Iterator[tuple[float, int, int, str]]:
        """Each moment at which wanted or ready became another."""
        last: tuple[int, int] | None = None
        for at, wanted, ready, told in self.seen:
            if (wanted, ready) != last:
                yield at, wanted, ready, told
            last = (wanted, ready)


def demand(at: float, rises_at: float) -> float:
    """Output tokens a second of every day at that time: night, morning, day, evening."""
    morning = (at - rises_at) % DAY_SECONDS
    if morning < RISE_SECONDS:
        return LOW + (HIGH - LOW) * morning / RISE_SECONDS
    day = 0.4 * DAY_SECONDS
    if morning < day:
        return HIGH
    return max(LOW, HIGH - (HIGH - LOW) * (morning - day) / RISE_SECONDS)


def history(now: float, rises_at: float) -> str:
    """OpenMetrics of what the recording rules would have kept of the pool in the days before."""
    draw = random.Random(7)
    times = [now - 20.0 - 15.0 * n for n in range(int(DAYS * DAY_SECONDS / 15.0))][::-1]
    # Minutes differ from day to day.
    noise = {minute: draw.gauss(1.0, 0.05) for minute in range(int(times[0] // 60), int(now // 60) + 1)}
    rows = [(at, demand(at, rises_at) * noise[int(at // 60)]) for at in times]
    shares = {
        rules.POOL_OUTPUT_TOKENS: 1.0,
        rules.POOL_PROMPT_TOKENS: PROMPT_TOKENS / TOKENS,
        rules.POOL_CACHED_TOKENS: 0.0,
        rules.POOL_REQUESTS: 1.0 / TOKENS,
    }
    labels = f'{{namespace="{NAMESPACE}",pool="{AHEAD}"}}'
    lines = []
    for name, share in shares.items():
        lines.append(f"# TYPE {name} gauge")
        lines += [f"{name}{labels} {value * share:.4f} {at:.3f}" for at, value in rows]
    return "\n".join([*lines, "# EOF", ""])


def scaled(name: str, *, predicts: bool) -> Object:
    made = double_pool(
        name,
        SPEED,
        SIZE,
        scaling={
            "minReplicas": 1,
            "maxReplicas": 4,
            "targets": {"timeToFirstToken": f"{FIRST_SECONDS:.0f}s"},
            "behavior": {"scaleDown": {"stabilizationWindow": "20s"}},
            "prediction": {"enabled": predicts, "season": f"{DAY_SECONDS / 60:.0f}m"},
        },
        rollout={"drainTimeout": "30s"},
    )
    made["spec"]["engine"]["maxModelLen"] = 1000
    return made


def stuck() -> Object:
    """Five accelerators a pod, where nodes have four."""
    return double_pool(
        STUCK,
        {},
        accelerator={"resource": "nvidia.com/gpu", "count": 5},
        parallelism={"tensor": 5},
        scaling={"minReplicas": 1, "maxReplicas": 4, "prediction": {"enabled": False}},
        routing={"queue": {"coldStartTimeout": "40s", "timeout": "40s"}},
    )


def by_hand() -> Object:
    scaling = {"minReplicas": 1, "maxReplicas": 3, "prediction": {"enabled": False}}
    return double_pool(BY_HAND, {}, scaling={**scaling, "behavior": {"scaleDown": {"stabilizationWindow": "15s"}}})


@contextlib.contextmanager
def hurried(world: World) -> Iterator[None]:
    """The operator by fast_days.py, for a while."""
    kube = world.kube
    kube.apply(programs.source("fast-days", SYSTEM_NAMESPACE, FILES))
    (name,) = kube.exists("deployments", SYSTEM_NAMESPACE, OPERATOR)
    container = {
        "name": "operator",
        "command": [programs.PYTHON_OF_ROUTER, f"{programs.FOLDER}/fast_days.py"],
        "volumeMounts": [{"name": "fast-days", "mountPath": programs.FOLDER, "readOnly": True}],
    }
    pod = {"containers": [container], "volumes": [programs.volume("fast-days", FILES)]}
    patch = json.dumps({"spec": {"template": {"spec": pod}}})
    where = ("-n", SYSTEM_NAMESPACE)
    settled = ("rollout", "status", "deployment", name, *where, "--timeout=90s")
    kube.run("patch", "deployment", name, *where, "--type=strategic", "-p", patch)
    kube.run(*settled, timeout_seconds=100)
    try:
        yield
    finally:
        kube.run("rollout", "undo", "deployment", name, *where)
        kube.run(*settled, timeout_seconds=100)


@pytest.fixture
def days(world: World) -> Iterator[float]:
    """When demand rises; the days before are in Prometheus, and the pools stand."""
    now = time.time()
    rises_at = now + STARTS_SECONDS + QUIET_SECONDS
    BUILD.mkdir(parents=True, exist_ok=True)
    past = BUILD / "history.txt"
    past.write_text(history(now, rises_at))
    layout, machine, _ = lifecycle.require()
    prometheus.take_history(layout, machine, past)
    with hurried(world):
        world.kube.apply(double_source())
        pools = [scaled(AHEAD, predicts=True), scaled(BEHIND, predicts=False), stuck(), by_hand()]
        world.kube.apply(*pools)
        yield rises_at
        names = [pool["metadata"]["name"] for pool in pools]
        world.kube.run(
            *("delete", "modelpool", *names, "-n", NAMESPACE, "--ignore-not-found", "--timeout=90s"),
            timeout_seconds=100,
        )


def test_a_day_is_met_ahead_of_time_and_what_goes_wrong_never_shrinks_a_pool(world: World, days: float) -> None:
    table: list[tuple[str, str]] = []

    def tell(what: str, seen: str) -> None:
        table.append((what, seen))
        world.evidence.say(f"{what}: {seen}")

    try:
        with ThreadPoolExecutor(1) as threads:
            beside = threads.submit(_beside, world, tell)
            _morning(world, days, tell)
            beside.result()
    finally:
        world.evidence.facts["daily_load"] = table
        world.evidence.write()
        print("\n" + "\n".join(f"  {what:<44} {seen}" for what, seen in table), flush=True)


def _pool(world: World, name: str) -> Object:
    found = world.kube.get("modelpool", name, NAMESPACE)
    assert found is not None
    return found


def _pods(world: World, name: str) -> Sequence[Object]:
    pods = world.kube.items("pods", NAMESPACE, f"{POOL_LABEL}={name}")
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def _decided(world: World, name: str) -> dict[str, Any]:
    status = _pool(world, name).get("status") or {}
    return dict((status.get("scaling") or {}).get("lastDecision") or {})


def _ready(world: World, name: str, count: int) -> bool | None:
    return sum(map(is_ready, _pods(world, name))) == count or None


def _beside(world: World, tell: Any) -> None:
    """While the engines start: pods without a node, and a person who scales."""
    wait_for("a pod by hand", lambda: _ready(world, BY_HAND, 1), timeout_seconds=60)
    began = time.time()
    world.kube.run("scale", "modelpool", BY_HAND, "-n", NAMESPACE, "--replicas=3")
    wait_for("three pods by hand", lambda: _ready(world, BY_HAND, 3), timeout_seconds=30)
    up = time.time() - began
    wait_for(
        "the pool to be as large as its load asks for",
        lambda: _pool(world, BY_HAND)["spec"]["replicas"] == 1 or None,
        timeout_seconds=120,
    )
    down = time.time() - began
    assert down >= 15.0, "a size that a person chose is kept for a stabilisation window at least"
    told = _decided(world, BY_HAND)["message"]
    tell("kubectl scale --replicas=3", f"3 ready after {up:.0f} s, 1 again after {down:.0f} s: {told}")
    world.kube.run("scale", "modelpool", BY_HAND, "-n", NAMESPACE, "--replicas=0")
    wait_for(
        "the least replicas",
        lambda: _pool(world, BY_HAND)["spec"]["replicas"] == 1 or None,
        timeout_seconds=30,
    )
    tell("kubectl scale --replicas=0, minReplicas 1", _history(world, BY_HAND)[0]["message"])
    world.kube.run("delete", "modelpool", BY_HAND, "-n", NAMESPACE, "--wait=false")
    _no_node(world, tell)


def _history(world: World, name: str) -> list[dict[str, Any]]:
    status = _pool(world, name).get("status") or {}
    return list((status.get("scaling") or {}).get("history") or [])


def _no_node(world: World, tell: Any) -> None:
    asks = Arrivals(world.gateway_url, f"{STUCK}-llama", lambda _: 2.0, timeout_seconds=20)
    with arriving(asks):
        time.sleep(20)
        waits = _pool(world, STUCK)
        assert waits["spec"]["replicas"] == 1, "pods that find no node led to more of them"
        assert len(_pods(world, STUCK)) == 1
    lacks = condition(waits, "CapacityAvailable")
    assert lacks["status"] == "False"
    tell("pods that find no node, 40 requests held", f"1 replica; {lacks['reason']}: {lacks['message'][:110]}")
    world.kube.run("delete", "modelpool", STUCK, "-n", NAMESPACE, "--wait=false")


def _morning(world: World, rises_at: float, tell: Any) -> None:
    watched = {name: Watched(name) for name in (AHEAD, BEHIND)}
    lowered: list[float] = []

    def rate(at: float) -> float:
        return (LOW if lowered else demand(at, rises_at)) / TOKENS

    loads = {name: Arrivals(world.gateway_url, f"{name}-llama", rate, TOKENS) for name in watched}
    for name in watched:
        wait_for(f"a pod of {name}", lambda name=name: _ready(world, name, 1), timeout_seconds=STARTS_SECONDS)
    began, full = time.time(), rises_at + RISE_SECONDS
    with arriving(*loads.values()):
        while time.time() < full + HIGH_SECONDS:
            for one in watched.values():
                one.look(world)
            time.sleep(2.0)
        _tell_days(watched, loads, began, rises_at, tell)
        _renamed(world, tell)
        _prometheus_away(world, lowered, tell)
    missed = {name: [one.error for one in load.records if one.error][:3] for name, load in loads.items()}
    assert missed[AHEAD] == [], missed


def _tell_days(
    watched: dict[str, Watched], loads: dict[str, Arrivals], began: float, rises_at: float, tell: Any
) -> None:
    full = rises_at + RISE_SECONDS
    levels = {}
    for name, one in watched.items():
        for at, wanted, ready, told in one.changes():
            now = demand(at, rises_at)
            tell(f"{name} {at - rises_at:+5.0f} s, {now:.0f} tokens/s", f"{wanted} wanted, {ready} ready; {told}")
        came = loads[name].between(rises_at, full + HIGH_SECONDS - 30.0)
        within = sum(each.within(FIRST_SECONDS, EACH_SECONDS) for each in came) / len(came)
        paid = sum(ready for _, _, ready, _ in one.seen) * 2.0
        levels[name] = within
        tell(
            f"{name}: requests of the morning within targets",
            f"{within:.1%} of {len(came)}; {paid:.0f} pod seconds",
        )
    ahead = watched[AHEAD]
    foretold = [told for at, _, _, told in ahead.changes() if "ahead (start-up P90" in told]
    assert foretold, "no decision was explained by what is ahead"
    # Half way up the demand is that of two replicas: without a forecast the second one would only be asked for.
    assert ahead.at(rises_at + 0.4 * RISE_SECONDS)[1] >= 2, "the second replica came too late"
    assert levels[AHEAD] >= 0.9, levels
    assert levels[AHEAD] > levels[BEHIND], levels


def _renamed(world: World, tell: Any) -> None:
    """The engines' page as an older vLLM has it: the pool is still seen whole."""
    for pod in _pods(world, AHEAD):
        name = pod["metadata"]["name"]
        world.kube.run("exec", name, "-n", NAMESPACE, "-c", "engine", "--", "touch", str(ORDERS / OLD_NAMES))
    labels = f'{{namespace="{NAMESPACE}",pool="{AHEAD}"}}'
    wait_for(
        "the older name in Prometheus",
        lambda: prometheus_sample(world.prometheus_url, f"vllm:gpu_cache_usage_perc{labels}")["result"],
        timeout_seconds=30,
    )
    time.sleep(15)  # what has no new sample by now is gone from the rules
    for record in (rules.POD_KV_USAGE, rules.POD_WAITING, rules.POD_OUTPUT_TOKENS, rules.POD_CACHED_TOKENS):
        found = prometheus_sample(world.prometheus_url, f"{record}{labels}")["result"]
        assert len(found) >= len(_pods(world, AHEAD)), (record, found)
    decided = _decided(world, AHEAD)
    assert decided["reason"] != "MetricsMissing", decided
    tell("metrics renamed", f"{decided['reason']}: {decided['message'][:110]}")


def _prometheus_away(world: World, lowered: list[float], tell: Any) -> None:
    """Demand falls while Prometheus is dead: nothing shrinks; when it is back, what foresees nothing does."""
    layout, machine, _ = lifecycle.require()
    before = _sizes(world)
    prometheus.stop(machine)
    lowered.append(time.time())
    try:
        told = wait_for("a pool without figures to say so", lambda: _blind(world, AHEAD), timeout_seconds=60)
        time.sleep(40)
        held = _sizes(world)
        assert all(held[name] >= before[name] for name in before), (before, held)
        tell("Prometheus killed, demand falls", f"{before} -> {held}; {told['message'][:140]}")
    finally:
        prometheus.ensure(layout, machine)
    back = time.time()
    wait_for("figures again", lambda: _blind(world, AHEAD) is None or None, timeout_seconds=90)
    known = time.time() - back
    wait_for("fewer replicas", lambda: _sizes(world)[BEHIND] < held[BEHIND] or None, timeout_seconds=120)
    tell("Prometheus back", f"figures after {known:.0f} s; {_history(world, BEHIND)[0]['message'][:140]}")


def _sizes(world: World) -> dict[str, int]:
    return {name: _pool(world, name)["spec"]["replicas"] for name in (AHEAD, BEHIND)}


def _blind(world: World, name: str) -> dict[str, Any] | None:
    decided = _decided(world, name)
    return decided if decided.get("reason") == "MetricsMissing" else None
