"""The console on the real cluster, in a real Chromium: right figures, a restart of the operator, hostile words.

Its pictures are left under build/e2e/console; those in docs/images are from there.
"""

import asyncio
import json
import time
from collections.abc import Iterator

import httpx
import pytest

from scenarios import life, stage
from scenarios.evidence import BUILD, prometheus_sample
from scenarios.kube import Object, wait_for
from scenarios.pools import NAMESPACE, cpu_pool
from scenarios.stage import CHART
from scenarios.streams import load
from scenarios.world import RELEASE, SYSTEM_NAMESPACE, World
from scripted.browser import Browser, Page, browser
from tidepool_api.contract import CONSOLE_PORT
from tidepool_api.rules import POOL_OUTPUT_TOKENS

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(900)]

PICTURES = BUILD / "console"
READY = "document.documentElement.dataset.ready"
NASTY = "<img src=x onerror=document.title=1>"
OPERATOR = "tidepool.dev/component=operator"


def asks(name: str, words: str, **more: object) -> Object:
    """A step that asks the demo's pool."""
    messages = [{"role": "user", "content": words}]
    return {"name": name, "llm": {"pools": [{"name": "tiny"}], "messages": messages}, **more}


WORKFLOW: Object = {
    "apiVersion": "tidepool.dev/v1alpha1",
    "kind": "AgentWorkflow",
    "metadata": {"name": "digest", "namespace": NAMESPACE},
    "spec": {
        "deadline": "120s",
        "steps": [
            asks("summary", "Sum up: {{ input.text }}"),
            asks(
                "facts", "{{ item }}: {{ steps.summary.text[:200] }}", depends="summary", withItems=["who", "when"]
            ),
            asks("answer", "Write: {{ steps.facts.results[0].text[:200] }}", depends="facts"),
        ],
    },
}


def broken(name: str, words: str, image: str = "localhost/tidepool-engine-base:local") -> Object:
    """A pool whose engine ends with these words."""
    made = cpu_pool(name)
    del made["spec"]["scaling"]
    command = ["/bin/sh", "-c", f"echo 'ValueError: {words}' >&2; exit 3"]
    made["spec"]["engine"]["image"] = image
    made["spec"]["podTemplate"] = {"spec": {"containers": [{"name": "engine", "command": command}]}}
    return made


@pytest.fixture
def pools(world: World) -> Iterator[World]:
    """The demo's pool, which predicts here, and some that are not well."""
    world.pool["spec"]["scaling"] |= {
        "minReplicas": 1,
        "targets": {"timeToFirstToken": "1500ms", "timePerOutputToken": "50ms"},
        "prediction": {"enabled": True, "season": "1h"},
    }
    others = [
        broken("hostile", NASTY),
        broken("no-image", "none", "localhost/tidepool-none:1"),
        cpu_pool("asleep", replicas=0),
    ]
    world.kube.apply(world.pool, WORKFLOW, *others)
    world.wait_settled(1, timeout_seconds=life.START_SECONDS)
    stage.find_service(world)
    yield world
    for name in ("hostile", "no-image", "asleep", "tiny"):
        world.kube.run("delete", "modelpool", name, "-n", NAMESPACE, "--wait=false", "--ignore-not-found")
    world.kube.run("delete", "agentworkflow", "digest", "-n", NAMESPACE, "--ignore-not-found")


async def test_the_console_tells_the_truth_through_a_restart_of_the_operator(pools: World) -> None:
    await asyncio.to_thread(reached_by_port_forward_alone, pools)
    url = await asyncio.to_thread(with_a_service, pools)
    async with browser() as chromium:
        page = await chromium.page(1280, 900)
        await seen(page, f"{url}/", "pools")
        with load(pools.routes(), pools.model, 200) as clients:
            clients.keep(6)
            await right_figures(pools, page)
            await asyncio.to_thread(run_workflows, pools)
            await pictures(chromium, url)
            await hostile_words(chromium, page, url)
            await restarted(pools, page, url)
            clients.keep(0)
        # A lost connection, and a header that only counts over TLS.
        known = ("ERR_", "Cross-Origin-Opener-Policy")
        assert [one for one in chromium.complaints if not any(word in one for word in known)] == []


def reached_by_port_forward_alone(world: World) -> None:
    """As the chart comes: the pod's own address does not answer, the port-forward does."""
    (pod,) = world.kube.items("pods", SYSTEM_NAMESPACE, OPERATOR)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{pod['status']['podIP']}:{CONSOLE_PORT}/", timeout=10)
    with stage.forwarded(world.kube, SYSTEM_NAMESPACE, pod["metadata"]["name"], CONSOLE_PORT, kind="pod") as url:
        page = httpx.get(url, timeout=10)
    assert (page.status_code, "Tidepool" in page.text) == (200, True)


def with_a_service(world: World) -> str:
    """What the Service answers to."""
    flags = ("--reuse-values", "--set", "operator.console.service.enabled=true", "--wait", "--timeout", "120s")
    stage.helm(world.kube, world.helm, "upgrade", RELEASE, str(CHART), "--namespace", SYSTEM_NAMESPACE, *flags)
    (service,) = world.kube.exists("services", SYSTEM_NAMESPACE, OPERATOR)
    url = f"http://{stage.cluster_ip(world.kube, service, SYSTEM_NAMESPACE)}"
    wait_for("the console", lambda: answers(url) or None, timeout_seconds=60)
    return url


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


async def seen(page: Page, url: str, view: str) -> None:
    await page.go(url)
    await page.until(f"{READY} === {json.dumps(view)}", seconds=60)


async def right_figures(world: World, page: Page) -> None:
    """What the list shows is what kubectl and Prometheus say."""
    row = f".row[data-key='{NAMESPACE}/tiny']"

    def shown(cell: str) -> str:
        return f'document.querySelector("{row} {cell}").innerText'

    status = world.resource()["status"]
    assert (await page.run(shown(".replicas"))).split() == [str(status["readyReplicas"]), "/", "1"]
    # Figures move: that of the page is to be among those that Prometheus had meanwhile.
    labels = f'namespace="{NAMESPACE}",pool="tiny"'
    await page.until(f"{shown('.tokens')}.includes('→') && /[0-9]$/.test({shown('.tokens')})", seconds=90)
    values: list[float] = []
    async with asyncio.timeout(120):
        while True:
            sample = await asyncio.to_thread(
                prometheus_sample, world.prometheus_url, f"{POOL_OUTPUT_TOKENS}{{{labels}}}"
            )
            values += [float(one["value"][1]) for one in sample["result"]]
            told = float((await page.run(shown(".tokens"))).partition("→")[2].strip().removesuffix("k"))
            if values and told > 1 and min(values) * 0.8 <= told <= max(values) * 1.2:
                break
            await asyncio.sleep(1)
    for name, reason in (
        ("no-image", "ImagePullFailed"),
        ("hostile", "EngineCrashed"),
        ("asleep", "ScaledToZero"),
    ):
        await page.until(
            f"document.querySelector('.row[data-key=\"{NAMESPACE}/{name}\"]').innerText.includes('{reason}')", 120
        )
    world.evidence.say(f"the console shows {told} output tokens/s; Prometheus said {values[-1]:.1f}")


def run_workflows(world: World) -> None:
    """One run whole, one streamed."""

    def called() -> bool | None:
        body = {"model": "workflow/digest", "messages": [{"role": "user", "content": "the tides"}]}
        answer = httpx.post(f"{world.gateway_url}/v1/chat/completions", json=body, timeout=120)
        return answer.status_code in (200, 502) or None

    wait_for("the workflow at the gateway", called, timeout_seconds=120, every_seconds=2)
    body = {"model": "workflow/digest", "stream": True, "messages": [{"role": "user", "content": "the moon"}]}
    httpx.post(f"{world.gateway_url}/v1/chat/completions", json=body, timeout=120)


async def pictures(chromium: Browser, url: str) -> None:
    """What docs/console.md shows."""
    page = await chromium.page(1280, 640)
    await seen(page, f"{url}/", "pools")
    await page.picture(PICTURES / "console-pools.png")
    pool = await chromium.page(1280, 900)
    await seen(pool, f"{url}/#/pool/{NAMESPACE}/tiny", "pool")
    await pool.until("document.querySelectorAll('.ledger').length > 0", 60)
    await pool.until("document.querySelector('.ledger').innerText.includes('ready')", 60)
    await asyncio.sleep(1.0)  # the charts' own first frame
    await pool.picture(PICTURES / "console-pool.png", whole=True)
    flow = await chromium.page(1280, 640)
    await seen(flow, f"{url}/#/workflow/{NAMESPACE}/digest", "workflow")
    run = await flow.until("document.querySelector('.place tbody a')?.href", 60)
    await seen(flow, run, "run")
    await flow.until("document.querySelectorAll('.try').length === 4", 60)  # summary, two facts, answer
    await flow.picture(PICTURES / "console-run.png")
    phone = await chromium.page(390, 844, dark=True, phone=True)
    await seen(phone, f"{url}/", "pools")
    await phone.picture(PICTURES / "console-phone.png")


async def hostile_words(chromium: Browser, page: Page, url: str) -> None:
    """An engine's last words are shown as they are."""
    own = await chromium.page()
    await seen(own, f"{url}/#/pool/{NAMESPACE}/hostile", "pool")
    await own.until(f"document.querySelector('main').innerText.includes({json.dumps(NASTY)})", 60)
    assert await own.run("document.querySelectorAll('main img').length") == 0
    assert await page.run("document.title") == "Tidepool"


async def restarted(world: World, page: Page, url: str) -> None:
    """The page loses its operator, and goes on with the next one by itself."""
    before = time.monotonic()
    await asyncio.to_thread(
        world.kube.run, "delete", "pod", "-n", SYSTEM_NAMESPACE, "-l", OPERATOR, "--grace-period=0", "--force"
    )
    await page.until("document.documentElement.dataset.link === 'lost'", 60)
    await page.until("document.documentElement.dataset.link === 'live'", 120)
    row = f"document.querySelector(\"[data-key='{NAMESPACE}/tiny'] .replicas\")?.innerText"
    # One or two, as the load asks for.
    await page.until(f"/^([12]) \\/ \\1$/.test(({row} ?? '').replace(/\\s+/g, ' '))", 120)
    await page.until("document.querySelector('.rows').innerText.includes('EngineCrashed')", 120)
    world.facts["console_back_seconds"] = round(time.monotonic() - before, 1)
    world.evidence.say(
        f"the console was back {world.facts['console_back_seconds']} s after the operator was killed"
    )
