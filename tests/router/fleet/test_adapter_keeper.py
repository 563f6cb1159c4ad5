"""An engine's adapters become what the settings want, whatever happens meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fakes.engine import EngineDouble
from fakes.faults import Fault, Wrong
from fakes.settings import EngineSettings
from tidepool_api.load import LoadReport
from tidepool_api.routing import SidecarSettings, WantedAdapter
from tidepool_api.trust import TrustedCallers
from tidepool_router.fleet.adapter_keeper import Act, Failure, Step, steps
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.sidecar import SidecarState

SQL = WantedAdapter(name="sql", path="/adapters/sql")
TAX = WantedAdapter(name="tax", path="acme/tax")


def failed(path: str, again_at: float) -> Failure:
    return Failure(path, "no", 1, again_at)


@pytest.mark.parametrize(
    ("wanted", "served", "failures", "expected", "why"),
    [
        ((), {}, {}, [], "nothing wanted, nothing there"),
        ((SQL,), {}, {}, [Step(Act.LOAD, "sql", "/adapters/sql")], "wanted and not there"),
        ((SQL,), {"sql": "/adapters/sql"}, {}, [], "as wanted"),
        ((SQL,), {"sql": "/old"}, {}, [Step(Act.MOVE, "sql", "/adapters/sql")], "there from another place"),
        (
            (SQL,),
            {"tax": "acme/tax"},
            {},
            [Step(Act.UNLOAD, "tax"), Step(Act.LOAD, "sql", "/adapters/sql")],
            "what nobody wants goes first: its slot may be needed",
        ),
        ((SQL,), {}, {"sql": failed("/adapters/sql", 11.0)}, [], "failed lately: not yet"),
        (
            (SQL,),
            {},
            {"sql": failed("/adapters/sql", 10.0)},
            [Step(Act.LOAD, "sql", SQL.path)],
            "its pause is over",
        ),
        ((SQL,), {}, {"sql": failed("/old", 99.0)}, [Step(Act.LOAD, "sql", SQL.path)], "failed at another place"),
    ],
)
def test_what_is_done_now(
    wanted: Any, served: dict[str, str], failures: dict[str, Failure], expected: list[Step], why: str
) -> None:
    assert steps(wanted, served, failures, 10.0) == expected, why


@pytest.fixture
async def double() -> AsyncIterator[EngineDouble]:
    async with EngineDouble() as engine:
        yield engine


def sidecar(engine: EngineDouble, clock: Any, *adapters: WantedAdapter, **settings: Any) -> SidecarState:
    told = SidecarSettings(pool="p", namespace="ns", model="tiny", adapters=adapters, **settings)
    return SidecarState(Endpoint.at("127.0.0.1", engine.port), told, pod="pod-0", boot="boot", now=clock)


async def look(state: SidecarState) -> LoadReport:
    """One look at the engine, all that follows from it, and what the next look tells."""
    await state.look_at_engine()
    if state.adapters._task is not None:
        await state.adapters._task
    await state.look_at_engine()
    return state.report()


def want(state: SidecarState, *adapters: WantedAdapter) -> None:
    state.apply(state.settings.model_copy(update={"adapters": adapters}))


async def test_adapters_come_before_the_pod_takes_requests(double: EngineDouble, clock: Any) -> None:
    state = sidecar(double, clock, SQL, TAX)
    await state.look_at_engine()

    assert state.why_not_started() is None
    assert state.why_not_ready() == "the engine's adapters are being loaded"
    report = await look(state)
    assert state.why_not_ready() is None
    assert (report.served_adapters, report.adapters_failed) == (("sql", "tax"), ())
    assert double.api.adapters == {"sql": "/adapters/sql", "tax": "acme/tax"}


async def test_one_more_and_one_less_while_it_serves(double: EngineDouble, clock: Any) -> None:
    state = sidecar(double, clock, SQL)
    await look(state)
    want(state, TAX)

    assert state.why_not_ready() is None, "a pod that serves is not taken away for one that is added"
    assert (await look(state)).served_adapters == ("tax",)
    want(state, WantedAdapter(name="tax", path="acme/tax-2"))
    await look(state)
    assert double.api.adapters == {"tax": "acme/tax-2"}
    want(state)
    assert (await look(state)).served_adapters == ()


async def test_what_is_as_wanted_is_not_asked_for(double: EngineDouble, clock: Any) -> None:
    state = sidecar(double, clock, SQL)
    for _ in range(3):
        await look(state)

    assert double.api.administered == ["/v1/load_lora_adapter"]


async def test_adapters_that_are_not_ours_are_left_alone(double: EngineDouble, clock: Any) -> None:
    double.api.adapters["own"] = "/opt/own"
    told = SidecarSettings(pool="p", namespace="ns", model="tiny")
    state = SidecarState(Endpoint.at("127.0.0.1", double.port), told, pod="pod-0", boot="boot", now=clock)

    assert (await look(state)).served_adapters == ("own",)
    assert state.why_not_ready() is None


async def test_one_that_fails_keeps_nothing_up_and_is_tried_again_less_and_less(
    double: EngineDouble, clock: Any
) -> None:
    double.api.missing_adapters.add(SQL.path)
    state = sidecar(double, clock, SQL, TAX)
    report = await look(state)

    assert state.why_not_ready() is None
    assert report.served_adapters == ("tax",)
    assert report.adapters_failed == (("sql", "Loading lora sql failed: No adapter found for /adapters/sql"),)
    pauses = []
    while len(pauses) < 9:
        asked, seconds = len(double.api.administered), 0.0
        while len(double.api.administered) == asked:
            clock.pass_(max(1.0, seconds / 2))
            seconds += max(1.0, seconds / 2)
            await look(state)
        pauses.append(seconds)
    assert pauses == sorted(pauses)
    assert pauses[0] < 4
    assert 250 < pauses[-1] < 500, "bounded, so that whoever mends it does not wait long"

    double.api.missing_adapters.clear()
    clock.pass_(300.0)
    report = await look(state)
    assert (set(report.served_adapters), report.adapters_failed) == ({"sql", "tax"}, ())


async def test_a_changed_place_is_tried_at_once(double: EngineDouble, clock: Any) -> None:
    double.api.missing_adapters.add(SQL.path)
    state = sidecar(double, clock, SQL)
    await look(state)
    want(state, WantedAdapter(name="sql", path="/adapters/sql-2"))

    report = await look(state)
    assert (report.served_adapters, report.adapters_failed) == (("sql",), ())


async def test_an_engine_that_is_a_new_process_gets_them_again_before_it_takes_requests(clock: Any) -> None:
    async with EngineDouble() as first:
        state = sidecar(first, clock, SQL)
        await look(state)
        port = first.port
    await state.look_at_engine()
    async with EngineDouble(port=port) as second:
        await state.look_at_engine()
        assert state.why_not_ready() == "the engine's adapters are being loaded"
        await look(state)
        assert state.why_not_ready() is None
        assert second.api.adapters == {"sql": SQL.path}


async def test_an_engine_that_takes_none_says_so(clock: Any) -> None:
    async with EngineDouble(EngineSettings(runtime_lora=False)) as engine:
        report = await look(sidecar(engine, clock, SQL))

    assert report.adapters_failed[0][1].endswith("it was started without --enable-lora")


async def test_a_load_that_hangs_holds_up_no_look_and_ends_with_the_sidecar(
    double: EngineDouble, clock: Any
) -> None:
    double.faults.order(Fault(Wrong.HANG, path="/v1/load_lora_adapter"))
    state = sidecar(double, clock, SQL)
    async with asyncio.timeout(10):
        await state.look_at_engine()
        await state.look_at_engine()
        await state.close()

    assert state.report().health == "ready"


async def test_whoever_is_not_the_operator_loads_nothing_where_proofs_are_asked_for(
    double: EngineDouble, clock: Any
) -> None:
    trust = TrustedCallers(operators=("system:serviceaccount:t:operator",), gateways=(), peers=())
    state = sidecar(double, clock, SQL, trust=trust)
    await look(state)
    want(state, WantedAdapter(name="evil", path="/etc"))

    assert (await look(state)).served_adapters == ("sql",)
    proven = state.settings.model_copy(update={"adapters": (TAX,)})
    state.apply(proven, proven=True)
    assert (await look(state)).served_adapters == ("tax",)


def test_reports_of_two_releases_understand_each_other() -> None:
    report = LoadReport(pod="p", adapters_failed=(("sql", "why"),))

    assert LoadReport.decode(report.encode()) == report
    assert LoadReport.decode(b'{"pod": "p"}').adapters_failed == ()
