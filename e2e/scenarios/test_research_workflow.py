"""examples/research-workflow.yaml from plan to answer, on two pools of real vLLM with its tools in the cluster.

Called as a model, in the background and by kubectl, beside other load; one pool is at zero until a run needs it;
the gateway is killed in the middle of a run. Two cores are slow, so the run has more time than the example says.
"""

import copy
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from cluster import lifecycle
from cluster.configs import NODE_ROOT
from cluster.layout import NODES
from scenarios import insides, programs, sight, stage
from scenarios.evidence import BUILD
from scenarios.kube import Object, condition, wait_for
from scenarios.life import START_SECONDS
from scenarios.pools import NAMESPACE, cpu_pool
from scenarios.streams import Load, Route, figures, load
from scenarios.world import SYSTEM_NAMESPACE, World

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(1500)]

FILES = {"tool_server.py": Path(__file__).with_name("tool_server.py")}
TOOLS = "tools"
PORT = 8080
SMALL, LARGE = "qwen-cpu", "llama-8b"
WORKFLOW = "research"
RUN_SECONDS = 400.0
LOOPS = 2
GATEWAY = "tidepool.dev/component=gateway"
STORE = "tidepool-workflows"


@dataclass(slots=True)
class Place:
    """The workflow, its pools and its tools."""

    world: World
    tools_url: str
    table: list[tuple[str, str]]

    @property
    def runs_url(self) -> str:
        return f"{self.world.gateway_url}/v1/workflows/{NAMESPACE}%2F{WORKFLOW}/runs"

    def tell(self, what: str, seen: str) -> None:
        self.table.append((what, seen))
        self.world.evidence.say(f"{what}: {seen}")

    def tools(self) -> list[Mapping[str, str]]:
        """What the tools were asked, in order."""
        return list(httpx.get(f"{self.tools_url}/calls", timeout=10).json()["calls"])

    def calls(self, run: str) -> list[Mapping[str, str]]:
        return [call for call in self.tools() if call["key"].startswith(f"{run}.")]

    def pool(self, name: str) -> Object:
        found = self.world.kube.get("modelpool", name, NAMESPACE)
        assert found is not None
        return found

    def begin(self, question: str) -> str:
        answer = httpx.post(self.runs_url, json={"input": {"question": question}}, timeout=30)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def state(self, run: str) -> dict[str, Any]:
        answer = httpx.get(f"{self.runs_url}/{run}", timeout=10)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def ended(self, run: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            try:
                found = self.state(run)
            except httpx.HTTPError:  # its gateway may be on its way back
                return None
            return found if found["phase"] != "Running" else None

        return wait_for(f"the end of {run}", look, timeout_seconds=RUN_SECONDS, every_seconds=1.0)


def store(layout: Any) -> list[Object]:
    """A claim on a folder of the first node: gateways keep their runs there."""
    (layout.node_folder(NODES[0]) / "data" / STORE).mkdir(exist_ok=True)
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODES[0]]}
    volume: Object = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "local": {"path": str(NODE_ROOT / STORE)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "name": STORE,
            "namespace": SYSTEM_NAMESPACE,
        },
    }
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "",
        "volumeName": STORE,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": STORE}, "spec": volume},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": STORE, "namespace": SYSTEM_NAMESPACE},
            "spec": claim,
        },
    ]


def workflow() -> Object:
    """The example, with time for two cores."""
    found: Object = yaml.safe_load((stage.ROOT / "examples" / "research-workflow.yaml").read_text())
    found["metadata"]["namespace"] = NAMESPACE
    found["spec"]["deadline"] = "15m"
    return found


def pools() -> list[Object]:
    """The two that the example names; the large one is at zero until it is needed."""
    engine = cpu_pool()["spec"]["engine"] | {"maxModelLen": 4096}
    scaling = {"maxReplicas": 1, "idleAfter": "10m", "prediction": {"enabled": False}}
    small = cpu_pool(SMALL, engine=copy.deepcopy(engine), scaling={**scaling, "minReplicas": 1})
    large = cpu_pool(LARGE, engine=engine, scaling={**scaling, "minReplicas": 0}, replicas=0)
    return [small, large]


@pytest.fixture(scope="module")
def place(world: World) -> Iterator[Place]:
    kube = world.kube
    layout, _, _ = lifecycle.require()
    server = programs.server("tools", TOOLS, programs.router_image(kube), FILES, PORT)
    names = ("search", "wiki", "calc", "hooks")
    kube.apply(programs.namespace(TOOLS))
    kube.apply(*server, *[programs.service(name, TOOLS, "tools", PORT) for name in names], *store(layout))
    kube.apply(*pools(), workflow())
    flags = (
        *("--set", "gateway.replicas=1", "--set", f"gateway.workflows.persistentVolumeClaim={STORE}"),
        # The others are allowed by the namespace.
        *("--set", "gateway.workflows.allowedHosts={hooks.tools}", "--set", "gateway.workflows.leaseSeconds=5"),
    )
    with stage.changed(world, *flags):
        kube.run("rollout", "status", "deployment/tools", "-n", TOOLS, "--timeout=60s", timeout_seconds=70)
        tools_url = f"http://{stage.cluster_ip(kube, 'search', TOOLS)}"
        yield Place(world, tools_url, [])
        kube.run("delete", "agentworkflow,agentworkflowrun", "--all", "-n", NAMESPACE, timeout_seconds=90)
        kube.run("delete", "modelpool", SMALL, LARGE, "-n", NAMESPACE, timeout_seconds=90)
        kube.run("annotate", "namespace", NAMESPACE, "tidepool.dev/workflow-hosts-")
        kube.run("delete", "namespace", TOOLS, "--wait=false")
    kube.run("delete", "pvc", STORE, "-n", SYSTEM_NAMESPACE, "--wait=false")
    kube.run("delete", "pv", STORE, "--wait=false")


def test_the_research_workflow_runs_on_real_engines_whoever_calls_it(place: Place) -> None:
    world = place.world
    _wait_ready(place)
    _hosts(place)
    with load([Route("gateway", f"{world.gateway_url}/v1")], f"{SMALL}-llama", 100) as clients:
        clients.keep(LOOPS)
        _from_zero(place)
        _as_a_model(place)
        _by_kubectl(place)
        sight.see_dashboards(world, workflows=True)
        away = _through_a_death(place, clients)
    seen = figures(clients.records)
    # The one thing that may fail is what is sent to a gateway that is dead, or was when it died.
    others = [one for one in clients.failed() if one.started > away[1] or (one.ended or 0.0) < away[0]]
    lost = len(clients.failed()) - len(others)
    place.tell(
        "load beside it", f"{seen['streams']:.0f} streams, {lost} failed at the dead gateway, {len(others)} else"
    )
    assert others == []
    clients.write(BUILD / "research-streams.jsonl")
    world.evidence.facts["research"] = dict(place.table)
    world.evidence.write()
    print("\n" + "\n".join(f"  {what:<34} {seen}" for what, seen in place.table), flush=True)


def _wait_ready(place: Place) -> None:
    wait_for(
        f"{SMALL} to be ready",
        lambda: condition(place.pool(SMALL), "Ready").get("status") == "True" or None,
        timeout_seconds=START_SECONDS,
    )
    wait_for(
        "the workflow to be ready",
        lambda: (
            condition(place.world.kube.get("agentworkflow", WORKFLOW, NAMESPACE), "Ready").get("status") == "True"
            or None
        ),
        timeout_seconds=60,
    )
    assert place.pool(LARGE)["spec"]["replicas"] == 0


def _hosts(place: Place) -> None:
    """What nobody allowed is refused, and what the chart and the namespace allow is called."""
    world, name = place.world, "reach"
    for host in ("search.tools/api?q=tide", "hooks.tools/done"):
        method = "POST" if host.startswith("hooks") else "GET"
        step = {"name": "reach", "http": {"method": method, "url": f"http://{host}"}}
        meta = {"name": f"{name}-{host.partition('.')[0]}", "namespace": NAMESPACE}
        spec = {"deadline": "30s", "steps": [step]}
        world.kube.apply(
            {"apiVersion": "tidepool.dev/v1alpha1", "kind": "AgentWorkflow", "metadata": meta, "spec": spec}
        )

    def reach(tool: str) -> httpx.Response:
        body = {"model": f"workflow/{name}-{tool}", "messages": [{"role": "user", "content": "x"}]}
        return httpx.post(f"{world.gateway_url}/v1/chat/completions", json=body, timeout=60)

    by_chart = wait_for("the hook", lambda: _ok(reach("hooks")), timeout_seconds=60, every_seconds=1.0)
    refused = reach("search")
    assert refused.status_code == 502
    assert "not among the hosts" in refused.text
    began = time.monotonic()
    world.kube.run(
        "annotate", "namespace", NAMESPACE, "tidepool.dev/workflow-hosts=search.tools, wiki.tools, calc.tools"
    )
    by_namespace = wait_for("the search", lambda: _ok(reach("search")), timeout_seconds=60, every_seconds=0.5)
    assert "The Moon" in by_namespace.text
    place.tell("host that nobody allowed", f"502, {refused.json()['error']['message'][:90]}...")
    place.tell("host of the chart", str(by_chart.status_code))
    place.tell("host of the namespace's annotation", f"200 after {time.monotonic() - began:.1f} s")


def _ok(answer: httpx.Response) -> httpx.Response | None:
    return answer if answer.status_code == 200 else None


def _from_zero(place: Place) -> None:
    """In the background: the run itself wakes the pool that it will need, before it gets there."""
    began = time.monotonic()
    run = place.begin("Why are there tides?")
    wait_for(
        "the pool to be woken", lambda: place.pool(LARGE)["spec"]["replicas"] == 1 or None, timeout_seconds=30
    )
    woken = time.monotonic() - began
    so_far = {step["step"] for step in place.state(run)["steps"]}
    assert not so_far & {"analyse", "write"}, "the pool was woken only when a step asked for it"
    end = place.ended(run)
    _whole(place, end)
    place.tell("in the background, 0 -> 1 pods", f"woken after {woken:.1f} s, {_told(end)}")


def _as_a_model(place: Place) -> None:
    client = openai.OpenAI(
        base_url=f"{place.world.gateway_url}/v1", api_key="unused", timeout=RUN_SECONDS, max_retries=0
    )
    began, progress, pieces, usage = time.monotonic(), "", 0, None
    for chunk in client.chat.completions.create(
        model=f"workflow/{WORKFLOW}",
        messages=[{"role": "user", "content": "How high is a spring tide?"}],
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            progress += getattr(choice.delta, "reasoning_content", None) or ""
            pieces += bool(choice.delta.content)
    assert "plan Succeeded" in progress
    assert "search[0] Succeeded" in progress
    assert pieces > 1, "the last step's tokens come live"
    assert usage is not None
    assert usage.total_tokens > usage.completion_tokens > 0
    took = time.monotonic() - began
    lines = len(progress.splitlines())
    place.tell(
        "as a model, streamed",
        f"{took:.1f} s, {lines} lines of progress, {pieces} pieces, {usage.total_tokens} tokens",
    )


def _by_kubectl(place: Place) -> None:
    kube = place.world.kube
    spec = {"workflow": WORKFLOW, "input": {"question": "What is a neap tide?"}}
    run = {
        "apiVersion": "tidepool.dev/v1alpha1",
        "kind": "AgentWorkflowRun",
        "metadata": {"name": "by-hand"},
        "spec": spec,
    }
    kube.run("create", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(run))
    kube.run(
        *("wait", "awr/by-hand", "-n", NAMESPACE, "--for=jsonpath={.status.phase}=Succeeded"),
        f"--timeout={RUN_SECONDS:.0f}s",
        timeout_seconds=RUN_SECONDS + 20,
    )
    line = kube.run("get", "awr", "by-hand", "-n", NAMESPACE, "--no-headers").strip()
    status = (kube.get("awr", "by-hand", NAMESPACE) or {})["status"]
    assert status["output"]
    _whole(place, place.state(status["run"]))
    place.tell("by kubectl get awr", " ".join(line.split()))


def _through_a_death(place: Place, clients: Load) -> tuple[float, float]:
    """Several runs at once; the gateway is killed while some of their steps are done and others are not.

    Returns when the gateway was away, by the clock of the load.
    """
    world = place.world
    with ThreadPoolExecutor(3) as threads:
        runs = list(threads.map(place.begin, [f"Tide number {n}?" for n in range(3)]))

    def half_way() -> dict[str, dict[str, Any]] | None:
        states = {run: place.state(run) for run in runs}
        going = [state for state in states.values() if state["phase"] == "Running"]
        steps = [step for state in going for step in state["steps"]]
        return states if any(step["step"] == "plan" for step in steps) and len(going) == len(runs) else None

    before = wait_for("runs with steps behind them", half_way, timeout_seconds=120, every_seconds=0.2)
    (pod,) = [
        one
        for one in world.kube.items("pods", SYSTEM_NAMESPACE, GATEWAY)
        if not one["metadata"].get("deletionTimestamp")
    ]
    killed, died = time.monotonic(), clients.now()
    insides.kill_container(pod, "gateway")
    wait_for("the gateway to be back", lambda: _answers(world), timeout_seconds=120, every_seconds=0.2)
    back = time.monotonic() - killed
    away = (died, clients.now() + 1.0)
    ends = {run: place.ended(run) for run in runs}
    for run, end in ends.items():
        _whole(place, end)
        _committed_once(place, run, before[run])
    moved = sum(end["moves"] > 0 for end in ends.values())
    assert moved, "no run changed hands: the gateway died too late"
    took = max(end["ended"] - end["created"] for end in ends.values())
    place.tell(
        "gateway killed among 3 runs",
        f"back after {back:.1f} s, {moved} taken up again, the longest took {took:.0f} s",
    )
    return away


def _answers(world: World) -> bool | None:
    try:
        return httpx.get(f"{world.gateway_url}/v1/workflows", timeout=2).status_code == 200 or None
    except httpx.HTTPError:
        return None


def _committed_once(place: Place, run: str, before: Mapping[str, Any]) -> None:
    """What had ended before the death was not done again."""
    made = [call["key"] for call in place.calls(run)]
    for step in before["steps"]:
        if step["step"] == "search" and step["item"] is not None:
            assert made.count(f"{run}.search.{step['item']}") == 1, (step, made)
    doubled = {key for key in made if made.count(key) > 2}
    assert not doubled


def _whole(place: Place, end: Mapping[str, Any]) -> None:
    """A run that came to its answer, each of its steps once, its tools called for it."""
    assert end["phase"] == "Succeeded", end
    assert end["output"]
    top = [(step["step"], step["item"]) for step in end["steps"]]
    assert len(top) == len(set(top)), "a step ended twice"
    names = {step for step, _ in top}
    assert {"plan", "search", "analyse", "write"} <= names, names
    searches = {call["key"] for call in place.calls(end["id"]) if call["tool"] == "search"}
    assert searches, "nothing was searched for"
    assert {call["tool"] for call in place.calls(end["id"])} >= {"search", "notify"}


def _told(end: Mapping[str, Any]) -> str:
    took = end["ended"] - end["created"]
    return f"{end['phase']} in {took:.1f} s, {len(end['steps'])} endings, {end['tokens']} tokens"
