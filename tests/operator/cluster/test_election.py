"""The Lease's rules, and the real Lease."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pools.live import Live, eventually
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.election import DURATION_SECONDS, RENEW_DEADLINE_SECONDS, Election, Record, Step
from tidepool_operator.cluster.kinds import CONFIG_MAP, LEASE, Object
from tidepool_operator.cluster.lease import Lease
from tidepool_operator.errors import NotFound, NotLeader

THEIRS = Record(holder="other", version="1")


@pytest.mark.parametrize(
    ("record", "now", "expected", "why"),
    [
        (None, 0.0, Step.CREATE, "there is no Lease"),
        (THEIRS, 0.0, Step.WAIT, "somebody holds it"),
        (THEIRS, DURATION_SECONDS - 0.1, Step.WAIT, "not seen long enough to be over"),
        (THEIRS, DURATION_SECONDS, Step.TAKE, "unchanged for its whole duration"),
        (Record(holder="", version="1"), 0.0, Step.TAKE, "released"),
        (Record(holder="me", version="1"), 50.0, Step.RENEW, "ours"),
    ],
)
def test_step(record: Record | None, now: float, expected: Step, why: str) -> None:
    assert Election("me").observed(record, 0.0).step(now) is expected, why


def test_a_holder_that_renews_is_never_outwaited() -> None:
    state = Election("me")
    for turn in range(100):
        state = state.observed(Record(holder="other", version=str(turn)), turn * 9.0)

        assert state.step(turn * 9.0) is Step.WAIT


def test_leadership_ends_before_another_may_take_it() -> None:
    state = Election("me").renewed(Record(holder="me", version="1"), started_at=100.0)

    assert state.leads(100.0 + RENEW_DEADLINE_SECONDS - 0.1)
    assert not state.leads(100.0 + RENEW_DEADLINE_SECONDS)
    assert RENEW_DEADLINE_SECONDS < DURATION_SECONDS


def test_somebody_elses_record_ends_leadership_at_once() -> None:
    state = Election("me").renewed(Record(holder="me", version="1"), 0.0).observed(THEIRS, 1.0)

    assert not state.leads(1.0)


@given(
    looks=st.lists(st.tuples(st.sampled_from([0, 1]), st.floats(0.1, 6.0)), max_size=60),
    skews=st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)),
)
def test_two_candidates_never_lead_at_once(looks: list[tuple[int, float]], skews: tuple[float, float]) -> None:
    """Each looks when it will, on a clock of its own; a write succeeds only on the version that was read."""
    candidates = [Election("zero"), Election("one")]
    stored: Record | None = None
    now = 0.0
    for turn, (index, pause) in enumerate(looks):
        now += pause
        local = now + skews[index]
        state = candidates[index].observed(stored, local)
        if state.step(local) is not Step.WAIT:
            stored = Record(holder=state.me, version=str(turn))
            state = state.renewed(stored, local)
        candidates[index] = state

        assert sum(state.leads(now + skew) for state, skew in zip(candidates, skews, strict=True)) <= 1


async def forever() -> None:
    await asyncio.Event().wait()


class Leases:
    """An API server that has one Lease, and takes everything."""

    def __init__(self) -> None:
        self.version = 0

    async def get(self, *_: Any) -> Object:
        raise NotFound("none yet")

    async def create(self, _kind: Any, _namespace: str, item: Object) -> Object:
        return self._stored(item)

    async def patch(self, _kind: Any, _namespace: str, _name: str, change: Object) -> Object:
        return self._stored(change)

    def _stored(self, item: Object) -> Object:
        self.version += 1
        return {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}


@pytest.mark.parametrize(("error", "ends"), [(NotLeader("fenced"), False), (KeyError("a defect"), True)])
async def test_a_write_that_the_fence_stopped_ends_leadership_and_a_defect_the_process(
    error: Exception, ends: bool
) -> None:
    led = asyncio.Event()

    async def fail() -> None:
        led.set()
        raise error

    async def lead() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    api: Any = Leases()
    running = asyncio.create_task(Lease(api, "ns", "lease", "me").run(lead))
    await asyncio.wait_for(led.wait(), 10)
    await asyncio.wait([running], timeout=10 if ends else 0.1)

    assert running.done() is ends
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.apiserver
async def test_a_released_lease_is_taken_over_and_the_fence_follows(live: Live) -> None:
    leases = [Lease(live.api, live.namespace, "test", name) for name in ("one", "two")]
    tasks = [asyncio.create_task(leases[0].run(forever))]

    async def leads(index: int) -> bool:
        return leases[index].leads

    await eventually(lambda: leads(0), "the first leads")
    tasks.append(asyncio.create_task(leases[1].run(forever)))
    with pytest.raises(NotLeader):
        leases[1].fence()
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    await eventually(lambda: leads(1), "the second leads", 30)
    with pytest.raises(NotLeader):
        leases[0].fence()
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)


@pytest.mark.apiserver
async def test_a_lost_lease_stops_the_work_and_every_write(live: Live) -> None:
    lease = Lease(live.api, live.namespace, "test", "one")
    stopped = asyncio.Event()

    async def work() -> None:
        try:
            await forever()
        finally:
            stopped.set()

    running = asyncio.create_task(lease.run(work))

    async def leads() -> bool:
        return lease.leads

    await eventually(leads, "it leads")
    await live.edit(LEASE, "test", {"spec": {"holderIdentity": "thief"}})
    await asyncio.wait_for(stopped.wait(), 60)
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": live.namespace}}
    with pytest.raises(NotLeader):
        await Api(live.client, lease.fence).apply(item)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert await live.get(CONFIG_MAP, "x") is None
