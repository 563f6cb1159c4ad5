"""The sidecar's view of its engine: health, load reports, refusals, drain, against a scripted engine."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tidepool_api.load import Health, LoadReport
from tidepool_api.routing import SidecarSettings
from tidepool_router.errors import NoPods, QueueFull
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.fleet import drain, feed, sidecar
from tidepool_router.fleet.engine_page import EngineFigures
from tidepool_router.fleet.sidecar import SidecarState
from tidepool_router.ledger import Outcome

FACTS = RequestFacts(api=Api.CHAT, path="/v1/chat/completions", model="tiny", max_tokens=50, prompt_bytes=400)
SETTINGS = SidecarSettings(pool="p", namespace="ns", model="tiny")


def page(running: int = 0, waiting: int = 0, tokens: int = 0, blocks: int = 100) -> tuple[int, bytes]:
    text = (
        f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"
        f"vllm:kv_cache_usage_perc 0.5\nvllm:generation_tokens_total {tokens}\n"
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1\n'
    )
    return 200, text.encode()


def models(*names: str) -> tuple[int, bytes]:
    return 200, json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()


def replace_bytes(prompt_bytes: int) -> RequestFacts:
    return msgspec.structs.replace(FACTS, prompt_bytes=prompt_bytes)


@pytest.fixture
def up(engine: Any) -> Any:
    engine.pages |= {"/health": (200, b""), "/v1/models": models("tiny"), "/metrics": page()}
    return engine


@pytest.fixture
def state(engine: Any, clock: Any) -> SidecarState:
    return SidecarState(engine.endpoint, SETTINGS, pod="pod-0", boot="boot", now=clock)


async def test_ready_when_the_engine_answers_and_serves_the_model(up: Any, state: SidecarState) -> None:
    assert state.health is Health.STARTING
    await state.look_at_engine()

    assert (state.health, state.why_not_started(), state.why_not_ready()) == (Health.READY, None, None)
    report = state.report()
    assert (report.pod, report.pool, report.model, report.kv_capacity_tokens, report.kv_usage) == (
        "pod-0",
        "ns/p",
        "tiny",
        1600,
        0.5,
    )
    assert report.settings == SETTINGS.digest()


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        ("/health", (503, b""), "answers /health with 503"),
        ("/v1/models", models("other"), "serves other, not tiny"),
        ("/v1/models", models(), "serves nothing, not tiny"),
        ("/v1/models", (200, b"<html>"), "no list"),
        ("/v1/models", (200, b"[]"), "no list"),
        ("/v1/models", (401, b"{}"), "with 401"),
    ],
)
async def test_why_it_has_not_started(
    up: Any, state: SidecarState, path: str, answer: tuple[int, bytes], reason: str
) -> None:
    up.pages[path] = answer
    await state.look_at_engine()

    assert state.health is Health.STARTING
    assert reason in (state.why_not_started() or "")
    with pytest.raises(NoPods, match=reason):
        state.open(FACTS, 0.0)


async def test_any_model_will_do_when_none_is_named(up: Any, engine: Any, clock: Any) -> None:
    state = SidecarState(engine.endpoint, SidecarSettings(pool="p"), pod="pod-0", boot="b", now=clock)
    up.pages["/v1/models"] = models("whatever")
    await state.look_at_engine()

    assert state.health is Health.READY
    assert state.report().model == "whatever"


async def test_a_process_that_is_gone_is_down_at_once_and_comes_back(up: Any, state: SidecarState) -> None:
    await state.look_at_engine()
    await up.stop()
    await state.look_at_engine()
    assert state.health is Health.DOWN

    await up.start()
    up.pages["/metrics"] = page(blocks=50)
    await state.look_at_engine()

    assert state.health is Health.READY
    assert state.report().kv_capacity_tokens == 800  # asked anew: the new one may be of another size


async def test_a_busy_engine_may_miss_two_probes(
    up: Any, state: SidecarState, monkeypatch: pytest.MonkeyPatch
) -> None:
    await state.look_at_engine()
    up.pages["/health"] = (500, b"")
    healths = []
    for _ in range(3):
        await state.look_at_engine()
        healths.append(state.health)

    assert healths == [Health.READY, Health.READY, Health.DOWN]


async def test_requests_move_the_report_and_leave_nothing(up: Any, state: SidecarState, clock: Any) -> None:
    await state.look_at_engine()
    entry = state.open(FACTS, clock())[0]
    report = state.report()
    assert (report.running, report.queued_tokens, report.held_tokens, report.expected_tokens) == (1, 100, 100, 50)

    entry.progress(10, clock())
    report = state.report()
    assert (report.queued_tokens, report.held_tokens, report.expected_tokens) == (0, 110, 40)

    entry.close(Outcome.OK, clock())
    report = state.report()
    assert (report.running, report.held_tokens, report.expected_tokens) == (0, 0, 0)
    assert (report.opened_total, report.closed_total) == (1, 1)


async def test_what_waits_in_the_engine_is_told_apart(up: Any, state: SidecarState, clock: Any) -> None:
    await state.look_at_engine()
    entries = [state.open(FACTS, clock())[0] for _ in range(5)]
    up.pages["/metrics"] = page(running=4, waiting=3)
    clock.pass_(3.0)
    await state.look_at_engine()
    assert (state.report().running, state.report().waiting) == (2, 3)

    for entry in entries[:3]:
        entry.first_token(clock())  # the gauge is old now: at most two of them can still wait

    assert (state.report().running, state.report().waiting) == (3, 2)


async def test_a_full_engine_refuses_by_the_queues_bound(up: Any, engine: Any, clock: Any) -> None:
    settings = SETTINGS.model_copy(
        update={"routing": SETTINGS.routing.model_validate({"queue": {"maxWaiting": 2}})}
    )
    state = SidecarState(engine.endpoint, settings, pod="pod-0", boot="b", now=clock)
    await state.look_at_engine()
    for _ in range(6):
        state.open(FACTS, clock())
    state.watch.figures = replace(state.watch.figures, waiting=2)

    with pytest.raises(QueueFull) as caught:
        state.open(FACTS, clock())

    assert caught.value.refusal.status == 429
    assert state.ledger.running == 6


async def test_no_tokens_for_a_minute_is_hung(up: Any, state: SidecarState, clock: Any) -> None:
    await state.look_at_engine()
    entry = state.open(FACTS, clock())[0]
    clock.pass_(62.0)
    assert state.health is Health.READY  # a prompt of 100 tokens may take a second, and three to be sure
    clock.pass_(4.0)
    await state.look_at_engine()
    assert state.health is Health.HUNG
    assert state.why_not_started() is None  # the kubelet must not take it for one that never started
    assert "no token for 66 s" in (state.why_not_ready() or "")
    with pytest.raises(NoPods):
        state.open(FACTS, clock())

    entry.progress(1, clock())
    assert state.health is Health.READY


@pytest.mark.parametrize(
    ("what", "health", "why"),
    [
        ("nothing", Health.HUNG, "nobody has seen it work: it must not draw the next requests at once"),
        ("works", Health.READY, "its counters move again"),
        ("restarts", Health.READY, "it is another process"),
        ("time", Health.READY, "it is given another try"),
    ],
)
async def test_a_hung_engine_whose_requests_left_stays_hung_until_it_works(
    up: Any, state: SidecarState, clock: Any, what: str, health: Health, why: str
) -> None:
    await state.look_at_engine()
    entry = state.open(FACTS, clock())[0]
    clock.pass_(66.0)
    await state.look_at_engine()
    entry.close(Outcome.CANCELLED, clock())
    clock.pass_(3.0)
    if what == "works":
        up.pages["/metrics"] = page(tokens=5)
    elif what == "restarts":
        await up.stop()
        await state.look_at_engine()
        await up.start()
    elif what == "time":
        clock.pass_(60.0)
    clock.pass_(15.0)
    await state.look_at_engine()

    assert state.health is health, why


async def test_a_long_answer_without_a_stream_is_not_hung(up: Any, state: SidecarState, clock: Any) -> None:
    """No token of it passes the sidecar for minutes; the engine's own counters say that it works."""
    await state.look_at_engine()
    state.open(FACTS, clock())
    for second in range(40):
        clock.pass_(3.0)
        up.pages["/metrics"] = page(running=1, tokens=second)
        await state.look_at_engine()
        assert state.health is Health.READY


async def test_one_long_prefill_is_not_hung(up: Any, state: SidecarState, clock: Any) -> None:
    """vLLM counts a prompt's tokens when it is done; until then only the use of its KV cache moves."""
    await state.look_at_engine()
    state.open(FACTS, clock())
    for second in range(100):
        clock.pass_(3.0)
        status, text = page(running=1)
        up.pages["/metrics"] = status, text.replace(b"perc 0.5", b"perc %.3f" % (second / 1000))
        await state.look_at_engine()
        assert state.health is Health.READY

    for _ in range(30):  # now it hangs: the gauge stays where it is
        clock.pass_(3.0)
        await state.look_at_engine()
    assert state.health is Health.HUNG


async def test_a_long_prompt_in_one_step_is_given_the_time_that_prompts_take_here(
    up: Any, state: SidecarState, clock: Any
) -> None:
    """Without chunked prefill nothing moves before the prompt is done."""
    await state.look_at_engine()
    for _ in range(30):  # 10 ms a prompt token
        entry = state.open(replace_bytes(4_000), clock())[0]
        entry.first_token(clock.pass_(10.0))
        entry.close(Outcome.OK, clock())

    state.open(replace_bytes(40_000), clock())  # 100 s
    clock.pass_(150.0)
    await state.look_at_engine()
    assert state.health is Health.READY

    clock.pass_(250.0)
    assert state.health is Health.HUNG


async def test_an_engine_that_hides_its_page_is_not_zero(up: Any, state: SidecarState, clock: Any) -> None:
    await state.look_at_engine()
    up.pages["/metrics"] = (500, b"")
    clock.pass_(60.0)
    await state.look_at_engine()

    assert state.report().kv_usage is None
    assert state.watch.figures == EngineFigures(kv_capacity_tokens=1600, kv_block_tokens=16, tokens_total=0.0)


async def test_figures_of_a_busy_engine_do_not_outlive_its_work(up: Any, state: SidecarState, clock: Any) -> None:
    await state.look_at_engine()
    entry = state.open(FACTS, clock())[0]
    up.pages["/metrics"] = page(running=1, waiting=0)
    clock.pass_(2.1)
    await state.look_at_engine()
    entry.close(Outcome.OK, clock())
    assert state.watch.figures.running == 1

    up.pages["/metrics"] = page()
    clock.pass_(2.1)
    await state.look_at_engine()

    assert state.watch.figures.running == 0


async def test_the_page_of_a_sidecar(up: Any, state: SidecarState, clock: Any) -> None:
    before = state.metrics.registry.render().decode()
    assert "\ntidepool_kv_usage_ratio " not in before  # unknown capacity is no zero
    await state.look_at_engine()
    state.open(FACTS, clock())[0].progress(60, clock())

    page_ = state.metrics.registry.render().decode()

    assert "\ntidepool_kv_usage_ratio 0.1\n" in page_  # (100 + 60) / 1600
    assert "\ntidepool_kv_tokens_capacity 1600\n" in page_
    assert "\ntidepool_engine_ready 1\n" in page_
    assert "\ntidepool_requests_running 1\n" in page_
    assert "\ntidepool_draining 0\n" in page_


async def test_a_long_prompt_is_told_before_another_gateway_chooses(
    up: Any, state: SidecarState, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "SPACING_SECONDS", 100.0)
    await state.look_at_engine()
    lines = state.feed.lines()
    await anext(lines)
    short = state.open(FACTS, clock())[0]
    assert LoadReport.decode(await anext(lines)).running == 1

    long = state.open(replace_bytes(4 * 600), clock())[0]
    told = LoadReport.decode(await asyncio.wait_for(anext(lines), 0.5))

    assert (told.running, told.queued_tokens >= 600) == (2, True)
    short.close(Outcome.OK, clock())
    long.close(Outcome.OK, clock())
    await lines.aclose()


async def test_draining_says_so_at_once_and_still_serves(up: Any, state: SidecarState, clock: Any) -> None:
    await state.look_at_engine()
    lines = state.feed.lines()
    assert LoadReport.decode(await anext(lines)).health is Health.READY
    entry = state.open(FACTS, clock())[0]
    draining = asyncio.create_task(state.drain())
    assert LoadReport.decode(await anext(lines)).health is Health.DRAINING
    assert state.why_not_ready() == "the pod is draining"

    late = state.open(FACTS, clock())[0]  # endpoint lists lag
    clock.pass_(100.0)
    await asyncio.sleep(drain._LOOK_SECONDS * 1.5)
    assert not draining.done()
    entry.close(Outcome.OK, clock())
    late.close(Outcome.OK, clock())
    again = asyncio.create_task(state.drain())  # SIGTERM after preStop: the same drain
    clock.pass_(2.1)

    await asyncio.wait_for(asyncio.gather(draining, again), 5)
    await lines.aclose()


async def test_a_drain_is_over_at_its_timeout(up: Any, state: SidecarState, clock: Any) -> None:
    await state.look_at_engine()
    state.open(FACTS, clock())
    draining = asyncio.create_task(state.drain())
    await asyncio.sleep(0)
    clock.pass_(300.0)

    await asyncio.wait_for(draining, 5)


async def test_settings_in_force_show_in_the_report(up: Any, state: SidecarState) -> None:
    new = SETTINGS.model_copy(update={"drain_timeout": "7s"})
    state.apply(new)

    assert state.report().settings == new.digest() != SETTINGS.digest()


async def test_reports_are_numbered_and_the_header_is_one(up: Any, state: SidecarState, clock: Any) -> None:
    await state.look_at_engine()
    header = state.load_header()
    assert state.load_header() is header  # within 10 ms
    clock.pass_(0.02)
    state.open(FACTS, clock())

    assert state.load_header().split(";")[:3] == ["boot", "2", "1"]
    assert state.report().seq == 3


async def test_the_probe_loop_goes_on_whatever_the_engine_does(
    up: Any, engine: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar, "_STARTING_PROBE_SECONDS", 0.005)
    monkeypatch.setattr(sidecar, "_PROBE_SECONDS", 0.005)
    await engine.stop()
    state = SidecarState(engine.endpoint, SETTINGS, pod="pod-0", boot="b")
    await state.start()
    await eventually(lambda: state.why_not_started() is not None and "does not answer" in state.why_not_started())
    await engine.start()
    await eventually(lambda: state.health is Health.READY)
    up.pages["/v1/models"] = (200, b"\xff")
    await eventually(lambda: state.health is Health.DOWN)
    up.pages["/v1/models"] = models("tiny")
    await eventually(lambda: state.health is Health.READY)
    await state.close()


async def test_a_report_tells_the_kind_of_accelerator(state: SidecarState) -> None:
    assert state.report().variant == ""
    state.variant = "l4"

    assert LoadReport.decode(state.report().encode()).variant == "l4"


async def test_a_report_tells_when_the_kv_cache_will_be_full_and_the_page_only_then(
    up: Any, state: SidecarState, clock: Any
) -> None:
    up.pages["/metrics"] = page(blocks=20)  # 320 tokens, 160 in use
    await state.look_at_engine()
    first, _ = state.open(FACTS, clock())  # 100 tokens, 50 to come
    calm = state.report()
    assert calm.kv_exhausted_seconds is None
    assert b"\ntidepool_kv_exhaustion_seconds " not in state.metrics.registry.render()

    state.open(FACTS, clock())
    full = state.report()
    assert full.kv_exhausted_seconds is not None
    assert 0.2 < full.kv_exhausted_seconds < 0.3  # 48 tokens of room, two a step of 10 ms
    assert b"\ntidepool_kv_exhaustion_seconds 0.2" in state.metrics.registry.render()

    first.close(Outcome.CANCELLED, clock.pass_(1.0))
    assert state.report().kv_exhausted_seconds is None


def test_a_forecast_that_moves_is_no_news_and_one_that_comes_or_goes_is() -> None:
    none, soon = LoadReport(), LoadReport(kv_exhausted_seconds=4.0)

    assert not sidecar._differs(soon, replace(soon, kv_exhausted_seconds=3.9))
    assert sidecar._differs(none, soon)
    assert sidecar._differs(soon, none)
