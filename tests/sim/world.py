"""Gateways before engines, in simulated time: one run of one load."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from .board import ScrapedBoard
from .engine import NEVER, Engine, EngineConfig
from .engine import Sequence as EngineSequence
from .faults import FAILS_AFTER_SECONDS, NONE, Fault
from .picker import Board, SimPicker
from .request import NAME_TOKENS, Request

# Tries after the first one, each on another pod: the product's default, and given to every baseline.
RETRIES: Final = 2
# How often a gateway looks after requests that it holds.
TICK_SECONDS: Final = 0.05


@dataclass(slots=True)
class Life:
    """What became of one request. Times in seconds; None: it did not come so far."""

    request: Request
    arrived_at: float
    first_at: float | None = None
    ended_at: float | None = None
    pod: int = -1
    tries: list[int] = field(default_factory=list)
    sequence: EngineSequence | None = None
    refused: bool = False
    gateway: int = 0


class Doors(Protocol):
    """What stands before the engines: nothing, or the product's sidecars."""

    def arrived(self, life: Life, now: float) -> bool:
        """A request reached its pod; True: to the engine with it, False: the door keeps it."""

    def first_token(self, life: Life, now: float) -> None:
        """The engine made its first token."""

    def ended(self, life: Life, now: float) -> None:
        """The engine is done with it."""

    def released(self, pod: int, now: float) -> list[Life]:
        """Requests that the door of this pod lets through now."""


class OpenDoors:
    """No sidecars."""

    def arrived(self, life: Life, now: float) -> bool:
        """Everybody goes in."""
        return True

    def first_token(self, life: Life, now: float) -> None:
        """Nobody looks."""

    def ended(self, life: Life, now: float) -> None:
        """Nobody looks."""

    def released(self, pod: int, now: float) -> list[Life]:
        """Nobody was kept."""
        return []


@dataclass(frozen=True, slots=True)
class Site:
    """What the maker of a picker is given: the engines of the run, their gauges and who is where."""

    engines: Sequence[Engine]
    board: Board
    lives: dict[int, Life]
    fault: Fault
    seed: int
    gateways: int


@dataclass(frozen=True, slots=True)
class Staff:
    """One picker a gateway, and the doors."""

    pickers: Sequence[SimPicker]
    doors: Doors


Hire = Callable[[Site], Staff]


def baseline(make: Callable[[int, Board, int], SimPicker]) -> Hire:
    """Pickers of a baseline, each with a state of its own."""

    def hire(site: Site) -> Staff:
        pickers = [make(len(site.engines), site.board, site.seed + i) for i in range(site.gateways)]
        return Staff(pickers, OpenDoors())

    return hire


class World:
    """One run. `play` may be called once."""

    def __init__(
        self,
        arrivals: Sequence[tuple[float, Request]],
        config: EngineConfig,
        hire: Hire,
        *,
        pods: int = 8,
        gateways: int = 1,
        fault: Fault = NONE,
        seed: int = 0,
    ) -> None:
        self.engines = [Engine(config, fault.slowness if pod in fault.slow else 1.0) for pod in range(pods)]
        self.lives: dict[int, Life] = {}
        self._arrivals = arrivals
        self._fault = fault
        self._dice = Random(seed)
        board = ScrapedBoard(self.engines, fault.delay_seconds)
        staff = hire(Site(self.engines, board, self.lives, fault, seed, gateways))
        self._pickers, self._doors = staff.pickers, staff.doors
        self._per_name = max(1, config.block_tokens // NAME_TOKENS)
        # (time, order, pod) of engine steps that end, stale where the engine's wake_at is another; pod -1: _later.
        self._events: list[tuple[float, int, int]] = []
        self._later: dict[int, Callable[[float], None]] = {}
        self._order = 0
        self._held = [0] * gateways
        self._tick_at = NEVER

    def play(self) -> list[Life]:
        """Every request to its end, in the order of their arrival."""
        arrivals = self._arrivals
        index, count = 0, len(arrivals)
        events = self._events
        while True:
            arrival = arrivals[index][0] if index < count else NEVER
            event = events[0][0] if events else NEVER
            if arrival <= event:
                if arrival == NEVER:
                    break
                self._arrive(arrivals[index][1], arrival)
                index += 1
                continue
            now, order, pod = heapq.heappop(events)
            if pod < 0:
                self._later.pop(order)(now)
            elif self.engines[pod].wake_at == now:
                self._step(pod, now)
        return list(self.lives.values())

    def _arrive(self, request: Request, now: float) -> None:
        gateway = self._dice.randrange(len(self._pickers)) if len(self._pickers) > 1 else 0
        life = Life(request, now, gateway=gateway)
        self.lives[request.number] = life
        self._place(life, now)

    def _place(self, life: Life, now: float) -> None:
        pod = self._pickers[life.gateway].pick(life.request, now, life.tries)
        if pod is None:
            self._held[life.gateway] += 1
            self._tick_soon(now)
        else:
            self._send(life, pod, now)

    def _send(self, life: Life, pod: int, now: float) -> None:
        life.pod = pod
        life.tries.append(pod)
        if pod in self._fault.failing:
            self._at(now + FAILS_AFTER_SECONDS, lambda at: self._fail(life, at))
        elif self._doors.arrived(life, now):
            self._enter(life, now)

    def _enter(self, life: Life, now: float) -> None:
        request = life.request
        per = self._per_name
        names = request.names if per == 1 else request.names[per - 1 :: per]
        sequence = EngineSequence(life, request.prompt_tokens, request.output_tokens, names)
        life.sequence = sequence
        engine = self.engines[life.pod]
        engine.submit(sequence, now)
        if engine.idle:
            engine.begin(now)
        self._wake(life.pod)

    def _step(self, pod: int, now: float) -> None:
        engine = self.engines[pod]
        first, done = engine.complete()
        for sequence in first:
            life: Life = sequence.request  # type: ignore[assignment]
            life.first_at = now
            self._doors.first_token(life, now)
            self._pickers[life.gateway].first_token(life.request, pod, now)
        for sequence in done:
            life = sequence.request  # type: ignore[assignment]
            life.ended_at = now
            self._doors.ended(life, now)
            self._pickers[life.gateway].ended(
                life.request, pod, now, failed=False, cached_tokens=sequence.cached_tokens
            )
        engine.begin(now)
        self._wake(pod)
        for life in self._doors.released(pod, now):
            self._enter(life, now)
        if done and self._tick_at < NEVER:
            self._look_after_held(now)

    def _fail(self, life: Life, now: float) -> None:
        picker = self._pickers[life.gateway]
        picker.ended(life.request, life.pod, now, failed=True, cached_tokens=0)
        if len(life.tries) > RETRIES:
            life.ended_at = now
        else:
            self._place(life, now)

    # Held requests.

    def _tick_soon(self, now: float) -> None:
        if self._tick_at == NEVER:
            self._tick_at = now + TICK_SECONDS
            self._at(self._tick_at, self._tick)

    def _tick(self, now: float) -> None:
        self._tick_at = NEVER
        self._look_after_held(now)
        if any(self._held):
            self._tick_soon(now)

    def _look_after_held(self, now: float) -> None:
        for gateway, picker in enumerate(self._pickers):
            if not self._held[gateway]:
                continue
            for request, pod in picker.released(now):
                self._held[gateway] -= 1
                self._send(self.lives[request.number], pod, now)
            for request in picker.refused(now):
                self._held[gateway] -= 1
                life = self.lives[request.number]
                life.refused, life.ended_at = True, now

    def _at(self, when: float, what: Callable[[float], None]) -> None:
        self._order += 1
        self._later[self._order] = what
        heapq.heappush(self._events, (when, self._order, -1))

    def _wake(self, pod: int) -> None:
        at = self.engines[pod].wake_at
        if at < NEVER:
            self._order += 1
            heapq.heappush(self._events, (at, self._order, pod))
