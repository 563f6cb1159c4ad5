"""Each alert in the trouble that its runbook describes, on the real cluster, and none where nothing is wrong.

Expressions are those of the chart with shorter ranges and waits (fast_alerts.py). The pools run engine doubles
that misbehave by order. TidepoolFiguresMissing and TidepoolWatchStale: test_alerts_of_cut_networks.py. Left out,
since nothing from outside brings them about in minutes: TidepoolForecastOff, TidepoolReconcileLate,
TidepoolLedgerDefect.
"""

import json
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from scenarios import sight
from scenarios.alerting import OPERATOR, Told, firing, ready, shortened, telling
from scenarios.arrivals import Arrivals, arriving
from scenarios.engine_double import FAIL, FLAP, ORDERS
from scenarios.kube import Object, wait_for
from scenarios.pools import NAMESPACE, double_pool, double_source
from scenarios.world import POOL_LABEL, SYSTEM_NAMESPACE, World
from tidepool_api.contract import HEADER_PROOF, TRAFFIC_PORT

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(1200)]

FIRES_SECONDS = 240.0
BARE = "bare"  # a namespace whose quota has no room for a Service
# Alert, and the pool that must be named where it names one.
BY_POOLS = {
    "TidepoolErrorsFast": "failing",
    "TidepoolErrorsSlow": "failing",
    "TidepoolPodsLeftOut": "two",
    "TidepoolFirstTokenFast": "slow",
    "TidepoolFirstTokenSlow": "slow",
    "TidepoolTokensSlow": "slow",
    "TidepoolQueueGrows": "slow",
    "TidepoolEngineDown": "never",
    "TidepoolEngineRestarts": "flaps",
    "TidepoolKvNearlyFull": "full",
    "TidepoolRequestsRefused": "refuses",
    "TidepoolCallersUnproven": "two",
    "TidepoolHeldBack": "elsewhere",
    "TidepoolReconcileFails": "",
    "TidepoolRunsFail": "",
}
# Lines of dashboards that draw while things go wrong.
RARE = [
    "Failed requests",
    "Refused, by the bound",
    "Time held in a queue",
    "Seconds until KV blocks run out",
    "Reconciles that failed",
]
# Its tool is at a host that nobody allowed.
FAILS: Object = {
    "apiVersion": "tidepool.dev/v1alpha1",
    "kind": "AgentWorkflow",
    "metadata": {"name": "fails", "namespace": NAMESPACE},
    "spec": {"steps": [{"name": "look", "http": {"method": "GET", "url": "http://nobody.example/"}}]},
}


def pool(name: str, speed: dict[str, float], flags: tuple[str, ...] = (), **spec: object) -> Object:
    made = double_pool(name, speed, flags, **spec)
    del made["spec"]["scaling"]
    return made


def two() -> Object:
    return pool("two", {}, replicas=2)


def troubled() -> list[Object]:
    """One for each trouble; eight accelerators in all with `two`."""
    full = pool("full", {"BASE_SECONDS": 0.05}, ("--num-gpu-blocks-override=64",))
    full["spec"]["engine"]["maxModelLen"] = 1000
    return [
        pool("failing", {}, routing={"retries": 0}),
        pool("slow", {"BASE_SECONDS": 0.3, "PROMPT_SECONDS": 0.05}, ("--max-num-seqs=2",)),
        pool("never", {"LOADING_SECONDS": 100_000}),
        pool("flaps", {}),
        pool("elsewhere", {}, accelerator={"resource": "amd.com/gpu", "count": 1}),
        full,
        pool("refuses", {"BASE_SECONDS": 0.2}, ("--max-num-seqs=1",), routing={"queue": {"maxWaiting": 1}}),
    ]


def bare() -> list[Object]:
    """Pools whose Services the API server refuses: of a Deployment that is refused the pool's status tells."""
    quota = {"spec": {"hard": {"services": "0"}}, "metadata": {"name": "none", "namespace": BARE}}
    pools = [two() for _ in range(12)]
    for number, one in enumerate(pools):
        one["metadata"] = {"name": f"refused-{number}", "namespace": BARE}
        # A name that pools share leads to the first of them.
        one["spec"]["model"] = {**one["spec"]["model"], "name": f"refused-{number}", "aliases": []}
    return [{"apiVersion": "v1", "kind": "ResourceQuota", **quota}, *pools]


@pytest.fixture
def fast(world: World) -> Iterator[None]:
    with shortened():
        world.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": BARE}}, double_source())
        yield
    names = ["two", *(one["metadata"]["name"] for one in troubled())]
    gone = ("--ignore-not-found", "--timeout=90s")
    world.kube.run("delete", "modelpool", *names, "-n", NAMESPACE, *gone, timeout_seconds=100)
    world.kube.run(
        "delete", "deployments,services,pdb,networkpolicies", "-n", NAMESPACE, "-l", f"{POOL_LABEL}=never"
    )
    world.kube.run("delete", "agentworkflow", "fails", "-n", NAMESPACE, "--ignore-not-found")
    world.kube.run("delete", "namespace", BARE, "--wait=false")


def test_each_alert_fires_in_its_trouble_and_none_without_one(world: World, fast: None) -> None:
    with telling(world, "alerts") as tell:
        _healthy(world, tell)
        _troubles(world, tell)
        _nobody_leads(world, tell)


def _healthy(world: World, tell: Told) -> None:
    world.kube.apply(two())
    wait_for("two pods", lambda: len(ready(world, "two")) == 2 or None, timeout_seconds=90)
    load = Arrivals(world.gateway_url, "two-llama", lambda _: 3.0, tokens=20)
    with arriving(load):
        time.sleep(30)
        seen = firing(world)
    assert [one.error for one in load.records if one.error] == []
    assert seen == {}, "an alert fires though nothing is wrong"
    tell("nothing wrong", f"{len(load.records)} requests, no alert")


def _order(world: World, pod: Object, order: str) -> None:
    where = (pod["metadata"]["name"], "-n", NAMESPACE, "-c", "engine")
    world.kube.run("exec", *where, "--", "touch", str(ORDERS / order))


def _troubles(world: World, tell: Told) -> None:
    world.kube.apply(*troubled(), *bare(), FAILS)
    for name in ("failing", "slow", "flaps", "full", "refuses"):
        wait_for(f"a pod of {name}", lambda name=name: ready(world, name), timeout_seconds=90)
    leaves = ready(world, "two")[0]
    _order(world, ready(world, "failing")[0], FAIL)
    _order(world, ready(world, "flaps")[0], FLAP)
    _order(world, leaves, FAIL)
    loads = [
        _load(world, "failing", 4.0, 5),
        _load(world, "two", 4.0, 5),
        _load(world, "slow", 1.0, 8),
        _load(world, "full", 0.5, 900),
        _load(world, "refuses", 3.0, 20),
    ]
    missing = dict(BY_POOLS)
    stop = threading.Event()
    stranger = threading.Thread(target=_stranger, args=(world, stop), daemon=True)
    stranger.start()
    try:
        with arriving(*loads):
            until = time.monotonic() + FIRES_SECONDS
            while missing and time.monotonic() < until:
                for alert, pools in firing(world).items():
                    if alert in missing and (not missing[alert] or missing[alert] in pools):
                        tell(alert, f"fires for {missing.pop(alert) or 'no pool'}")
                _look_again(world)
                _runs_fail(world)
                time.sleep(1.0)
            if not missing:
                sight.see_dashboards(world, rare=RARE)
                tell("dashboards", f"every line of {len(RARE)} panels of things that go wrong draws")
    finally:
        stop.set()
        stranger.join(timeout=20)
    assert missing == {}, f"did not fire: {missing}; what fires: {firing(world)}"


def _look_again(world: World) -> None:
    """What fails is tried again after minutes at last, which nothing shortens: somebody edits the pools."""
    now = f"tick={time.monotonic():.0f}"
    world.kube.run("annotate", "modelpools", "--all", "-n", BARE, now, "--overwrite")


def _runs_fail(world: World) -> None:
    """A run of the workflow, which fails; or, at first, the gateway does not know it yet."""
    body = {"model": "workflow/fails", "messages": [{"role": "user", "content": "hello"}]}
    httpx.post(f"{world.gateway_url}/v1/chat/completions", json=body, timeout=10)


def _load(world: World, name: str, rate: float, tokens: int) -> Arrivals:
    return Arrivals(world.gateway_url, f"{name}-llama", lambda _: rate, tokens, timeout_seconds=60)


def _stranger(world: World, stop: threading.Event) -> None:
    """Somebody who shows sidecars a proof that is none."""
    url = f"http://{ready(world, 'two')[-1]['status']['podIP']}:{TRAFFIC_PORT}/v1/chat/completions"
    body = {"model": "two-llama", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    while not stop.wait(1.0):
        try:
            httpx.post(url, content=json.dumps(body), headers={HEADER_PROOF: "nonsense"}, timeout=10)
        except httpx.HTTPError:
            continue


def _nobody_leads(world: World, tell: Told) -> None:
    """A pool is deleted without what belongs to it; then the operator is gone for a while."""
    world.kube.run("delete", "modelpool", "never", "-n", NAMESPACE, "--cascade=orphan", "--timeout=60s")
    (name,) = world.kube.exists("deployments", SYSTEM_NAMESPACE, OPERATOR)
    where = ("deployment", name, "-n", SYSTEM_NAMESPACE)
    world.kube.run("scale", *where, "--replicas=0")
    try:
        wait_for("nobody leads", lambda: "TidepoolNobodyLeads" in firing(world) or None, timeout_seconds=120)
        tell("TidepoolNobodyLeads", "fires without an operator")
    finally:
        world.kube.run("scale", *where, "--replicas=1")
    wait_for("orphans", lambda: "TidepoolOrphans" in firing(world) or None, timeout_seconds=180)
    tell("TidepoolOrphans", "fires with an operator that finds what belonged to a pool")
    wait_for("a leader", lambda: "TidepoolNobodyLeads" not in firing(world) or None, timeout_seconds=60)
