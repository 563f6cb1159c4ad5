"""Gateways before engines: nobody is lost, faults are what they say, and the product's parts agree at the end."""

import asyncio
from collections.abc import Collection

import pytest

from sim.board import ScrapedBoard
from sim.candidates import BASELINES, CANDIDATES, PRODUCT
from sim.engine import Engine, EngineConfig
from sim.faults import DELAYED, FAILING, NONE, SLOW, Fault
from sim.ours import Clock, Gateway, Sidecars, product
from sim.picker import Board, Immediate
from sim.request import Request
from sim.score import estimate, quantile, score
from sim.steptime import StepTime
from sim.world import Hire, Life, Site, Staff, World, baseline
from tidepool_api.routing import Policy, Routing

pytestmark = pytest.mark.traffic  # load through a simulated pool, some fifty times

CONFIG = EngineConfig(StepTime(0.008, 0.0002, 7e-8, 5e-5, 1e-9), kv_tokens=64_000)


def arrivals(count: int = 60, gap: float = 0.05) -> list[tuple[float, Request]]:
    made = []
    for number in range(count):
        group = number % 5
        pieces = [group + 1, 1000 + 2 * number, 1001 + 2 * number]
        made.append((number * gap, Request(number, 1400, 30 + number % 7, pieces, opening=group)))
    return made


def play(hire: Hire, *, fault: Fault = NONE, gateways: int = 1, count: int = 60) -> tuple[World, list[Life]]:
    async def run() -> tuple[World, list[Life]]:
        world = World(arrivals(count), CONFIG, hire, pods=8, gateways=gateways, fault=fault, seed=1)
        return world, world.play()

    return asyncio.run(run())


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("fault", [NONE, DELAYED, SLOW], ids=lambda fault: fault.name)
def test_every_request_is_answered_once(name: str, fault: Fault) -> None:
    world, lives = play(CANDIDATES[name], fault=fault, gateways=2)
    assert len(lives) == 60
    for life in lives:
        assert life.first_at is not None
        assert life.ended_at is not None
        assert life.arrived_at < life.first_at <= life.ended_at
    assert sum(engine.counts.output_tokens for engine in world.engines) == sum(
        life.request.output_tokens for life in lives
    )
    assert all(engine.pool.used == 0 for engine in world.engines)


def test_a_sidecar_knows_how_much_its_engine_can_cache() -> None:
    """Else it reports work that there is not, or none where there is, to gateways that did not send it."""
    sidecars = Sidecars([Engine(CONFIG)], Clock(), Routing())
    sidecars.report(0, 0.0)  # it has looked at the engine
    cache = sidecars.states[0].cache
    requests = [request for _, request in arrivals(100)]
    for request in requests:
        cache.took_in(*cache.look(request.facts)[1:])

    assert cache.look(requests[-1].facts)[0].cached_tokens > 1000
    assert cache.look(requests[0].facts)[0].cached_tokens < 800  # its beginning, which others have too


@pytest.mark.parametrize("fault", [NONE, FAILING], ids=lambda fault: fault.name)
def test_the_product_ends_with_empty_books_at_gateways_and_sidecars(fault: Fault) -> None:
    hired: list[Staff] = []

    def hire(site: Site) -> Staff:
        hired.append(product(Policy.PREDICTED)(site))
        return hired[0]

    play(hire, gateways=2, fault=fault)
    doors, gateways = hired[0].doors, hired[0].pickers
    assert isinstance(doors, Sidecars)
    for state in doors.states:
        sums = state.ledger.sums()
        assert (sums.running, sums.queued_tokens, sums.held_tokens, sums.expected_tokens) == (0, 0, 0, 0)
        assert sums.late_calls_total == 0
    for gateway in gateways:
        assert isinstance(gateway, Gateway)
        assert gateway.pool.in_flight == 0
        assert all(pod.ledger.running == 0 for pod in gateway.pool.pods.values())
    assert sum(state.ledger.sums().closed_total for state in doors.states) == 60


def test_the_products_round_robin_and_the_baseline_are_the_same() -> None:
    _, ours = play(PRODUCT["RoundRobin"])
    _, baseline_ = play(BASELINES["round robin"])
    # A baseline begins at a pod that its seed says.
    assert [(life.pod + 1) % 8 for life in ours] == [life.pod for life in baseline_]
    assert [life.first_at for life in ours] == [life.first_at for life in baseline_]


class Stubborn(Immediate):
    """Sends everything to one pod, whatever failed there."""

    def __init__(self, pod: int) -> None:
        self._pod = pod
        self.asked: list[tuple[int, ...]] = []

    def pick(self, request: Request, now: float, exclude: Collection[int] = ()) -> int:
        self.asked.append(tuple(exclude))
        return self._pod


def test_a_failing_pod_costs_three_tries_and_is_told_to_the_picker() -> None:
    pickers: list[Stubborn] = []

    def make(pods: int, board: Board, seed: int) -> Stubborn:
        pickers.append(Stubborn(3))
        return pickers[-1]

    world, lives = play(baseline(make), fault=FAILING, count=1)
    assert lives[0].first_at is None
    assert pickers[0].asked == [(), (3,), (3, 3)]
    assert score(lives, world.engines, 0).failed == 1


def test_requests_leave_a_failing_pod_for_another() -> None:
    _, lives = play(BASELINES["round robin"], fault=FAILING)
    assert all(life.first_at is not None for life in lives)
    assert any(life.tries[0] == 3 for life in lives)
    assert all(life.pod != 3 for life in lives)


def test_the_product_stops_trying_a_failing_pod() -> None:
    _, lives = play(PRODUCT["LeastLoad"], fault=FAILING)
    assert all(life.first_at is not None for life in lives)
    tried = sum(life.tries[0] == 3 for life in lives)
    assert 0 < tried < 30


def test_a_slow_pod_takes_twice_as_long() -> None:
    def only(pod: int) -> Hire:
        return baseline(lambda pods, board, seed: Stubborn(pod))

    _, fast = play(only(0), fault=SLOW, count=1)
    _, slow = play(only(2), fault=SLOW, count=1)
    assert fast[0].ended_at is not None
    assert slow[0].ended_at == pytest.approx(2 * fast[0].ended_at)


def test_delayed_gauges_are_those_of_five_seconds_ago() -> None:
    engine = Engine(CONFIG)
    board = ScrapedBoard([engine], delay_seconds=5.0)
    from sim.engine import Sequence

    assert board.gauges(0.0)[0].waiting == 0
    engine.submit(Sequence("a", 10, 10, []), 1.0)
    seen = {second: board.gauges(float(second))[0].waiting for second in range(1, 9)}
    assert seen == {1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 1, 7: 1, 8: 1}


def test_a_scrape_is_shared_by_all_picks_within_its_interval() -> None:
    from sim.engine import Sequence

    engine = Engine(CONFIG)
    board = ScrapedBoard([engine], delay_seconds=0.0)
    board.gauges(10.001)
    engine.submit(Sequence("a", 10, 10, []), 10.01)
    assert board.gauges(10.049)[0].waiting == 0  # a burst within 50 ms sees the same page
    assert board.gauges(10.051)[0].waiting == 1


def test_quantiles_and_intervals_are_of_the_values() -> None:
    assert quantile([float(i) for i in range(1, 11)], 0.9) == 9.0
    assert quantile([1.0, float("inf")], 0.9) == float("inf")
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.low, found.median, found.high) == (1.0, 3.0, 5.0)
