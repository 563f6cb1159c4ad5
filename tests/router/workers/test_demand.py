"""What several workers hold and count, as the operator hears it of one gateway."""

from hypothesis import given
from hypothesis import strategies as st

from tidepool_api.load import GatewayReport, PoolDemand
from tidepool_router.workers.demand import Demand


def report(boot: str, issued: float | None = 7.0, **pools: PoolDemand) -> GatewayReport:
    return GatewayReport(gateway="w", boot=boot, seq=1, fleet_issued_at=issued, pools=pools)


def test_what_is_held_adds_up_and_the_oldest_is_the_oldest() -> None:
    demand = Demand("gw", "b", 2)
    demand.heard(0, report("x", p=PoolDemand(1, 10, 100, 3.0, 2, 5, 8, 4)))
    demand.heard(1, report("y", p=PoolDemand(2, 20, 200, 1.0, 3, 6, 9, 5), q=PoolDemand(held=1)))

    assert demand.report() == GatewayReport(
        "gw", "b", 1, 7.0, {"p": PoolDemand(3, 30, 300, 3.0, 5, 11, 17, 9), "q": PoolDemand(held=1)}
    )
    assert demand.report().seq == 2


def test_a_fleet_counts_as_known_when_every_worker_has_it() -> None:
    demand = Demand("gw", "b", 2)
    heard = []
    for worker, issued in ((0, 7.0), (1, None), (1, 6.0), (1, 7.0)):
        demand.heard(worker, report(str(worker), issued))
        heard.append(demand.report().fleet_issued_at)
    demand.left(0)

    assert heard == [None, None, 6.0, 7.0]
    assert demand.report().fleet_issued_at is None  # the one that starts again is to get it


def test_pools_that_are_gone_are_forgotten() -> None:
    demand = Demand("gw", "b", 1)
    demand.heard(0, report("x", p=PoolDemand(arrived_total=3)))
    demand.left(0)
    demand.heard(0, report("y", q=PoolDemand()))

    assert set(demand.report().pools) == {"q"}
    assert not demand._past


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("rs.")), max_size=40))
def test_counters_never_fall_however_workers_come_and_go(steps: list[tuple[int, str]]) -> None:
    """`r`: the worker counts a request; `s`: it is replaced by a new one; `.`: it ends."""
    demand = Demand("gw", "b", 3)
    counted, boots = [0, 0, 0], [0, 0, 0]
    total = seen = 0
    for worker, step in steps:
        if step == ".":
            demand.left(worker)
            counted[worker], boots[worker] = 0, boots[worker] + 1
        elif step == "s":
            counted[worker], boots[worker] = 0, boots[worker] + 1
        else:
            counted[worker] += 1
            total += 1
            demand.heard(worker, report(f"{worker}-{boots[worker]}", p=PoolDemand(arrived_total=counted[worker])))
        pools = demand.report().pools
        if "p" in pools:  # known while any worker lives
            assert pools["p"].arrived_total == total
            assert total >= seen
            seen = total
