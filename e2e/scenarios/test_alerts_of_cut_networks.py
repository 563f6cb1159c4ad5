"""What a person is told while the network between parts that are well is cut, on the real cluster.

Rules of nftables in the network of a pod drop or refuse what would reach it; nothing else is touched. Alerts are
those of the chart with shorter ranges and waits (fast_alerts.py).
"""

import contextlib
import time
from collections.abc import Iterator

import pytest

from scenarios import sight
from scenarios.alerting import OPERATOR, firing, ready, shortened, telling, wait_ends, wait_fires
from scenarios.arrivals import Arrivals, arriving
from scenarios.insides import deaf, forgotten, vanished
from scenarios.kube import Object, condition, wait_for
from scenarios.pools import NAMESPACE, double_pool, double_source
from scenarios.world import SYSTEM_NAMESPACE, World
from tidepool_api.contract import METRICS_PORT, TRAFFIC_PORT
from tidepool_router.errors import FAILURE_KINDS

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(900)]

POOL, WAITS = "cut", "waits"
API_PORT, PROMETHEUS_PORT = 443, 9090
FIGURES, WATCH = "TidepoolFiguresMissing", "TidepoolWatchStale"
RETRIES = "Retries by failure"
# A look of the operator, a status that is written, a scrape, and the alert's wait of half a minute.
FIGURES_SECONDS = 120.0
# A watch that is silent begins anew after 75 s; two lists half a minute apart must both find it silent.
WATCH_SECONDS = 240.0
# Below the 15 s after which the API server asks whether a connection that rests is still there.
REST_SECONDS = 12
# Longer than that: the watch of ModelPools rests.
EDIT_SECONDS = 16.0


@pytest.fixture(scope="module")
def cut(world: World) -> Iterator[None]:
    """A pool that has nothing to do, and alerts with shortened times."""
    with shortened(), _pool_of_two(world, POOL, {}):
        wait_for("figures", lambda: _scaling(world).get("status") == "True" or None, timeout_seconds=90)
        yield


@pytest.fixture
def waits(world: World) -> Iterator[None]:
    """A pool that takes a second to its first token."""
    with _pool_of_two(world, WAITS, {"BASE_SECONDS": 1.0}):
        yield


@contextlib.contextmanager
def _pool_of_two(world: World, name: str, speed: dict[str, float]) -> Iterator[None]:
    scaling = {"minReplicas": 2, "maxReplicas": 3, "prediction": {"enabled": False}}
    world.kube.apply(double_source(), double_pool(name, speed, scaling=scaling))
    try:
        wait_for("two pods", lambda: len(ready(world, name)) == 2 or None, timeout_seconds=90)
        yield
    finally:
        gone = ("--ignore-not-found", "--timeout=90s")
        world.kube.run("delete", "modelpool", name, "-n", NAMESPACE, *gone, timeout_seconds=100)


@pytest.mark.parametrize(
    ("who", "rule", "says"),
    [
        pytest.param("pods", f"tcp dport {METRICS_PORT} drop", "figures of", id="no scrapes"),
        pytest.param("operator", f"tcp sport {PROMETHEUS_PORT} drop", "Prometheus at", id="Prometheus is away"),
    ],
)
def test_a_pool_that_is_not_scaled_for_want_of_figures_is_told_of_until_they_are_back(
    world: World, cut: None, who: str, rule: str, says: str
) -> None:
    with telling(world, f"alerts, {who} cut") as tell:
        wait_ends(world, FIGURES, timeout_seconds=FIGURES_SECONDS)
        with contextlib.ExitStack() as stack:
            for pod in ready(world, POOL) if who == "pods" else [_operator(world)]:
                stack.enter_context(deaf(pod, rule))
            tell(FIGURES, f"fires after {wait_fires(world, FIGURES, POOL, timeout_seconds=FIGURES_SECONDS):.0f} s")
            told = _scaling(world)
            tell("ScalingActive", f"{told['status']}, {told['reason']}: {told['message']}")
            assert told["reason"] == "MetricsMissing"
            assert says in told["message"]
            assert len(ready(world, POOL)) == 2  # it keeps its size
        tell(FIGURES, f"ends {wait_ends(world, FIGURES, timeout_seconds=FIGURES_SECONDS):.0f} s after the cut")
        wait_for("figures", lambda: _scaling(world).get("status") == "True" or None, timeout_seconds=60)


def test_an_operator_that_is_not_told_of_edits_is_told_of_and_restarted_and_its_log_names_their_kind(
    world: World, cut: None
) -> None:
    """Something between operator and API server forgets connections that rest, and people go on editing."""
    operator = _operator(world)
    with telling(world, "alerts, watches cut") as tell:
        wait_ends(world, WATCH, timeout_seconds=WATCH_SECONDS)
        with forgotten(operator, API_PORT, REST_SECONDS):
            tell(WATCH, f"fires after {_fires_while_edited(world):.0f} s")
            restarts = _restarts(operator)
            wait_for("a restart", lambda: _restarts(_operator(world)) > restarts or None, timeout_seconds=120)
            tell("the operator", "restarted by its liveness probe")
            log = world.kube.run("logs", "--previous", operator["metadata"]["name"], "-n", SYSTEM_NAMESPACE)
            quiet = [line for line in log.splitlines() if "the watch of kind ModelPool is quiet" in line]
            assert quiet, "the log before the restart names the kind"
            tell("its log", quiet[-1])
        tell(WATCH, f"ends {wait_ends(world, WATCH, timeout_seconds=WATCH_SECONDS):.0f} s after the cut")
        wait_for("the last edit to be seen", lambda: _edits_not_seen(world) == 0 or None, timeout_seconds=120)


def test_clients_are_answered_when_a_pod_refuses_connections_and_the_dashboard_shows_the_retries(
    world: World, cut: None
) -> None:
    """What it says of its load goes on over a connection that stands, so it is chosen."""
    load = Arrivals(world.gateway_url, f"{POOL}-llama", lambda _: 4.0, tokens=20)
    refuse = f"tcp dport {TRAFFIC_PORT} tcp flags & (syn | ack) == syn reject with tcp reset"
    with telling(world, "retries") as tell:
        # From nought on: a rate does not see what a series is born with.
        wait_for("lines", lambda: sight.lines(world, RETRIES).keys() >= set(FAILURE_KINDS), timeout_seconds=60)
        with deaf(ready(world, POOL)[0], refuse), arriving(load):
            wait_for("retries", lambda: _retries(world) or None, timeout_seconds=60)
            # The pod is left out, and tried again after a second, two, four and eight.
            wait_for("requests", lambda: len(load.records) >= 80 or None, timeout_seconds=60)
            drawn = _retries(world)
        tell(RETRIES, f"{drawn} a second")
        tell("requests", f"{len(load.records)} sent, {sum(one.tokens > 0 for one in load.records)} answered")
        assert drawn.keys() == {"connect"}
        assert [one.error for one in load.records if one.error] == []


def test_clients_who_wait_on_a_pod_that_vanishes_are_answered_by_another_and_the_dashboard_shows_it(
    world: World, waits: None
) -> None:
    """They want their answers whole: a stream that has begun cannot be begun again."""
    load = Arrivals(world.gateway_url, f"{WAITS}-llama", lambda _: 4.0, tokens=1, streamed=False)
    with telling(world, "a pod vanishes") as tell:
        with arriving(load):
            wait_for("requests at both", lambda: len(load.records) >= 20 or None, timeout_seconds=60)
            with vanished(ready(world, WAITS)[0]):
                wait_for("retries", lambda: "first_byte_timeout" in _retries(world), timeout_seconds=60)
                wait_for("the rest", lambda: len(load.records) >= 120 or None, timeout_seconds=60)
                drawn = _retries(world)
        tell(RETRIES, f"{drawn} a second")
        longest = max(one.ended - one.at for one in load.records if one.ended)
        tell("requests", f"{len(load.records)} sent, the slowest was answered after {longest:.1f} s")
        assert [one.error for one in load.records if one.error] == []


def _retries(world: World) -> dict[str, float]:
    """By the failure, a second; those that are none are left out."""
    return {failure: rate for failure, rate in sight.lines(world, RETRIES).items() if rate > 0}


def _fires_while_edited(world: World) -> float:
    began = edited = time.monotonic()

    def look() -> bool | None:
        nonlocal edited
        if time.monotonic() - edited >= EDIT_SECONDS:
            edited = time.monotonic()
            highest = 3 + (1 + int((edited - began) / EDIT_SECONDS)) % 2
            world.kube.patch("modelpool", POOL, NAMESPACE, {"spec": {"scaling": {"maxReplicas": highest}}})
        return WATCH in firing(world) or None

    wait_for(f"{WATCH} to fire", look, timeout_seconds=WATCH_SECONDS)
    assert _edits_not_seen(world) > 0
    return time.monotonic() - began


def _edits_not_seen(world: World) -> int:
    pool = world.kube.get("modelpool", POOL, NAMESPACE) or {}
    return int(pool["metadata"]["generation"] - pool["status"]["observedGeneration"])


def _scaling(world: World) -> dict[str, str]:
    return dict(condition(world.kube.get("modelpool", POOL, NAMESPACE), "ScalingActive"))


def _operator(world: World) -> Object:
    (pod,) = world.kube.items("pods", SYSTEM_NAMESPACE, OPERATOR)
    return pod


def _restarts(pod: Object) -> int:
    return int(pod["status"]["containerStatuses"][0]["restartCount"])
