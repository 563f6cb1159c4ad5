"""The report stream: first line at once, then on change, spaced, and a heartbeat."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tidepool_router.fleet import feed as feeds
from tidepool_router.fleet.feed import Feed


@dataclass(frozen=True)
class Figure:
    seq: int
    value: int

    def encode(self) -> bytes:
        return b"%d:%d\n" % (self.seq, self.value)


class Source:
    def __init__(self) -> None:
        self.value = 0
        self.built = 0
        self.feed: Feed[Figure] = Feed(self.build, lambda old, new: old.value != new.value)

    def build(self) -> Figure:
        self.built += 1
        return Figure(self.built, self.value)

    def change(self, value: int) -> None:
        self.value = value
        self.feed.touch()


@pytest.fixture
def source() -> Source:
    return Source()


async def test_the_first_line_needs_no_change(source: Source) -> None:
    lines = source.feed.lines()

    assert await anext(lines) == b"1:0\n"
    await lines.aclose()


async def test_nothing_is_built_while_nobody_listens(source: Source) -> None:
    for value in range(1000):
        source.change(value)
    for _ in range(10):  # rounds of the loop: a timer that is due would have run
        await asyncio.sleep(0)

    assert source.built == 0


async def test_a_change_goes_to_everyone_before_the_heartbeat(source: Source) -> None:
    readers = [source.feed.lines() for _ in range(3)]
    for reader in readers:
        await anext(reader)

    source.change(7)
    async with asyncio.timeout(feeds.HEARTBEAT_SECONDS * 0.8):
        got = [await anext(reader) for reader in readers]

    assert {line.split(b":")[1] for line in got} == {b"7\n"}
    for reader in readers:
        await reader.aclose()


async def test_a_reader_that_just_came_does_not_hide_a_change_from_the_others(source: Source) -> None:
    old = source.feed.lines()
    await anext(old)
    source.change(1)
    await anext(old)
    source.value = 2
    new = source.feed.lines()
    await anext(new)  # its first line has the change; the others have not seen it
    source.feed.touch()

    async with asyncio.timeout(feeds.HEARTBEAT_SECONDS * 0.8):
        assert (await anext(old)).endswith(b":2\n")
    await old.aclose()
    await new.aclose()


async def test_a_thousand_changes_are_few_lines_and_the_last_one_counts(source: Source) -> None:
    lines = source.feed.lines()
    await anext(lines)
    for value in range(1, 1001):
        source.change(value)
        if value % 100 == 0:
            await asyncio.sleep(0)
    line = await anext(lines)
    while not line.endswith(b":1000\n"):
        line = await anext(lines)

    assert source.built <= 4
    await lines.aclose()


async def test_what_is_urgent_does_not_wait_for_the_spacing(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "SPACING_SECONDS", 100.0)
    lines = source.feed.lines()
    await anext(lines)
    source.change(1)
    await anext(lines)

    source.change(2)  # its time would come with the next spacing
    source.value = 3
    source.feed.touch(urgent=True)

    assert (await asyncio.wait_for(anext(lines), 0.5)).endswith(b":3\n")
    await lines.aclose()


async def test_a_touch_without_a_difference_says_nothing(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = source.feed.lines()
    await anext(lines)
    source.change(5)
    await anext(lines)

    source.change(5)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(lines), feeds.SPACING_SECONDS * 3)


async def test_a_heartbeat_comes_without_a_change(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "HEARTBEAT_SECONDS", 0.01)
    lines = source.feed.lines()

    assert [await anext(lines) for _ in range(3)] == [b"1:0\n", b"2:0\n", b"3:0\n"]
    await lines.aclose()


async def test_a_slow_reader_gets_the_newest_only(source: Source, eventually: Any) -> None:
    lines = source.feed.lines()
    await anext(lines)
    for value in range(1, 4):
        source.change(value)
        await eventually(lambda: source.feed._timer is None)

    assert (await anext(lines)).endswith(b":3\n")
    await lines.aclose()


async def test_close_ends_every_stream(source: Source) -> None:
    lines = source.feed.lines()
    await anext(lines)
    source.feed.close()

    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(lines), 5)
