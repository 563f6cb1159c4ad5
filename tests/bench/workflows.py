"""What the engine of workflows costs: `make bench-workflow`; with `--minutes`, whether it grows (`make soak`).

Runs of eight steps at a given rate, their calls answered after a moment by nobody, so that what is measured is the
engine: plan, state, templates, journal on disk, events. Then a thousand runs at once, for their memory. On SQLite
and on PostgreSQL, each in a process of its own; the server's own processor time is not the gateway's.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes.postgres import postgres_server
from sim.steptime import least_squares
from tidepool_api.routing import FleetWorkflow
from tidepool_router.errors import Refused
from tidepool_router.workflow.core.states import Output
from tidepool_router.workflow.foretelling import LOOK_SECONDS, Foretelling
from tidepool_router.workflow.journal import Accepted
from tidepool_router.workflow.manager import Called, Workflows
from tidepool_router.workflow.rendering import Renderer
from tidepool_router.workflow.sql_journal import SqlJournal
from tidepool_router.workflow.steps import Done, Performer

from . import workflow_report

RESULTS = Path("build/bench")
STEPS_A_SECOND = 200.0
SECONDS = 15.0
AT_ONCE = 1000
CALL_SECONDS = 0.05
MESSAGES = [{"role": "user", "content": "Sum up: {{ input.text }}"}]
_SAMPLE_SECONDS = 5.0
_FORGET_SECONDS = 30.0
_AGAIN_SECONDS = 1.0


def _llm(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "llm": {"pools": [{"name": "p"}], "messages": MESSAGES}, **more}


SPEC = {
    "steps": [
        _llm("plan"),
        _llm("search", depends="plan", withItems=["a", "b", "c", "d"]),
        _llm("read", depends="search", when="{{ steps.plan.json.go }}"),
        _llm("check", depends="read"),
        _llm("write", depends="check"),
    ]
}
# Each step with what it waits for.
ROW = (("plan", None), ("search", "plan"), ("read", "search"), ("check", "read"), ("write", "check"))
UNITS = 8


@dataclass
class Times:
    """When calls began and were answered, by run and step, and when the store's commits did.

    `waits`: from what a step waited for to its call, and from the last answer of a run to its end.
    """

    begun: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    answered: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    commits: list[tuple[float, float]] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)

    def over(self, run: str, asked_at: float, over_at: float) -> None:
        """A run has ended."""
        for step, before in ROW:
            since = asked_at if before is None else max(self.answered[run, before])
            self.waits += [(since, call) for call in self.begun[run, step]]
        self.waits.append((max(self.answered[run, "write"]), over_at))
        for step, _ in ROW:
            del self.begun[run, step], self.answered[run, step]

    def figures(self) -> dict[str, float]:
        """Milliseconds that the engine adds to a step: all of them, and without those of the store's commits."""
        added = sorted(until - since for since, until in self.waits)
        beyond = sorted(until - since - self._committing(since, until) for since, until in self.waits)
        commits = sorted(end - begin for begin, end in self.commits)
        return {
            "commit_ms_p50": _at(commits, 0.5),
            "commit_ms_p99": _at(commits, 0.99),
            "added_ms_a_step_p50": _at(added, 0.5),
            "added_ms_a_step_p99": _at(added, 0.99),
            "beyond_commits_ms_p50": _at(beyond, 0.5),
            "beyond_commits_ms_p99": _at(beyond, 0.99),
        }

    def _committing(self, since: float, until: float) -> float:
        """Seconds between the two in which the store committed; it does one transaction at a time."""
        total = 0.0
        for begin, end in self.commits[max(0, bisect_left(self.commits, (since,)) - 1) :]:
            if begin >= until:
                break
            total += max(0.0, min(end, until) - max(begin, since))
        return total


def _at(values: Sequence[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))] * 1e3


@dataclass(frozen=True, slots=True)
class Nobody(Performer):
    """Renders as ever, and calls nobody."""

    times: Times = field(default_factory=Times)

    async def _llm(self, step: Any, llm: Any, call: Any, values: Any, about: Any, live: Any) -> Done:
        key = about.run, step.name
        self.times.begun.setdefault(key, []).append(time.perf_counter())
        for message in llm.messages:
            await self.render(message.content, values, "messages")
        await asyncio.sleep(CALL_SECONDS)
        self.times.answered.setdefault(key, []).append(time.perf_counter())
        return Done(Output("x" * 800, {"go": True}, 100), 80, 20)


def _timed(journal: SqlJournal, times: Times) -> None:
    """Write down when the store commits."""
    dialect: Any = journal._store.engine.dialect
    commit = dialect.do_commit

    def timed(connection: Any) -> None:
        began = time.perf_counter()
        commit(connection)
        times.commits.append((began, time.perf_counter()))

    dialect.do_commit = timed


def _workflows(journal: SqlJournal, times: Times) -> Workflows:
    nobody: Any = None
    workflows = Workflows(Nobody(nobody, nobody, Renderer(), nobody, times=times), journal, "bench")
    workflows.apply([FleetWorkflow(name="w", spec=SPEC)], ["p"])
    workflows.start()
    return workflows


class Lost(Exception):
    """The store of a run was away for longer than its lease; another gateway would go on with it."""


async def _run(workflows: Workflows, times: Times) -> None:
    begun = time.perf_counter()
    driver = await workflows.begin(workflows.find("w"), Called({"text": "y" * 500}, background=True), {}, None)
    await driver.over()
    if driver.lost:
        raise Lost(f"{driver.claim.run.id} was let go")
    times.over(driver.claim.run.id, begun, time.perf_counter())
    assert driver.summary is not None
    assert driver.summary.verdict == "Succeeded", driver.summary


async def _tell(workflows: Workflows) -> None:
    """Look at what comes as often as a gateway does whose operator listens."""
    foretelling = Foretelling(workflows.active)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        foretelling.coming()


async def _at_rate(workflows: Workflows, times: Times, seconds: float) -> dict[str, float]:
    telling = asyncio.create_task(_tell(workflows))
    began, cpu = time.perf_counter(), time.process_time()
    tasks = []
    for number in range(int(STEPS_A_SECOND * seconds / UNITS)):
        await asyncio.sleep(max(0.0, began + number * UNITS / STEPS_A_SECOND - time.perf_counter()))
        tasks.append(asyncio.create_task(_run(workflows, times)))
    await asyncio.gather(*tasks)
    telling.cancel()
    steps = len(tasks) * UNITS
    return {
        "steps_a_second": steps / (time.perf_counter() - began),
        "cpu_ms_a_step": (time.process_time() - cpu) / steps * 1e3,
        **times.figures(),
    }


async def _at_once(workflows: Workflows, times: Times) -> dict[str, float]:
    """Peak memory of the first thousand, and what two thousand more add to it."""
    peaks = []
    for _ in range(3):
        await asyncio.gather(*(_run(workflows, times) for _ in range(AT_ONCE)))
        times.waits.clear()
        times.commits.clear()
        gc.collect()
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return {"runs_at_once": AT_ONCE, "peak_mb": peaks[0], "growth_mb": peaks[-1] - peaks[0]}


async def _commit_ms(journal: SqlJournal) -> float:
    """The store's own: one run taken in at a time, median."""
    times = []
    for number in range(50):
        began = time.perf_counter()
        await journal.accept(Accepted(f"probe-{number}", "probe", {}, {}, 0.0, 0.0), "probe", 3600.0)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


async def measure(place: str, seconds: float) -> dict[str, float]:
    """All figures of one store."""
    journal, times = SqlJournal(place), Times()
    workflows = _workflows(journal, times)
    found = {"commit_alone_ms": await _commit_ms(journal)}
    _timed(journal, times)
    found |= await _at_rate(workflows, times, seconds)
    found |= await _at_once(workflows, times)
    await workflows.close()
    return found


async def grow(place: str, seconds: float) -> dict[str, float]:
    """A thousand runs at once for so long: how memory goes, from a quarter of the time on."""
    journal, times = SqlJournal(place), Times()
    workflows = _workflows(journal, times)
    began = time.monotonic()
    runs = 0
    samples: list[tuple[float, float]] = []

    async def worker() -> None:
        nonlocal runs
        while time.monotonic() < began + seconds:
            try:
                await _run(workflows, times)
            except (Refused, Lost):  # a busy machine's store: it is asked again, as clients do
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            times.waits.clear()
            runs += 1

    async def look() -> None:
        forgot = began
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            now = time.monotonic()
            samples.append((now - began, _resident_mb()))
            if now - forgot > _FORGET_SECONDS:  # a gateway does it after a day; here the disk would fill
                forgot = now
                await journal.forget(time.time() - _FORGET_SECONDS)

    looking = asyncio.create_task(look())
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    looking.cancel()
    await workflows.close()
    later = [(at, size) for at, size in samples if at > seconds / 4]
    _, slope = least_squares([((1.0, at / 60), size) for at, size in later]) if later else (0.0, 0.0)
    return {
        "minutes": seconds / 60,
        "runs": runs,
        "first_mb": later[0][1] if later else 0.0,
        "last_mb": later[-1][1] if later else 0.0,
        "mb_a_minute": slope,
    }


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _measured(what: str, place: str, seconds: float) -> dict[str, float]:
    return asyncio.run({"cost": measure, "growth": grow}[what](place, seconds))


@contextmanager
def _places() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory() as folder, postgres_server(durable=True) as server:
        yield {"SQLite": f"sqlite:///{folder}/runs.db", "PostgreSQL": server.database()}


def _each(what: str, seconds: float, at_once: int = 1) -> dict[str, dict[str, float]]:
    """Each store in a process of its own: one after the other, or so many at once."""
    with _places() as places, multiprocessing.get_context("spawn").Pool(at_once, maxtasksperchild=1) as alone:
        asked = {store: alone.apply_async(_measured, (what, place, seconds)) for store, place in places.items()}
        return {store: answer.get() for store, answer in asked.items()}


def main() -> None:
    """Print them, and keep them under build/bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="at the rate (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=0.0, help="of growth, and nothing else")
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if given.minutes:
        found = _each("growth", given.minutes * 60, at_once=len(os.sched_getaffinity(0)))
        print(workflow_report.growth(found))
        (RESULTS / "workflows-growth.json").write_text(json.dumps(found, indent=1))
        return
    found = _each("cost", given.seconds)
    print(workflow_report.cost(found))
    (RESULTS / "workflows.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
