"""What the console costs a live operator with hundreds of pools, and how soon its page is of use."""

import asyncio
import json
import time
from typing import Any, Final

from scripted.browser import Browser, Page, browser

from .machine import cpu_seconds

VISITS: Final = 5
_SECONDS: Final = 60.0
# The server has noticed by then that a page has come or gone.
_SETTLE_SECONDS: Final = 10.0
_READY: Final = "document.documentElement.dataset.ready === 'pools'"
_FIGURES: Final = """({
  ready_seconds: window.ready_ms / 1000,
  bytes: performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))
    .reduce((all, one) => all + one.decodedBodySize, 0),
  rows: document.querySelectorAll('.rows .row').length,
  told: document.querySelector('.pools p').innerText,
})"""
# When it is of use, by the page's own clock and to the frame: asking from outside would come too late.
_WATCH: Final = f"""
  window.ready_ms = 0;
  const note = () => {{ if (!window.ready_ms && {_READY}) window.ready_ms = performance.now(); }};
  new MutationObserver(note).observe(document, {{attributes: true, childList: true, subtree: true}});
"""


async def looked_at(pid: int, port: int, pools: int) -> dict[str, Any]:
    """Of an operator at rest, whose process is `pid`: shares of a core, and what visits of its page found.

    Raises AssertionError when the page shows other than all `pools`, or logs an error.
    """
    found: dict[str, Any] = {"cpu_share_nobody": await _share(pid)}
    url = f"http://127.0.0.1:{port}/"
    async with browser() as chromium:
        visits = [await _visit(chromium, url, pools) for _ in range(VISITS)]
        page = await chromium.page()
        await page.go(url)
        await page.until(_READY)
        await asyncio.sleep(_SETTLE_SECONDS)
        found["cpu_share_one_page"] = await _share(pid)
        assert chromium.complaints == [], chromium.complaints
    await asyncio.sleep(_SETTLE_SECONDS)
    return found | {
        "cpu_share_gone": await _share(pid),
        "ready_seconds": [one["ready_seconds"] for one in visits],
        "bytes": max(one["bytes"] for one in visits),
        "rows": max(one["rows"] for one in visits),
    }


async def _share(pid: int) -> float:
    cpu, began = cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(_SECONDS)
    return (cpu_seconds(pid) - cpu) / (time.monotonic() - began)


async def _visit(chromium: Browser, url: str, pools: int) -> dict[str, Any]:
    page: Page = await chromium.page()
    await page.ask("Network.enable")
    await page.ask("Network.setCacheDisabled", cacheDisabled=True)  # each visit is a first one
    await page.ask("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
    await page.go(url)
    await page.until(f"{_READY} && window.ready_ms > 0")
    found: dict[str, Any] = await page.run(_FIGURES)
    assert found["told"] == f"{pools} pools", json.dumps(found)
    await page.ask("Page.close")
    return found
