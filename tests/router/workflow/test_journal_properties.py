"""The journal against a model of it: whatever gateways do in any order, only the owner's first word counts."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scripted.examples import examples
from tidepool_router.workflow.core.states import Ending, Key, Output, Phase, Verdict
from tidepool_router.workflow.journal import Accepted, Fenced, Summary, Taken
from tidepool_router.workflow.sql_journal import MEMORY, SqlJournal

LEASE_SECONDS = 10.0
RUNS, OWNERS, STEPS = ("r1", "r2", "r3"), ("a", "b", "c"), ("x", "y")

ACTS = st.one_of(
    st.tuples(st.just("accept"), st.sampled_from(RUNS), st.sampled_from(OWNERS)),
    st.tuples(st.just("claim"), st.sampled_from(OWNERS), st.integers(1, 2)),
    st.tuples(st.just("renew"), st.sampled_from(OWNERS), st.sets(st.sampled_from(RUNS))),
    st.tuples(st.just("commit"), st.sampled_from(RUNS), st.integers(1, 3), st.sampled_from(STEPS)),
    st.tuples(st.just("finish"), st.sampled_from(RUNS), st.integers(1, 3)),
    st.tuples(st.just("release"), st.sampled_from(OWNERS)),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 6.0, 11.0])),
)


@dataclass
class Known:
    """What the model has of a run."""

    owner: str
    created: float
    lease_until: float
    fence: int = 1
    ended: float | None = None
    endings: dict[Key, Ending] = field(default_factory=dict)


class Model:
    """What the journal is to do; refusals are told by their type."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.runs: dict[str, Known] = {}

    def accept(self, run: str, owner: str) -> Any:
        if run in self.runs:
            return Taken
        self.runs[run] = Known(owner, self.now, self.now + LEASE_SECONDS)
        return 1

    def claim(self, owner: str, most: int) -> Any:
        due = [name for name, run in self.runs.items() if run.ended is None and run.lease_until < self.now]
        taken = sorted(due, key=lambda name: self.runs[name].created)[:most]
        for name in taken:
            run = self.runs[name]
            run.owner, run.lease_until, run.fence = owner, self.now + LEASE_SECONDS, run.fence + 1
        return [(name, self.runs[name].fence, dict(self.runs[name].endings)) for name in taken]

    def renew(self, owner: str, names: set[str]) -> Any:
        own = {name for name in names & self.runs.keys() if self._is(name, owner)}
        for name in own:
            self.runs[name].lease_until = self.now + LEASE_SECONDS
        return own

    def release(self, owner: str) -> None:
        for name, run in self.runs.items():
            if self._is(name, owner):
                run.lease_until = 0.0

    def commit(self, name: str, fence: int, key: Key, ending: Ending) -> Any:
        run = self.runs.get(name)
        if run is None or run.fence != fence or run.ended is not None:
            return Fenced
        run.endings.setdefault(key, ending)
        return None

    def finish(self, name: str, fence: int) -> Any:
        run = self.runs.get(name)
        if run is None or run.fence != fence or (run.ended is not None and run.ended != self.now):
            return Fenced
        run.ended = self.now
        return None

    def _is(self, name: str, owner: str) -> bool:
        return self.runs[name].owner == owner and self.runs[name].ended is None


async def _done(work: Any) -> Any:
    try:
        return await work
    except (Fenced, Taken) as refused:
        return type(refused)


async def _hold(acts: list[tuple[Any, ...]]) -> None:
    model = Model()
    journal = SqlJournal(MEMORY, lambda: model.now)
    for number, (what, *rest) in enumerate(acts):
        model.now += 0.001  # so that no two runs are created at once
        match what:
            case "wait":
                model.now += rest[0]
            case "accept":
                run = Accepted(rest[0], "w", {}, {}, model.now, 0.0)
                assert await _done(journal.accept(run, rest[1], LEASE_SECONDS)) == model.accept(*rest)
            case "claim":
                found = await journal.claim(rest[0], LEASE_SECONDS, rest[1])
                assert [(one.run.id, one.fence, one.endings) for one in found] == model.claim(*rest)
            case "renew":
                assert await journal.renew(rest[0], rest[1], LEASE_SECONDS) == model.renew(*rest)
            case "release":
                await journal.release(rest[0])
                model.release(rest[0])
            case "commit":
                key, ending = Key(rest[2]), Ending(Phase.SUCCEEDED, "", Output(str(number)))
                told = await _done(journal.commit(rest[0], rest[1], key, ending))
                assert told == model.commit(rest[0], rest[1], key, ending)
            case "finish":
                end = Summary(rest[0], "w", 0.0, Verdict.SUCCEEDED, "", model.now)
                assert await _done(journal.finish(rest[0], rest[1], end, None)) == model.finish(*rest)
    await journal.close()


@examples(15)
@given(st.lists(ACTS, max_size=40))
def test_only_the_owners_first_word_counts(acts: list[tuple[Any, ...]]) -> None:
    asyncio.run(_hold(acts))
