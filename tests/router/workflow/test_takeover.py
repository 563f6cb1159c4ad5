"""Gateways that die, pause and come back, as programs on a real PostgreSQL: nothing is lost or done twice."""

import asyncio
import signal
from pathlib import Path

import pytest

from fakes.postgres import PostgresServer
from scripted.upstreams import Seen
from tidepool_router.workflow import keeper
from workflows.gateways import RUNS, UNITS, Gateways, answer, gateways, until

pytestmark = pytest.mark.postgres


async def dies_in_flight(here: Gateways, run: str, unit: str) -> None:
    """Its gateway dies while the engine works on `unit`."""
    asked = never_answered(here, unit)
    async with asyncio.timeout(60):
        await asked.get()
    await here.kill(await here.owner(run))


def never_answered(here: Gateways, unit: str) -> asyncio.Queue[Seen]:
    """Who asks for `unit` next waits until it dies. Not killed in the script, which ends with the connection."""
    asked: asyncio.Queue[Seen] = asyncio.Queue()

    async def wait(seen: Seen) -> bool:
        asked.put_nowait(seen)
        await seen.closed.wait()
        return False

    here.calls.on[unit] = wait
    return asked


async def dies_when_committed(here: Gateways, run: str, unit: str) -> set[str]:
    """Its gateway dies when `unit` has ended for good; returns what had by then."""

    async def there() -> bool:
        return f"{run}.{unit}" in await here.committed(run)

    await until(there, f"{unit} is committed")
    await here.kill(await here.owner(run))
    here.calls.on.clear()
    return await here.committed(run)


def held(here: Gateways, unit: str) -> asyncio.Event:
    """Hold what comes after: `unit` is answered when the event is set."""
    may = asyncio.Event()

    async def wait(seen: Seen) -> bool:
        await may.wait()
        return True

    here.calls.on[unit] = wait
    return may


async def test_a_run_whose_gateway_dies_ends_at_another_as_if_it_had_not(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with gateways(postgres, tmp_path, "a", "b") as here:
        may_go_on = held(here, "plan")
        run = await here.post("why")
        dying = asyncio.create_task(dies_in_flight(here, run, "search.1"))
        await asyncio.sleep(0)  # it listens before the run may go on
        may_go_on.set()
        await dying
        committed = await here.committed(run)

        state = await here.ended(run)

        assert (state["phase"], state["output"], state["moves"]) == ("Succeeded", answer("why"), 1)
        assert state["tokens"] == 7 * len(UNITS)  # those of the call that was cut are not known
        assert f"{run}.plan" in committed
        assert {unit: here.calls.counts[unit] for unit in committed} == dict.fromkeys(committed, 1)
        assert here.calls.counts[f"{run}.search.1"] == 2  # asked again under the same id


async def test_a_gateway_that_was_paused_commits_nothing_when_it_comes_back(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with gateways(postgres, tmp_path, "a", "b") as here:
        late = held(here, "search.0")
        run = await here.post("why")
        await until(lambda: _counted(here, f"{run}.search.0"), "the call is under way")
        slow = here.programs.pop(await here.owner(run))
        slow.process.send_signal(signal.SIGSTOP)

        state = await here.ended(run)
        rows = await here.query("select * from workflow_endings order by step, item")
        slow.process.send_signal(signal.SIGCONT)
        late.set()  # its engine answers now

        async def gone() -> bool:
            return "running" not in (await here.client.get(f"{slow.url()}{RUNS}/{run}")).json()

        await until(gone, "the paused gateway has let go")
        code, log = await slow.stop()

        assert (state["phase"], state["output"], state["moves"]) == ("Succeeded", answer("why"), 1)
        assert await here.query("select * from workflow_endings order by step, item") == rows
        assert code == 0
        assert any("let go of a run" in str(line["message"]) for line in log)


async def test_any_gateway_tells_of_a_run_and_ends_it(postgres: PostgresServer, tmp_path: Path) -> None:
    async with gateways(postgres, tmp_path, "a", "b") as here:
        asked: list[Seen] = []

        async def never(seen: Seen) -> bool:
            asked.append(seen)
            await seen.closed.wait()
            return False

        here.calls.on["search.0"] = never
        run = await here.post("why", key="order-1")
        await until(lambda: _counted(here, f"{run}.search.0"), "the call is under way")
        kept = here.programs.pop(await here.owner(run))  # the other one is asked from now on

        assert await here.post("why", key="order-1") == run  # the same order at another gateway
        reading = asyncio.create_task(here.client.get(f"{here.url()}{RUNS}/{run}/events"))
        assert (await here.client.delete(f"{here.url()}{RUNS}/{run}")).status_code == 202
        assert keeper._CANCEL_SECONDS < 0.5  # within a second, which a busy machine must not be judged by
        async with asyncio.timeout(60):
            await asked[0].closed.wait()
        state = await here.ended(run)
        events = (await reading).text

        assert (state["phase"], state["reason"]) == ("Cancelled", "cancelled by a request")
        assert '"step": "plan", "item": null, "phase": "Succeeded"' in events
        assert '"type": "run", "phase": "Cancelled"' in events
        assert kept.process.returncode is None


async def _counted(here: Gateways, unit: str) -> bool:
    return here.calls.counts[unit] > 0


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_gateway_killed_at_every_step_boundary_in_turn_loses_and_repeats_nothing(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with gateways(postgres, tmp_path, "a", "b") as here:
        for number, (unit, in_flight) in enumerate((unit, flag) for unit in UNITS for flag in (True, False)):
            question = f"q{number}"
            if in_flight:
                before = held(here, UNITS[0]) if unit != UNITS[0] else asyncio.Event()
                dying = asyncio.ensure_future(_dies_soon(here, unit))
                await asyncio.sleep(0)
                run = await here.post(question)
                before.set()
                dead, committed = await dying
            else:
                follower = {"plan": "search.0", "search.0": "write", "search.1": "write"}.get(unit)
                if follower is not None:
                    held(here, follower)
                run = await here.post(question)
                committed = await dies_when_committed(here, run, unit)
                dead = ({"a", "b"} - here.programs.keys()).pop()
            counts = dict(here.calls.counts)
            state = await here.ended(run)
            assert (state["phase"], state["output"]) == ("Succeeded", answer(question)), (unit, in_flight)
            for done in committed:
                assert here.calls.counts[done] == counts[done], f"{done} was committed and is asked for again"
            when = "while it is in flight" if in_flight else "as it is committed"
            print(
                f"gateway killed at {unit}, {when}: run not lost, same result, {len(committed)} units not repeated"
            )
            await here.start(dead)


async def _dies_soon(here: Gateways, unit: str) -> tuple[str, set[str]]:
    """Whichever gateway asks for the unit next dies in it."""
    asked = never_answered(here, unit)
    async with asyncio.timeout(60):
        seen = await asked.get()
    run = seen.headers[b"x-request-id"].decode().partition(".")[0]
    dead = await here.owner(run)
    await here.kill(dead)
    return dead, await here.committed(run)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_many_runs_at_once_survive_gateways_that_die_again_and_again(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with gateways(postgres, tmp_path, "a", "b") as here:
        for number in range(6):
            runs = {await here.post(f"q{number}-{one}"): f"q{number}-{one}" for one in range(20)}
            await asyncio.sleep(0.05 * number)
            dead = "ab"[number % 2]
            await here.kill(dead)
            committed = set().union(*[await here.committed(run) for run in runs])
            counts = dict(here.calls.counts)
            for run, question in runs.items():
                state = await here.ended(run)
                assert (state["phase"], state["output"]) == ("Succeeded", answer(question))
            assert {unit: here.calls.counts[unit] for unit in committed} == {
                unit: counts[unit] for unit in committed
            }
            await here.start(dead)
