"""Pictures of the console of a cluster that is made up, to look at: `make pictures`.

Those in docs/images are of the real cluster (e2e/scenarios/test_console.py).
"""

import asyncio
import time
from pathlib import Path

from fakes.console import busy_world, served
from scripted.browser import Page, browser

FOLDER = Path(__file__).parents[2] / "build" / "pictures"
POOLS = 24


async def main() -> None:
    """Write them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    async with served(busy_world(POOLS, now=time.time())) as server, browser() as chromium:
        url = f"http://127.0.0.1:{server.port}/"
        await _picture(await chromium.page(1280, 620), url, "pools", "console-pools.png")
        await _picture(await chromium.page(1280, 1010), f"{url}#/pool/team/pool-000", "pool", "console-pool.png")
        await _picture(await chromium.page(1280, 380), f"{url}#/run/team/research/run-1", "run", "console-run.png")
        phone = await chromium.page(390, 700, dark=True, phone=True)
        await _picture(phone, url, "pools", "console-phone.png")
        assert chromium.complaints == []


async def _picture(page: Page, url: str, view: str, name: str) -> None:
    await page.go(url)
    await page.until(f"document.documentElement?.dataset.ready === '{view}'")
    if view == "pool":
        await page.until("document.querySelectorAll('.uplot canvas').length === 2")
    await page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    await page.picture(FOLDER / name)


if __name__ == "__main__":
    asyncio.run(main())
