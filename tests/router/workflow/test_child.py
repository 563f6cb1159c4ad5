"""Whoever burns time waits for its like alone, and proves itself before it waits among the others again."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tidepool_router.workflow.child import Child, Lanes, TookTooLong


class Played(Child):
    """A child that answers what the test says, when it says so."""

    def __init__(self, name: str) -> None:
        super().__init__("nobody", 1.0)
        self.name = name
        self.asked: list[str] = []
        self.may = asyncio.Event()

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(request["what"])
        await self.may.wait()
        if request.get("burns"):
            raise TookTooLong("stopped")
        return {"by": self.name}


@pytest.fixture
def played() -> tuple[Lanes, Played, Played]:
    lanes = Lanes("nobody", 1.0)
    quick, slow = Played("quick"), Played("slow")
    lanes._quick, lanes._slow = quick, slow
    return lanes, quick, slow


async def test_others_wait_for_what_burns_once(played: tuple[Lanes, Played, Played]) -> None:
    lanes, quick, slow = played
    burning = [asyncio.create_task(lanes.ask("bad", {"what": "bad", "burns": True})) for _ in range(3)]
    good = asyncio.create_task(lanes.ask("good", {"what": "good"}))
    await asyncio.sleep(0)  # all of them wait for the first one

    quick.may.set()

    assert await good == {"by": "quick"}
    assert (quick.asked, slow.asked) == (["bad", "good"], ["bad"])
    slow.may.set()
    assert [type(found) for found in await asyncio.gather(*burning, return_exceptions=True)] == [TookTooLong] * 3


async def test_it_is_among_the_others_again_when_it_has_gone_well_for_a_while(
    played: tuple[Lanes, Played, Played],
) -> None:
    lanes, quick, slow = played
    quick.may.set()
    slow.may.set()
    with pytest.raises(TookTooLong):
        await lanes.ask("x", {"what": "x", "burns": True})

    by = [(await lanes.ask("x", {"what": "x"}))["by"] for _ in range(18)]

    assert by == ["slow"] * 16 + ["quick"] * 2
