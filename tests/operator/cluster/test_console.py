"""The console of the whole operator, over a real API server, in a real Chromium: news, a restart, hostility."""

import json
from typing import Any

import pytest

from cluster.ports import free_ports
from pools.live import Live, eventually
from scripted.browser import browser
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, POD, Object

# What the API server takes may still want to be markup.
NASTY = "<img src=x onerror=document.title='owned'>"

pytestmark = [pytest.mark.apiserver, pytest.mark.soak]


async def one_pod(live: Live) -> Object:
    async def look() -> list[Object]:
        return await live.list(POD)

    return (await eventually(look, "a pod"))[0]


async def test_the_page_follows_the_cluster_through_a_restart_of_the_operator(live: Live) -> None:
    (port,) = free_ports(1)
    serves: dict[str, Any] = {"console": True, "console_port": port}
    row = f"document.querySelector('[data-key=\"{live.namespace}/llama\"]')?.innerText.replace(/\\s+/g, ' ')"
    async with browser() as chromium:
        page = await chromium.page()
        async with live.operator(**serves):
            await page.go(f"http://127.0.0.1:{port}/")
            await page.until("document.querySelector('.pools p')?.innerText === 'There are no ModelPools yet.'")
            await live.create(engine={"args": [f"--limit-mm-per-prompt={NASTY}"]})
            await page.until(f"{row}?.includes('0 / 1')")
            pod = await one_pod(live)
            await live.bring_up(pod["metadata"]["name"])
            await page.until(f"{row}?.includes('Serving') && {row}.includes('1 / 1')")

            # In depth: what its pod is, and the hostile argument as it stands.
            tab = await chromium.page()
            await tab.go(f"http://127.0.0.1:{port}/#/pool/{live.namespace}/llama")
            await tab.until(f"document.querySelector('main')?.textContent.includes({json.dumps(NASTY)})")
            await tab.until(f"document.querySelector('.pod')?.dataset.key === '{pod['metadata']['name']}'")
            assert await tab.run("document.querySelectorAll('main img').length") == 0
            assert "owned" not in str(await tab.run("document.title"))

        await page.until("document.documentElement.dataset.link === 'lost'")
        await live.create("second")
        spec = {"steps": [{"name": "a", "llm": {"pools": [{"name": "llama"}], "messages": [
            {"role": "user", "content": "hello"}]}}]}  # fmt: skip
        metadata = {"name": "digest", "namespace": live.namespace}
        workflow = {
            "apiVersion": AGENT_WORKFLOW.api_version,
            "kind": "AgentWorkflow",
            "metadata": metadata,
            "spec": spec,
        }
        await live.api.create(AGENT_WORKFLOW, live.namespace, workflow)
        async with live.operator("two", **serves):
            await page.until("document.documentElement.dataset.link === 'live'")
            await page.until("document.querySelector('.pools p').innerText === '2 pools'")
            await page.until(f"{row}.includes('1 / 1')")
            await page.go(f"http://127.0.0.1:{port}/#/workflow/{live.namespace}/digest")
            await page.until("document.querySelector('.graph')?.getAttribute('aria-label') === 'a'")
            await page.until("document.querySelector('#notice').innerText.includes('no gateway serves')")
        assert [one for one in chromium.complaints if "ERR_" not in one] == []
