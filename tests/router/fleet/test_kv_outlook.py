"""The sidecar's outlook on KV use, beside the engine double's scheduler and blocks, step by step."""

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.kv import block_keys
from fakes.scheduler import Scheduler, Sequence
from fakes.settings import EngineSettings, Pace
from tidepool_router.fleet.engine_page import EngineFigures
from tidepool_router.fleet.kv_outlook import KvOutlook
from tidepool_router.ledger import Entry, Estimate, KvForecast, Ledger, Outcome

_STEP_SECONDS = 0.03
_SCRAPE_SECONDS = 2.0
_BLOCK = 16


@dataclass
class Bench:
    """One engine, its ledger and the outlook; time passes by steps. `told`: when, the forecast, the last gauge."""

    blocks: int
    now: float = 0.0
    streams: bool = True
    told: list[tuple[float, KvForecast, float]] = field(default_factory=list)
    exhausted_at: float | None = None  # the first preemption

    def __post_init__(self) -> None:
        settings = EngineSettings(
            num_gpu_blocks=self.blocks, max_model_len=1024, pace=Pace.MANUAL, max_num_batched_tokens=8192
        )
        self.engine = Scheduler(settings)
        self.ledger = Ledger()
        self.watch: Any = SimpleNamespace(figures=EngineFigures())
        self.outlook = KvOutlook(self.watch)
        self.live: dict[Entry, Sequence] = {}
        self.scraped_at = float("-inf")

    def request(self, prompt: list[int], output: int, expected: int, cached: int = 0) -> Entry:
        sequence = Sequence(len(prompt), output, block_keys(prompt, _BLOCK, ""), lambda count, reason: None)
        beside = self.ledger.running
        entry = self.ledger.open(Estimate(len(prompt), expected, cached), self.now)
        self.outlook.opened(entry, None, beside, streams=self.streams)
        self.engine.add(sequence)
        self.live[entry] = sequence
        return entry

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end and self.live:
            self.step()

    def step(self) -> None:
        self.engine.commit(self.engine.plan())
        self.now += _STEP_SECONDS
        for entry, sequence in list(self.live.items()):
            over = sequence not in self.engine.running and sequence not in self.engine.waiting
            if self.streams and sequence.output:
                entry.progress(sequence.output, self.now)
            if over:
                entry.first_token(self.now)
                entry.usage(sequence.prompt_tokens, sequence.output, sequence.cached)
                entry.close(Outcome.OK, self.now)
                self.outlook.closed(entry, self.ledger.running, self.now)
                del self.live[entry]
        if self.engine.preemptions and self.exhausted_at is None:
            self.exhausted_at = self.now
        if self.now - self.scraped_at >= _SCRAPE_SECONDS:
            self.scraped_at = self.now
            self.watch.figures = EngineFigures(
                kv_usage=self.engine.kv.usage,
                kv_capacity_tokens=self.blocks * _BLOCK,
                kv_block_tokens=_BLOCK,
                waiting=len(self.engine.waiting),
            )
        sums = self.ledger.sums()
        forecast = self.outlook.forecast(sums.expected_tokens, sums.held_tokens - sums.shared_tokens, self.now)
        self.told.append((self.now, forecast, self.watch.figures.kv_usage or 0.0))

    def before(self, seconds: float) -> tuple[float, KvForecast, float]:
        """What was told so long before the exhaustion."""
        assert self.exhausted_at is not None
        at = self.exhausted_at - seconds
        return min(self.told, key=lambda told: abs(told[0] - at))


def load(bench: Bench, *, spread: float = 0.0) -> None:
    """Twenty prompts that share a beginning, outputs of 200 to 600 tokens, expected to within `spread`."""
    draw = random.Random(3)
    for number in range(30):  # short ones first: how long a step takes is learned from those that end
        bench.request([draw.randrange(1 << 30) for _ in range(20)], 12 + 2 * number, 12 + 2 * number)
    bench.run(60)
    beginning = [draw.randrange(1 << 30) for _ in range(160)]
    for number in range(20):
        output = draw.randrange(200, 600)
        prompt = beginning + [draw.randrange(1 << 30) for _ in range(draw.randrange(40, 120))]
        expected = round(output * (1 + spread * draw.uniform(-1, 1)))
        bench.request(prompt, output, expected, 0 if number == 0 else 160)
        bench.run(_STEP_SECONDS)  # by now the beginning is in the cache
    bench.run(60)


@pytest.mark.parametrize(
    ("streams", "spread", "tolerance"),
    [
        (True, 0.0, 0.15),
        (True, 0.3, 0.15),  # each estimate is off, and their sum is not
        (False, 0.0, 0.45),  # what is made is not seen before the end
    ],
    ids=["streams", "rough estimates", "whole answers"],
)
def test_it_tells_when_blocks_will_run_out_long_before_the_gauge_shows_it(
    streams: bool, spread: float, tolerance: float
) -> None:
    bench = Bench(330, streams=streams)
    load(bench, spread=spread)

    assert bench.exhausted_at is not None, "the load was to be too much"
    for seconds, gauge_at_most in ((1.0, 0.9), (2.0, 0.6), (3.5, 0.6)):
        _, forecast, gauge = bench.before(seconds)
        assert forecast.exhausted_seconds == pytest.approx(seconds, abs=0.2 + tolerance * seconds)
        assert gauge < gauge_at_most


def test_nothing_is_foreseen_where_ends_give_back_in_time() -> None:
    """What is held and what is expected are together more than there is, and yet it is never in use at once."""
    bench = Bench(400)
    load(bench)

    assert bench.exhausted_at is None
    assert max(forecast.peak_tokens for _, forecast, _ in bench.told) > 0.7 * 400 * _BLOCK
    assert [at for at, forecast, _ in bench.told if forecast.exhausted_seconds is not None] == []


def test_an_engine_that_does_not_tell_its_size_has_no_forecast() -> None:
    ledger, outlook = Ledger(), KvOutlook(SimpleNamespace(figures=EngineFigures()))  # type: ignore[arg-type]
    entry = ledger.open(Estimate(10_000, 10_000), 0.0)
    outlook.opened(entry, None, 0, streams=True)

    assert outlook.forecast(10_000, 10_000, 1.0) == KvForecast(None, 0)


def test_what_waits_at_the_sidecar_is_not_in_the_engine() -> None:
    watch: Any = SimpleNamespace(figures=EngineFigures())
    outlook = KvOutlook(watch)
    watch.figures = EngineFigures(kv_capacity_tokens=1000, kv_block_tokens=1)
    ledger = Ledger()
    running, waiting = ledger.open(Estimate(400, 300), 0.0), ledger.open(Estimate(400, 300), 0.0)
    ticket: Any = SimpleNamespace(sent=False)
    outlook.opened(running, None, 0, streams=True)
    outlook.opened(waiting, ticket, 1, streams=True)
    assert outlook.forecast(600, 800, 0.0) == KvForecast(None, 700)

    ticket.sent = True
    assert outlook.forecast(600, 800, 1.0).exhausted_seconds is not None
