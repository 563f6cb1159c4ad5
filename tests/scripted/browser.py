"""A real headless Chromium, spoken to over its debugging pipe.

See https://chromedevtools.github.io/devtools-protocol/.

No port and no library between: a JSON object, then a zero byte, each way.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cluster import chromium

_SECONDS = 60.0
_FLAGS = (
    "--no-sandbox",  # tests run as root, in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--font-render-hinting=none",
    "--remote-debugging-pipe",
)
_KEYS = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "Tab": 9}


class Browser:
    """One browser; `complaints` are the errors that its pages logged, those of the content policy included."""

    def __init__(self, writer: int) -> None:
        self.complaints: list[str] = []
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def read(self, pipe: asyncio.StreamReader) -> None:
        """Take what it says until it ends."""
        while True:
            try:
                text = await pipe.readuntil(b"\0")
            except asyncio.IncompleteReadError:
                break
            self._take(json.loads(text[:-1]))
        for one in self._waiting.values():
            if not one.done():
                one.set_exception(ConnectionError("the browser has ended"))

    def _take(self, message: dict[str, Any]) -> None:
        waiting = self._waiting.pop(message.get("id", 0), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(str(details.get("exception", {}).get("description") or details["text"]))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    async def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One command; its result."""
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(_SECONDS):
            answer = await future
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    async def page(
        self, width: int = 1280, height: int = 800, *, dark: bool = False, phone: bool = False
    ) -> "Page":
        """A new page of that size."""
        target = (await self.ask("Target.createTarget", url="about:blank"))["targetId"]
        session = (await self.ask("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            await page.ask(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        await page.ask("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await page.ask("Emulation.setEmulatedMedia", features=[feature])
        return page


class Page:
    """One page of a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser = browser
        self._session = session

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One command to this page."""
        return await self.browser.ask(method, self._session, **params)

    async def go(self, url: str) -> None:
        """Begin to load a page."""
        await self.ask("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        result = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, script: str, seconds: float = 30.0) -> Any:
        """The value of an expression, once it is true; while a page loads, it may fail."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    with contextlib.suppress(AssertionError):
                        if found := await self.run(script):
                            return found
                    await asyncio.sleep(0.02)  # the page has no event for what is looked for
        except TimeoutError:
            body = await self.run("document.body.innerText.slice(0, 2000)")
            raise AssertionError(f"{script}: not within {seconds} s; {self.browser.complaints}; {body}") from None

    async def key(self, key: str) -> None:
        """Press a key."""
        code = _KEYS.get(key, ord(key[0].upper()))
        text = {} if key in _KEYS and key != "Enter" else {"text": "\r" if key == "Enter" else key}
        await self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        await self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def type(self, text: str) -> None:
        """Type a text into what has the focus."""
        await self.ask("Input.insertText", text=text)

    async def picture(self, path: Path, *, whole: bool = False) -> None:
        """What is seen, as a PNG; `whole`: the page to its end."""
        answer = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await asyncio.to_thread(_written, path, base64.b64decode(answer["data"]))


def _written(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser with a profile of its own, ended with the block."""
    loop = asyncio.get_running_loop()
    read_end, write_end = os.pipe()  # to the browser
    to_us = os.pipe()
    # Its processes write there until the last one has ended.
    with tempfile.TemporaryDirectory(prefix="tidepool-browser-", ignore_cleanup_errors=True) as profile:
        line = f'exec "$0" "$@" 3<&{read_end} 4>&{to_us[1]}'
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", line, str(chromium.program()), *_FLAGS, f"--user-data-dir={profile}"),
            env=chromium.environment(),
            pass_fds=(read_end, to_us[1]),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_end)
        os.close(to_us[1])
        pipe = asyncio.StreamReader(limit=64 * 1024 * 1024)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(pipe), os.fdopen(to_us[0], "rb", 0)
        )
        made = Browser(write_end)
        reading = asyncio.create_task(made.read(pipe))
        try:
            yield made
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            transport.close()
            os.close(write_end)
