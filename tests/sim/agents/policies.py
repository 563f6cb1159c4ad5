"""The router's policy and those that it is held against."""

import heapq
from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import Any

from sim.agents.world import Ask, Policy, Pool
from tidepool_router.admission import Entrance, Limits, Ticket
from tidepool_router.workflow.core.choice import Offer, ranked
from tidepool_router.workflow.core.outlook import standing
from tidepool_router.workflow.core.profiles import OUTPUT_TOKENS, CallProfile, Profiles

# A guess at what a sequence has in the cache, for the time of a step.
_CONTEXT_TOKENS = 1500.0
# What each that waits adds, where the order is not ours and tells no more.
_GUESS_SECONDS = 0.3
_ENDLESS = Limits(10**9, 10**15)


class Fifo:
    """First come, first served."""

    def __init__(self) -> None:
        self._line: deque[Ask] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def push(self, ask: Ask, pool: Pool, profiles: Profiles, now: float) -> None:
        self._line.append(ask)

    def pop(self, now: float) -> Ask:
        return self._line.popleft()


class Shortest:
    """The request of the fewest tokens first, answers as predicted for its step."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Ask]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, ask: Ask, pool: Pool, profiles: Profiles, now: float) -> None:
        tokens = ask.stage.prompt_tokens + profile_of(ask, ask.pool, profiles).output.or_else(OUTPUT_TOKENS)
        heapq.heappush(self._heap, (tokens, next(self._numbers), ask))

    def pop(self, now: float) -> Ask:
        return heapq.heappop(self._heap)[2]


class _Waiting(Ticket):
    __slots__ = ("ask",)

    def __init__(self, ask: Ask, **more: Any) -> None:
        super().__init__(priority=0, body_bytes=0, deadline=float("inf"), **more)
        self.ask = ask


class ByRun:
    """The gateway's own queue, with what a run still needs."""

    def __init__(self) -> None:
        self.entrance: Entrance[_Waiting] = Entrance(_ENDLESS, "", "")

    def __len__(self) -> int:
        return self.entrance.queue.held

    def wait_seconds(self, run_tokens: int) -> float:
        """As the gateway foresees it."""
        ahead = self.entrance.queue.work_before(0, None, run_tokens)
        return (self.entrance.drain.seconds(ahead) or 0.0) if ahead else 0.0

    def push(self, ask: Ask, pool: Pool, profiles: Profiles, now: float) -> None:
        stand = standing(ask.run, ask.call, profiles, ask.waited_seconds, now)
        output = profile_of(ask, ask.pool, profiles).output.or_else(OUTPUT_TOKENS)
        ticket = _Waiting(
            ask,
            prompt_tokens=ask.stage.prompt_tokens,
            output_tokens=int(output),
            offered_at=now,
            run=(stand.tokens, stand.waited_seconds),
        )
        self.entrance.offer(ticket, now)

    def pop(self, now: float) -> Ask:
        ticket = self.entrance.queue.next(now)
        assert ticket is not None
        self.entrance.went(ticket, now)
        return ticket.ask


def profile_of(ask: Ask, pool: str, profiles: Profiles) -> CallProfile:
    return profiles.call(ask.run.plan.name, ask.call.key.step, pool)


class RoundRobin(Policy):
    """Models take turns, and gates first come, first served."""

    name = "FCFS, models in turn"
    make_queue: Any = Fifo

    def __init__(self) -> None:
        self._turn = 0

    def pool(self, ask: Ask, pools: Mapping[str, Pool], profiles: Profiles, now: float) -> str:
        self._turn += 1
        return list(pools)[self._turn % len(pools)]

    def queue(self) -> Any:
        return self.make_queue()


class ShortestFirst(RoundRobin):
    """Models take turns; the shortest request first."""

    name = "shortest request, models in turn"
    make_queue = Shortest


class Ours(Policy):
    """What the gateway does."""

    name = "Tidepool"

    def pool(self, ask: Ask, pools: Mapping[str, Pool], profiles: Profiles, now: float) -> str:
        stand = standing(ask.run, ask.call, profiles, ask.waited_seconds, now)
        offers = [_offer(ask, pool, profiles, stand.tokens) for pool in pools.values()]
        return ranked(offers, stand.slack_seconds, cheap=False)[0].pool

    def queue(self) -> Any:
        return ByRun()


class ShortestOnOurPools(Ours):
    """Pools chosen as ours, but the shortest request first: what the order alone is worth."""

    name = "Tidepool's pools, shortest request"

    def queue(self) -> Any:
        return Shortest()


class OursInTurn(RoundRobin):
    """Models take turns, gates by what runs still need: what the choice alone is worth."""

    name = "models in turn, Tidepool's order"
    make_queue = ByRun


def _offer(ask: Ask, pool: Pool, profiles: Profiles, run_tokens: int) -> Offer:
    """As router/tidepool_router/workflow/pools.py sees a pool."""
    engine, stage, time = pool.engine, ask.stage, pool.spec.step_time
    cached = engine.pool.match(stage.names, len(stage.names)) * engine.config.block_tokens
    running = max(1, pool.in_flight)
    step = time.decode(running, _CONTEXT_TOKENS * running)
    queue = pool.waiting
    wait = queue.wait_seconds(run_tokens) if isinstance(queue, ByRun) else len(queue) * _GUESS_SECONDS
    return Offer(
        pool.spec.name,
        pool.spec.quality,
        wait,
        stage.prompt_tokens - cached,
        profile_of(ask, pool.spec.name, profiles).output.or_else(OUTPUT_TOKENS),
        time.per_prefill_token_seconds,
        step,
    )
