"""Requests that come whether or not earlier ones were answered, at a rate that follows a clock, as users do."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import httpx
import openai

# Of one load at a time; what comes beyond is refused here and counted as such.
MOST_OPEN = 400
TICK_SECONDS = 0.05


@dataclass(slots=True)
class Arrival:
    """One request; times are `time.time()`. `tokens` as the engine counts them."""

    at: float
    first_token: float | None = None
    ended: float | None = None
    tokens: int = 0
    error: str = ""

    def within(self, first_seconds: float, each_seconds: float) -> bool:
        """Whole, and within both targets."""
        if self.error or self.first_token is None or self.ended is None:
            return False
        each = (self.ended - self.first_token) / max(1, self.tokens - 1)
        return self.first_token - self.at <= first_seconds and each <= each_seconds


@dataclass(slots=True)
class Arrivals:
    """Requests for `tokens` of one model, streamed or not. `rate` tells requests a second at a time."""

    base_url: str
    model: str
    rate: Callable[[float], float]
    tokens: int = 100
    timeout_seconds: float = 120.0
    streamed: bool = True
    records: list[Arrival] = field(default_factory=list)
    _open: set["asyncio.Task[None]"] = field(default_factory=set)

    def between(self, begin: float, end: float) -> Sequence[Arrival]:
        """Requests that came between two times."""
        return [one for one in self.records if begin <= one.at < end]

    async def run(self, stop: asyncio.Event) -> None:
        """Send until told to stop, then let what runs end."""
        due, last = 1.0, time.time()
        timeout = httpx.Timeout(self.timeout_seconds, connect=20)
        async with openai.AsyncOpenAI(
            base_url=f"{self.base_url}/v1", api_key="unused", max_retries=0, timeout=timeout
        ) as client:
            while not stop.is_set():
                # At even distances: with so few a second, chance would be most of what is seen.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), TICK_SECONDS)
                now = time.time()
                due, last = due + self.rate(now) * (now - last), now
                while due >= 1.0 and not stop.is_set():
                    due -= 1.0
                    self._send(client)
            if self._open:
                await asyncio.wait(self._open, timeout=self.timeout_seconds)

    def _send(self, client: openai.AsyncOpenAI) -> None:
        record = Arrival(time.time())
        self.records.append(record)
        if len(self._open) >= MOST_OPEN:
            record.error = "too many are open"
            return
        task = asyncio.get_running_loop().create_task(self._one(client, record, len(self.records)))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _one(self, client: openai.AsyncOpenAI, record: Arrival, number: int) -> None:
        words = " ".join(f"w{(number * 7919 + place * 104729) % 9973}" for place in range(30))
        try:
            await (self._stream if self.streamed else self._whole)(client, record, words)
        except (openai.APIError, httpx.HTTPError) as error:
            record.error = f"{type(error).__name__}: {error}"[:200]
        finally:
            record.ended = time.time()

    async def _stream(self, client: openai.AsyncOpenAI, record: Arrival, words: str) -> None:
        stream = await client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": words}],
            max_tokens=self.tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        async for chunk in stream:
            if record.first_token is None and any(choice.delta.content for choice in chunk.choices):
                record.first_token = time.time()
            record.tokens = chunk.usage.completion_tokens if chunk.usage else record.tokens

    async def _whole(self, client: openai.AsyncOpenAI, record: Arrival, words: str) -> None:
        answer = await client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": words}],
            max_tokens=self.tokens,
            extra_body={"ignore_eos": True},
        )
        record.tokens = answer.usage.completion_tokens if answer.usage else 0


@contextlib.contextmanager
def arriving(*loads: Arrivals) -> Iterator[None]:
    """All of them in a thread of its own; ended, whatever happens."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def all_of_them() -> None:
        await asyncio.gather(*(load.run(stop) for load in loads))

    thread = threading.Thread(target=lambda: loop.run_until_complete(all_of_them()), name="arrivals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=150)
        if not thread.is_alive():
            loop.close()
