"""Who looks at what: one worker a view, as long as somebody looks, and to everybody the same bytes.

A worker makes its view anew every moment and sends what changed. Without a subscriber there is no worker.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tidepool_operator.console.views import delta
from tidepool_operator.console.views.delta import Document
from tidepool_operator.errors import OperatorError

log = logging.getLogger(__name__)

MOST_SUBSCRIBERS: Final = 64
# Events that a subscriber may be behind; who reads slower is let go, and begins anew with the whole view.
MOST_BEHIND: Final = 8
# Where nothing changes a sign of life is sent.
BEAT_SECONDS: Final = 5.0


class What(StrEnum):
    """Kinds of views."""

    POOLS = "pools"
    POOL = "pool"
    WORKFLOWS = "workflows"
    WORKFLOW = "workflow"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Topic:
    """One view; `key` is "namespace/name", and of a run its id; empty where there is one view only."""

    what: What
    key: str = ""


class NothingThere(OperatorError):
    """There is no such pool, workflow or run; the message is for people."""


class TooMany(OperatorError):
    """Too many look at the same time."""


Looks = Callable[[Topic], Awaitable[Document]]


@dataclass(eq=False, slots=True)
class Subscriber:
    """One page that looks. Its queue ends with None when it is let go."""

    queue: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(MOST_BEHIND + 1))

    def send(self, event: bytes) -> bool:
        """Queue an event; False when the subscriber is too far behind and has been let go."""
        if self.queue.qsize() < MOST_BEHIND:
            self.queue.put_nowait(event)
            return True
        while not self.queue.empty():
            self.queue.get_nowait()
        self.queue.put_nowait(None)
        return False


@dataclass(slots=True)
class _Channel:
    """The subscribers of one view, and its state as they know it: all but the `fresh`, which know nothing yet.

    While a view cannot be made, `warned` are those that know of `trouble`.
    """

    subscribers: set[Subscriber] = field(default_factory=set)
    fresh: set[Subscriber] = field(default_factory=set)
    warned: set[Subscriber] = field(default_factory=set)
    document: Document | None = None
    trouble: dict[str, str] | None = None
    worker: asyncio.Task[None] | None = None
    wanted: asyncio.Event = field(default_factory=asyncio.Event)


class Hub:
    """Owner of the workers. `looks` makes a view; `every_seconds` says how often, by kind."""

    def __init__(self, looks: Looks, every_seconds: Mapping[What, float], clock: Callable[[], float]) -> None:
        self._looks = looks
        self._every_seconds = every_seconds
        self._clock = clock
        self._channels: dict[Topic, _Channel] = {}

    def looking(self) -> int:
        """Pages that look now."""
        return sum(len(channel.subscribers) for channel in self._channels.values())

    async def follow(self, topic: Topic) -> AsyncGenerator[bytes, None]:
        """Events of a view, each a JSON object, until the subscriber is let go. Raises TooMany."""
        if self.looking() >= MOST_SUBSCRIBERS:
            raise TooMany(f"{MOST_SUBSCRIBERS} pages look already; close one and try again")
        channel, mine = self._channels.setdefault(topic, _Channel()), Subscriber()
        channel.subscribers.add(mine)
        channel.fresh.add(mine)
        channel.wanted.set()
        if channel.worker is None:
            channel.worker = asyncio.create_task(self._work(topic, channel), name=f"console {topic.what}")
        try:
            while (event := await mine.queue.get()) is not None:
                yield event
        finally:
            self._leave(topic, channel, mine)

    async def close(self) -> None:
        """Let all go."""
        workers = [channel.worker for channel in self._channels.values() if channel.worker is not None]
        for channel in self._channels.values():
            for one in channel.subscribers:
                while not one.queue.empty():
                    one.queue.get_nowait()
                one.queue.put_nowait(None)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    def _leave(self, topic: Topic, channel: _Channel, mine: Subscriber) -> None:
        channel.subscribers.discard(mine)
        channel.fresh.discard(mine)
        if not channel.subscribers and channel.worker is not None:
            channel.worker.cancel()
            self._channels.pop(topic, None)

    async def _work(self, topic: Topic, channel: _Channel) -> None:
        sent_at = self._clock()
        while True:
            channel.wanted.clear()
            found, trouble = await self._look(topic)
            now = self._clock()
            if trouble is not None:
                self._warn(channel, trouble, now)
            elif found is not None and (channel.fresh or channel.warned or channel.document != found):
                self._tell(channel, found, now)
                sent_at = now
            if now - sent_at >= BEAT_SECONDS:
                self._send(channel.subscribers, {"at": now})
                sent_at = now
            channel.fresh.intersection_update(channel.subscribers)
            # Whoever comes does not wait for the next turn.
            try:
                async with asyncio.timeout(self._every_seconds[topic.what]):
                    await channel.wanted.wait()
            except TimeoutError:
                continue

    async def _look(self, topic: Topic) -> tuple[Document | None, dict[str, str] | None]:
        try:
            return await self._looks(topic), None
        except NothingThere as error:
            return None, {"gone": str(error)}
        except OperatorError as error:
            return None, {"trouble": str(error)}
        except Exception:
            # A defect in one view must not end it for good.
            log.exception("the console's view of %s cannot be made", topic.what)
            return None, {"trouble": "the operator failed to make this view; its log says why. Please report it."}

    def _warn(self, channel: _Channel, trouble: dict[str, str], now: float) -> None:
        """Say once why there is nothing to see; whoever heard it begins anew when there is."""
        if trouble != channel.trouble:
            channel.warned.clear()
        self._send(channel.subscribers - channel.warned, {"at": now, **trouble})
        channel.warned = set(channel.subscribers)
        channel.trouble = trouble

    def _tell(self, channel: _Channel, found: Document, now: float) -> None:
        channel.fresh |= channel.warned & channel.subscribers
        channel.warned.clear()
        channel.trouble = None
        known = channel.subscribers - channel.fresh
        if known and channel.document is not None:
            changed = delta.change(channel.document, found)
            if changed is not None:
                self._send(known, {"at": now, **changed})
        if channel.fresh:
            self._send(channel.fresh, {"at": now, **delta.whole(found)})
            channel.fresh.clear()
        channel.document = found

    def _send(self, to: set[Subscriber], event: Mapping[str, Any]) -> None:
        # The same bytes for all. No figure of a view is NaN, which JSON has no word for.
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)
        encoded = text.encode("utf-8", "replace")
        for one in to:
            one.send(encoded)
