"""Clients that stream through the official `openai` package and count every token against what they asked for."""

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
import openai

STREAM_TIMEOUT_SECONDS = 900.0


@dataclass(slots=True)
class Stream:
    """One request: what was asked, what came, and how it ended.

    `received` counts token ids that the engine put into the chunks; `usage` is the engine's own count where the
    client asked for it. Times are seconds since the load began.
    """

    number: int
    route: str
    asked: int
    started: float
    received: int = 0
    usage: int | None = None
    first_token: float | None = None
    ended: float | None = None
    pod: str = ""
    error: str = ""
    error_event: bool = False  # the stream ended with an error event of the API's shape

    @property
    def whole(self) -> bool:
        """Every token that was asked for came, and the engine counts the same."""
        return not self.error and self.received == self.asked and self.usage in (None, self.asked)


@dataclass(slots=True)
class Route:
    """An address that clients use."""

    name: str
    base_url: str


@dataclass(slots=True)
class Load:
    """Client loops in a thread of their own; each loop sends its next request when the last one ended.

    `streams` of concurrent requests are kept running until `stop`. No request is repeated by the client: what
    fails is seen.
    """

    routes: Sequence[Route]
    model: str
    tokens: int = 200
    prompt_words: int = 40
    records: list[Stream] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _thread: threading.Thread | None = None
    _workers: list["asyncio.Task[None]"] = field(default_factory=list)
    _wanted: int = 0

    def start(self) -> "Load":
        """Start the thread that owns the event loop."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="load", daemon=True)
        self._thread.start()
        return self

    def running(self) -> list[Stream]:
        """Streams that have not ended."""
        return [one for one in self.records if one.ended is None]

    def receiving(self) -> list[Stream]:
        """Streams that have their first token and have not ended."""
        return [one for one in self.records if one.ended is None and one.received > 0]

    def keep(self, streams: int) -> None:
        """Keep that many requests running from now on; fewer: loops end after the request that they run."""
        asyncio.run_coroutine_threadsafe(self._keep(streams), self._loop).result(timeout=10)

    def send(self, count: int, *, tokens: int | None = None, routes: Sequence[Route] = ()) -> None:
        """Send that many requests at once, each just once, by these routes in turn (the load's own by default)."""
        sending = self._send(count, tokens or self.tokens, routes or self.routes)
        asyncio.run_coroutine_threadsafe(sending, self._loop).result(timeout=10)

    def stop(self, timeout_seconds: float = STREAM_TIMEOUT_SECONDS) -> None:
        """Let every running stream end, then end the thread; what does not end in time is recorded as cut."""
        try:
            self.keep(0)
            asyncio.run_coroutine_threadsafe(self._drain(timeout_seconds), self._loop).result(timeout_seconds + 30)
            asyncio.run_coroutine_threadsafe(self._loop.shutdown_asyncgens(), self._loop).result(10)
        finally:
            self._end_thread()

    def failed(self) -> list[Stream]:
        """Streams that ended and are not whole."""
        return [one for one in self.records if one.ended is not None and not one.whole]

    def write(self, path: Path) -> None:
        """One JSON object a stream."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in self.records))

    def now(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._began

    def _end_thread(self) -> None:
        """The loop is closed by hand: left to the collector it warns, and warnings are errors here."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not None:
            self._thread.join(timeout=10)
            if self._thread.is_alive():
                return
        self._loop.close()

    async def _keep(self, streams: int) -> None:
        self._wanted = streams
        self._workers = [task for task in self._workers if not task.done()]
        for place in range(len(self._workers), streams):
            self._workers.append(asyncio.create_task(self._worker(place)))

    async def _worker(self, place: int) -> None:
        async with self._client(self.routes[place % len(self.routes)]) as client:
            while place < self._wanted:
                await self._one(client, self.routes[place % len(self.routes)], self.tokens)

    async def _send(self, count: int, tokens: int, routes: Sequence[Route]) -> None:
        for place in range(count):
            self._workers.append(asyncio.create_task(self._single(routes[place % len(routes)], tokens)))

    async def _single(self, route: Route, tokens: int) -> None:
        async with self._client(route) as client:
            await self._one(client, route, tokens)

    async def _drain(self, timeout_seconds: float) -> None:
        if not self._workers:
            return
        _, late = await asyncio.wait(self._workers, timeout=timeout_seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _client(self, route: Route) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=route.base_url,
            api_key="unused",
            max_retries=0,
            timeout=httpx.Timeout(STREAM_TIMEOUT_SECONDS, connect=20),
        )

    async def _one(self, client: openai.AsyncOpenAI, route: Route, tokens: int) -> None:
        record = Stream(number=next(self._numbers), route=route.name, asked=tokens, started=self.now())
        self.records.append(record)
        try:
            await self._receive(client, record)
        except openai.APIStatusError as error:
            record.error = f"HTTP {error.status_code}: {error.message[:200]}"
        except openai.APIError as error:  # an error event inside the stream arrives as this
            record.error = f"{type(error).__name__}: {error.message[:200]}"
            record.error_event = type(error) is openai.APIError
        except (httpx.HTTPError, asyncio.CancelledError) as error:
            record.error = f"cut: {type(error).__name__} {error}"[:200]
        finally:
            record.ended = self.now()
        if record.error:
            await asyncio.sleep(0.5)  # a loop whose requests fail at once must not spin

    async def _receive(self, client: openai.AsyncOpenAI, record: Stream) -> None:
        asks_usage = (
            record.number % 2 == 0
        )  # the other half has its usage asked for, and taken out, by the sidecar
        raw = await client.chat.completions.with_raw_response.create(
            model=self.model,
            messages=[{"role": "user", "content": prompt(record.number, self.prompt_words)}],
            max_tokens=record.asked,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True}
            | ({"stream_options": {"include_usage": True}} if asks_usage else {}),
        )
        record.pod = raw.headers.get("x-tidepool-pod", "")
        finished = False
        async for chunk in raw.parse():
            if chunk.usage is not None:
                record.usage = chunk.usage.completion_tokens
            for choice in chunk.choices:
                fresh = len(getattr(choice, "token_ids", None) or ())
                if fresh and record.first_token is None:
                    record.first_token = self.now() - record.started
                record.received += fresh
                finished = finished or choice.finish_reason is not None
        if not finished:
            record.error = "cut: the stream ended without a finish_reason"


def prompt(number: int, words: int) -> str:
    """A prompt that differs from its first word on, so that no prefix cache helps."""
    return " ".join(f"w{(number * 7919 + place * 104729) % 9973}" for place in range(words))


@contextlib.contextmanager
def load(routes: Sequence[Route], model: str, tokens: int) -> Iterator[Load]:
    """A load that is stopped, and its thread ended, whatever happens."""
    one = Load(routes=routes, model=model, tokens=tokens).start()
    try:
        yield one
    finally:
        one.stop(timeout_seconds=60 if one.failed() else STREAM_TIMEOUT_SECONDS)


def figures(records: Sequence[Stream]) -> dict[str, float]:
    """Counts and time to first token (seconds) of the streams that ended."""
    firsts = sorted(one.first_token for one in records if one.first_token is not None)
    at = lambda share: firsts[min(len(firsts) - 1, int(len(firsts) * share))] if firsts else float("nan")  # noqa: E731
    return {
        "streams": len(records),
        "whole": sum(one.whole for one in records),
        "failed": sum(one.ended is not None and not one.whole for one in records),
        "tokens": sum(one.received for one in records),
        "ttft_p50_seconds": round(at(0.5), 3),
        "ttft_p90_seconds": round(at(0.9), 3),
    }
