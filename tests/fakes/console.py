"""Clusters for the console: as many pools as wanted, with all states, and a server of the page over them."""

import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidepool_api import rules
from tidepool_api.contract import REVISION_LABEL
from tidepool_api.load import Health, LoadReport
from tidepool_api.workflow_run import RunEvent, RunStory, RunSummary
from tidepool_operator.cluster.gateway_runs import RunRefused
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, DEPLOYMENT, MODEL_POOL, POD, Object
from tidepool_operator.cluster.store import Key, Store
from tidepool_operator.console.hub import Hub, What
from tidepool_operator.console.looks import Looks, Sources
from tidepool_operator.console.server import ConsoleServer
from tidepool_operator.pool.model import format_time
from tidepool_operator.scaling.model import Decision, Demand, Known
from tidepool_operator.scaling.record import BIN_SECONDS, Record
from tidepool_operator.telemetry.errors import PrometheusAway
from tidepool_operator.telemetry.history import Counts
from tidepool_operator.telemetry.series import Snapshot

NOW = 1_790_000_000.0


@dataclass
class Prometheus:
    """Answers what it is told to; `asked` counts."""

    series: dict[str, dict[tuple[str, str, str], float]] = field(default_factory=dict)
    away: str = ""
    asked: int = 0
    time: float = NOW

    async def seen(self, now: float, at_most_old_seconds: float) -> Snapshot:
        self.asked += 1
        if self.away:
            raise PrometheusAway(self.away)
        return Snapshot(self.time, self.series)

    async def scraped_pods(self, now: float, pool: str, since_seconds: float, step_seconds: float) -> Counts:
        first = math.floor((now - since_seconds) / step_seconds) * step_seconds
        steps = round(since_seconds / step_seconds)
        return tuple((first + i * step_seconds, 2.0 + (i > steps // 2)) for i in range(steps))

    def pod(self, pool: str, name: str, **figures: float) -> None:
        """Figures of one pod, by the names of the recording rules' ends."""
        records = {
            "kv": rules.POD_KV_USAGE,
            "waiting": rules.POD_WAITING,
            "running": rules.POD_RUNNING,
            "prompt": rules.POD_PROMPT_TOKENS,
            "output": rules.POD_OUTPUT_TOKENS,
            "scraped_at": rules.POD_SCRAPED_AT,
        }
        namespace, _, own = pool.partition("/")
        for figure, value in figures.items():
            self.series.setdefault(records[figure], {})[(namespace, own, name)] = value

    def latency(self, pool: str, first: float, each: float) -> None:
        namespace, _, own = pool.partition("/")
        self.series.setdefault(rules.POOL_TTFT_P90, {})[(namespace, own, "")] = first
        self.series.setdefault(rules.POOL_TPOT_P90, {})[(namespace, own, "")] = each


@dataclass
class Scaler:
    """Two days of demand for every pool that has a record."""

    records: dict[str, Record] = field(default_factory=dict)

    def recorded(self, key: str) -> Record | None:
        return self.records.get(key)

    def startup_seconds(self, key: str) -> float:
        return 240.0


@dataclass
class Runs:
    """What gateways remember."""

    stories: dict[str, RunStory] = field(default_factory=dict)
    away: bool = False

    async def of(self, workflow: str) -> Sequence[RunSummary]:
        if self.away:
            raise RunRefused("no gateway serves at the moment")
        found = (one.summary for one in self.stories.values())
        return [one for one in found if one.workflow == workflow]

    async def told(self, run: str) -> RunStory:
        if run not in self.stories:
            raise RunRefused("there is no such run")
        return self.stories[run]


@dataclass
class World:
    """Everything that the console asks, in memory."""

    store: Store = field(default_factory=Store)
    prometheus: Prometheus = field(default_factory=Prometheus)
    scaler: Scaler = field(default_factory=Scaler)
    runs: Runs = field(default_factory=Runs)
    decisions: dict[str, Decision] = field(default_factory=dict)
    loads: dict[str, LoadReport] = field(default_factory=dict)
    leader: bool = True
    now: float = NOW
    clock: Callable[[], float] | None = None  # else it is always `now`
    version: int = 0

    def time(self) -> float:
        return self.now if self.clock is None else self.clock()

    def sources(self) -> Sources:
        async def loads(pods: Iterable[Object]) -> Mapping[str, LoadReport]:
            names = [pod["metadata"]["name"] for pod in pods]
            return {name: self.loads[name] for name in names if name in self.loads}

        return Sources(
            store=self.store,
            figures=self.prometheus,
            scaler=self.scaler,
            decision=self.decisions.get,
            demand=lambda _: Demand(Known(0), Known(0), Known(3), gateways=1),
            loads=loads,
            runs=self.runs,
            leads=lambda: self.leader,
            clock=self.time,
        )

    def put(self, kind: Any, item: Object) -> None:
        """A newer state of an object, or a new one."""
        self.version += 1
        self.store.put(kind, {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}})

    def pool(self, name: str, *, reason: str = "Serving", message: str = "", pods: int = 1, **rest: Any) -> Object:
        """A pool of the namespace "team" with pods that serve where its reason says so."""
        raw = pool(name, reason=reason, message=message, replicas=pods, **rest)
        self.put(MODEL_POOL, raw)
        for number in range(pods):
            self.put(POD, pod(name, f"{name}-{number}", ready=reason == "Serving"))
        return raw

    def hub(self, every: Mapping[What, float] | None = None) -> Hub:
        """Views are made often, unless `every` says how often."""
        return Hub(Looks(self.sources()), every or dict.fromkeys(What, 0.05), self.time)


def condition(kind: str, reason: str, message: str = "", *, holds: bool = True) -> Object:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": format_time(NOW - 600),
    }


def pool(
    name: str,
    *,
    reason: str = "Serving",
    message: str = "",
    replicas: int = 1,
    scaling: Object | None = None,
    conditions: Sequence[Object] = (),
    namespace: str = "team",
    **status: Any,
) -> Object:
    serves = reason in ("Serving", "ScaledToZero")
    return {
        "apiVersion": "tidepool.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "generation": 1,
            "creationTimestamp": format_time(NOW - 86_400),
        },
        "spec": {
            "model": {"uri": "hf://acme/llama", "name": f"{name}-model"},
            "engine": {"image": "vllm/vllm-openai:v0.32.0"},
            "accelerator": {"resource": "nvidia.com/gpu", "count": 1},
            "replicas": replicas,
            **({"scaling": scaling} if scaling else {}),
        },
        "status": {
            "observedGeneration": 1,
            "currentRevision": "abc123",
            "updateRevision": "abc123",
            "conditions": [condition("Ready", reason, message, holds=serves), *conditions],
            **status,
        },
    }


def pod(pool_name: str, name: str, *, ready: bool = True, namespace: str = "team") -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "creationTimestamp": format_time(NOW - 3600),
            "labels": {"tidepool.dev/pool": pool_name, REVISION_LABEL: "abc123"},
        },
        "spec": {"nodeName": "node-1", "containers": []},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.9",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{"name": "engine", "started": True, "ready": ready, "restartCount": 0}],
            "initContainerStatuses": [{"name": "router", "started": True, "ready": True, "restartCount": 0}],
        },
    }


def deployment(pool_name: str, revision: str, *, replicas: int, ready: int, namespace: str = "team") -> Object:
    containers = [{"name": "engine", "image": "vllm/vllm-openai:v0.32.0"}]
    return {
        "metadata": {
            "name": f"{pool_name}-{revision}",
            "namespace": namespace,
            "creationTimestamp": format_time(NOW - 7200),
            "labels": {"tidepool.dev/pool": pool_name, REVISION_LABEL: revision},
        },
        "spec": {"replicas": replicas, "template": {"spec": {"containers": containers}}},
        "status": {"replicas": replicas, "readyReplicas": ready},
    }


def record(now: float = NOW, days: int = 3) -> Record:
    """Demand that goes up by day and down by night, the same in each run."""
    bins = round(days * 86_400 / BIN_SECONDS)
    last = math.floor(now / BIN_SECONDS) - 1
    times = (np.arange(bins) + last - bins + 1) * BIN_SECONDS
    noise = np.random.default_rng(7).lognormal(0.0, 0.12, bins)
    shape = (1.15 - np.cos(2 * np.pi * times / 86_400.0)) * noise
    return Record(np.stack([5200 * shape, 900 * shape, 4 * shape]), last)


SCALING = {
    "minReplicas": 1,
    "maxReplicas": 8,
    "targets": {"timeToFirstToken": "1500ms", "timePerOutputToken": "50ms"},
}


def busy_world(count: int = 12, now: float = NOW) -> World:
    """Pools in all states, the first of them with everything that the view in depth shows."""
    world = World(now=now)
    world.prometheus.time = now
    states = (
        ("Serving", "", ()),
        ("ImageNotFound", "The image acme/vllm:9 is not there. Correct the name or the tag of spec.engine.image; "
         "the registry does not have it.", ()),
        ("Starting", "The first pod is being made.", ()),
        ("Serving", "2 of 2 pods serve this spec.",
         (condition("CapacityAvailable", "InsufficientAccelerators", "1 pods wait for 4 more nvidia.com/gpu. Free "
          "accelerators or add nodes, or lower spec.replicas or spec.scaling.maxReplicas.", holds=False),)),
        ("ScaledToZero", "The pool is at zero; a request at a gateway starts it.", ()),
        ("Serving", "2 of 2 pods serve this spec.", (condition("Progressing", "RollingOut", "1 is new."),)),
    )  # fmt: skip
    for number in range(count):
        reason, message, conditions = states[number % len(states)]
        name, pods = f"pool-{number:03d}", 0 if reason == "ScaledToZero" else 1 + number % 3
        world.pool(name, reason=reason, message=message, pods=pods, scaling=SCALING, conditions=conditions)
        for each in range(pods if reason == "Serving" else 0):
            figures = {
                "kv": 0.2 + 0.13 * ((number + 2 * each) % 6),
                "waiting": float((number * each) % 4),
                "running": 3.0 + each,
                "prompt": 812.0 + 10 * number,
                "output": 96.5 + number,
                "scraped_at": now - 5,
            }
            world.prometheus.pod(f"team/{name}", f"{name}-{each}", **figures)
        if reason == "Serving":
            world.prometheus.latency(f"team/{name}", 0.8 + 0.2 * (number % 6), 0.031)
    _in_depth(world, "pool-000")
    return world


def _in_depth(world: World, name: str) -> None:
    words = "KV use of 71 % asks for 3 replicas (target 80 %, forecast 1,900 output tokens/s in 9 min)."
    history = [
        {
            "time": format_time(world.now - 900 * n),
            "replicas": 3 - n % 2,
            "reason": "KvUtilization",
            "message": words,
        }
        for n in range(1, 6)
    ]
    raw = pool(
        name,
        message="3 of 3 pods serve this spec.",
        replicas=3,
        scaling=SCALING,
        conditions=(condition("Progressing", "Complete", "Every pod is as the spec asks for.", holds=False),),
        engineArgs=["--model=acme/llama", "--max-model-len=8192"],
        url=f"http://{name}.team.svc/v1",
        capacity={"prefillTokensPerSecond": 8100, "outputTokensPerSecond": 940, "learnedFrom": "own figures",
                  "startupSeconds": {"p50": 95, "p90": 140}},
    )  # fmt: skip
    raw["status"]["scaling"] = {"lastDecision": history[0], "history": history}
    world.put(MODEL_POOL, raw)
    for number in range(3):
        own = f"{name}-{number}"
        world.put(POD, pod(name, own))
        figures = {"kv": 0.41 + 0.15 * number, "waiting": float(number), "running": 5.0, "prompt": 812.0,
                   "output": 96.5, "scraped_at": world.now - 5}  # fmt: skip
        world.prometheus.pod(f"team/{name}", own, **figures)
        world.loads[own] = LoadReport(
            pod=own,
            health=Health.READY,
            running=5 + number,
            waiting=number,
            held=number,
            queued_tokens=1200 * number,
            held_tokens=41_000,
            expected_tokens=1900,
            kv_tokens=41_000 + 10_000 * number,
            kv_capacity_tokens=100_000,
            kv_usage=0.41,
            prefill_tokens_per_second=8100.0,
            output_tokens_per_second=310.0,
            opened_total=812,
            closed_total=806,
        )
    world.put(DEPLOYMENT, deployment(name, "abc123", replicas=3, ready=3))
    world.put(DEPLOYMENT, deployment(name, "0ld999", replicas=1, ready=1))
    world.decisions[f"team/{name}"] = Decision(
        world.now - 4, 3, "KvUtilization", words, "kv", "1,900 output tokens/s at 14:20, 90th percentile",
        samples={"kvUtilization": "0.56", "waiting": "3"},
    )  # fmt: skip
    world.scaler.records[f"team/{name}"] = record(world.now)
    _workflow(world)


def _workflow(world: World) -> None:
    pools = [{"name": "pool-000"}]
    steps = [
        {"name": "plan", "llm": {"pools": pools}},
        {
            "name": "search",
            "depends": "plan",
            "withParam": "{{ steps.plan.json.queries }}",
            "http": {"url": "http://a"},
        },
        {"name": "analyse", "depends": "search", "choose": {"pools": pools, "among": ["lookup"]}},
        {"name": "lookup", "mcp": {"server": "http://wiki", "tool": "lookup"}, "dependency": "Soft"},
        {"name": "write", "depends": "analyse", "llm": {"pools": pools}},
        {"name": "notify", "http": {"url": "http://b"}},
    ]
    metadata = {"name": "research", "namespace": "team", "uid": "uid-research", "generation": 1}
    ready = [
        condition("Accepted", "Accepted", "The workflow is sound."),
        condition("Ready", "Ready", "All is there."),
    ]
    spec = {"deadline": "60s", "budget": {"tokens": 20_000}, "onExit": "notify", "steps": steps}
    world.put(AGENT_WORKFLOW, {"metadata": metadata, "spec": spec, "status": {"conditions": ready}})
    world.runs.stories["run-1"] = story("run-1", world.now - 40)


def story(name: str, began: float) -> RunStory:
    """One run of the workflow that ended well."""
    units = (
        ("plan", None, 0.1, 2.3, {"pool": "team/pool-000", "prompt_tokens": 400, "queue_seconds": 0.4}),
        ("search", 0, 2.4, 3.1, {}),
        ("search", 1, 2.4, 4.0, {}),
        ("analyse", None, 4.1, 7.5, {"pool": "team/pool-000", "prompt_tokens": 900, "queue_seconds": 0.0}),
        ("write", None, 7.6, 12.9,
         {"pool": "team/pool-000", "prompt_tokens": 1200, "queue_seconds": 0.3, "first_seconds": 0.9}),
    )  # fmt: skip
    events = [
        RunEvent(step=step, item=item, phase=phase, at=began + at, tokens=tokens, **(more if tokens else {}))
        for step, item, start, end, more in units
        for phase, at, tokens in (("Running", start, 0), ("Succeeded", end, 700 if more else 0))
    ]
    summary = RunSummary(
        id=name, workflow="team/research", phase="Succeeded", created=began, ended=began + 13, tokens=2100
    )
    return RunStory(summary=summary, deadline=began + 60, events=tuple(sorted(events, key=lambda one: one.at)))


@asynccontextmanager
async def served(
    world: World, port: int = 0, every: Mapping[What, float] | None = None
) -> AsyncIterator[ConsoleServer]:
    """The page over a world, on loopback."""
    server = ConsoleServer(world.hub(every))
    await server.start("127.0.0.1", port)
    try:
        yield server
    finally:
        await server.close()


def key(name: str) -> Key:
    return Key("team", name)
