"""Who goes next: by priority, by tenant, by size and age; and that nobody starves."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripted.examples import examples
from tidepool_router.admission import Limits, Queue, Ticket
from tidepool_router.admission.line import AGE_SHARE
from tidepool_router.admission.queue import LOWER_SHARE

WORK = st.integers(1, 20_000)


def ticket(work: int = 100, priority: int = 0, tenant: str | None = None, offered_at: float = 0.0) -> Ticket:
    return Ticket(
        priority=priority,
        tenant=tenant,
        body_bytes=1,
        prompt_tokens=work,
        offered_at=offered_at,
        deadline=1e9,
    )


def queue_of(*tickets: Ticket) -> Queue[Ticket]:
    queue: Queue[Ticket] = Queue(Limits(100_000, 1 << 40))
    for one in tickets:
        assert queue.offer(one) is None
    return queue


def serve(queue: Queue[Ticket], now: float) -> Ticket:
    chosen = queue.next(now)
    assert chosen is not None
    queue.went(chosen)
    return chosen


def order(queue: Queue[Ticket], now: float = 0.0) -> Sequence[Ticket]:
    served = []
    while queue.held:
        served.append(serve(queue, now))
    return served


@pytest.mark.parametrize(
    ("longer", "seconds_before", "longer_first", "why"),
    [
        (4000, 0, False, "at the same age the short one is done soonest"),
        (4000, 30, False, "waited 31 times as long and is 40 times as long"),
        (4000, 50, True, "waited 51 times as long and is 40 times as long"),
        (90, 1, True, "of like sizes the older one"),
    ],
)
def test_waiting_is_weighed_by_work(longer: int, seconds_before: float, longer_first: bool, why: str) -> None:
    long, short = ticket(longer), ticket(100, offered_at=seconds_before)

    first = serve(queue_of(long, short), now=seconds_before + 1.0)

    assert (first is long) == longer_first, why


def test_equals_go_in_the_order_in_which_they_came() -> None:
    tickets = [ticket() for _ in range(20)]

    assert order(queue_of(*tickets)) == tickets


def test_a_higher_priority_goes_before_an_older_shorter_request() -> None:
    batch, urgent = ticket(1, priority=0), ticket(9000, priority=100, offered_at=50.0)

    assert order(queue_of(batch, urgent), now=51.0) == [urgent, batch]


@examples(15)  # a long wait each
@given(longs=WORK, shorts=st.lists(st.tuples(st.integers(1, 400), st.floats(0.0, 1.0)), min_size=1, max_size=40))
def test_a_long_request_gets_its_turn_however_many_short_ones_come(
    longs: int, shorts: list[tuple[int, float]]
) -> None:
    """Served before it: at most three quarters by ratio for each quarter by age, of which it is the first."""
    long = ticket(longs)
    queue = queue_of(long)
    now, before = 0.0, 0
    while True:
        work, pause = shorts[before % len(shorts)]
        now += pause
        for _ in range(2):  # more come than are served, for ever
            queue.offer(ticket(work, offered_at=now))
        served = serve(queue, now)
        if served is long:
            break
        before += served.work_tokens
        assert before <= longs * (1.0 - AGE_SHARE) / AGE_SHARE + 400


@given(ahead=st.lists(WORK, max_size=30), own=WORK, later=st.lists(WORK, min_size=1, max_size=20))
def test_nobody_waits_longer_than_four_times_first_come_first_served(
    ahead: list[int], own: int, later: list[int]
) -> None:
    mine = ticket(own)
    queue = queue_of(*[ticket(work) for work in ahead], mine)
    most = (sum(ahead) + own) / AGE_SHARE + max(ahead + later)
    served, step = 0, 0
    while (chosen := serve(queue, now=0.0)) is not mine:
        served += chosen.work_tokens
        assert served <= most
        queue.offer(ticket(later[step % len(later)]))
        step += 1


@examples(10)  # a long wait each
@given(low=WORK, high=st.lists(WORK, min_size=1, max_size=10))
def test_a_lower_priority_gets_its_part_however_many_higher_ones_come(low: int, high: list[int]) -> None:
    batch = ticket(low)
    queue = queue_of(batch)
    before, step = 0, 0
    while True:
        queue.offer(ticket(high[step % len(high)], priority=100))
        queue.offer(ticket(high[step % len(high)], priority=100))
        served = serve(queue, now=0.0)
        if served is batch:
            break
        before += served.work_tokens
        step += 1
        assert before <= low / LOWER_SHARE + max(high)

    assert before >= low / LOWER_SHARE - 1  # and no more than its part


@given(
    works=st.lists(st.tuples(st.sampled_from("abc"), WORK), min_size=30, max_size=200),
    steps=st.integers(1, 25),
)
def test_tenants_that_wait_all_the_time_are_served_alike(works: list[tuple[str, int]], steps: int) -> None:
    """The bound of start-time fair queueing with equal weights: one longest request each."""
    tickets = [ticket(work, tenant=tenant) for tenant, work in works]
    queue = queue_of(*tickets)
    left, given = Counter(tenant for tenant, _ in works), Counter[str | None]()
    backlogged = set(left)
    longest = {tenant: max(work for name, work in works if name == tenant) for tenant in backlogged}
    for _ in range(steps):
        served = serve(queue, now=0.0)
        tenant = str(served.tenant)
        given[tenant] += served.work_tokens
        left[tenant] -= 1
        if not left[tenant]:
            break
        for one in backlogged:
            for other in backlogged:
                assert given[one] - given[other] <= max(longest[one], longest[other])


def test_a_tenant_of_many_requests_does_not_crowd_out_one_of_few() -> None:
    flood = [ticket(tenant="flood") for _ in range(100)]
    quiet = [ticket(tenant="quiet") for _ in range(3)]

    served = order(queue_of(*flood, *quiet))

    assert {served.index(one) for one in quiet} == {1, 3, 5}


def test_nobody_saves_up_turns_while_away() -> None:
    queue = queue_of(ticket(tenant="away"), *[ticket(tenant="busy") for _ in range(60)])
    for _ in range(40):
        serve(queue, now=0.0)
    for _ in range(20):
        queue.offer(ticket(tenant="away"))

    served = [serve(queue, now=0.0).tenant for _ in range(10)]

    assert Counter(served) == {"away": 5, "busy": 5}


def test_a_tenant_pays_for_what_its_requests_took() -> None:
    """Estimated alike, one tenant's answers turn out nine times as long."""
    queue = queue_of(*[ticket(tenant=tenant) for tenant in ("long", "short") for _ in range(60)])
    for _ in range(40):
        served = serve(queue, now=0.0)
        queue.settle(served, 900 if served.tenant == "long" else 100)

    counted = Counter(t.tenant for t in order(queue))

    assert counted["long"] - counted["short"] > 25  # of 40 served, few were the long tenant's


def test_those_who_name_no_tenant_are_one() -> None:
    queue = queue_of(*[ticket() for _ in range(10)], *[ticket(tenant="acme") for _ in range(2)])

    assert [serve(queue, 0.0).tenant for _ in range(4)] == [None, "acme", None, "acme"]
