"""What the engine of workflows costs: `make bench-workflow`.

Runs of eight steps at a given rate, their calls answered after a moment by nobody, so that what is measured is the
engine: plan, state, templates, journal on disk, events. Then a thousand runs at once, for their memory. On SQLite
and on PostgreSQL, each in a process of its own; the server's own processor time is not the gateway's.
"""

import asyncio
import gc
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fakes.postgres import postgres_server
from tidepool_api.routing import FleetWorkflow
from tidepool_router.workflow.core.states import Output
from tidepool_router.workflow.journal import Accepted
from tidepool_router.workflow.manager import Called, Workflows
from tidepool_router.workflow.rendering import Renderer
from tidepool_router.workflow.sql_journal import SqlJournal
from tidepool_router.workflow.steps import Done, Performer

STEPS_A_SECOND = 200.0
SECONDS = 15.0
AT_ONCE = 1000
CALL_SECONDS = 0.05
MESSAGES = [{"role": "user", "content": "Sum up: {{ input.text }}"}]


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
UNITS = 8


class Nobody(Performer):
    """Renders as ever, and calls nobody."""

    async def _llm(self, step: Any, llm: Any, call: Any, values: Any, about: Any, live: Any) -> Done:
        for message in llm.messages:
            await self.render(message.content, values, "messages")
        await asyncio.sleep(CALL_SECONDS)
        return Done(Output("x" * 800, {"go": True}, 100), 80, 20)


async def _run(workflows: Workflows, waits: list[float]) -> None:
    begun = time.perf_counter()
    driver = await workflows.begin(workflows.find("w"), Called({"text": "y" * 500}, background=True), {}, None)
    await driver.over()
    # Five steps in a row, each of which nobody answers in CALL_SECONDS.
    waits.append((time.perf_counter() - begun - 5 * CALL_SECONDS) / 5)
    assert driver.summary is not None
    assert driver.summary.verdict == "Succeeded", driver.summary


async def _at_rate(workflows: Workflows, seconds: float) -> dict[str, float]:
    waits: list[float] = []
    began, cpu = time.perf_counter(), time.process_time()
    tasks = []
    for number in range(int(STEPS_A_SECOND * seconds / UNITS)):
        await asyncio.sleep(max(0.0, began + number * UNITS / STEPS_A_SECOND - time.perf_counter()))
        tasks.append(asyncio.create_task(_run(workflows, waits)))
    await asyncio.gather(*tasks)
    steps = len(tasks) * UNITS
    waits.sort()
    return {
        "steps_a_second": steps / (time.perf_counter() - began),
        "cpu_ms_a_step": (time.process_time() - cpu) / steps * 1e3,
        "added_ms_a_step_p50": waits[len(waits) // 2] * 1e3,
        "added_ms_a_step_p99": waits[int(len(waits) * 0.99)] * 1e3,
    }


async def _at_once(workflows: Workflows) -> dict[str, float]:
    """Peak memory of the first thousand, and what two thousand more add to it."""
    peaks = []
    for _ in range(3):
        await asyncio.gather(*(_run(workflows, []) for _ in range(AT_ONCE)))
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
    nobody: Any = None
    journal = SqlJournal(place)
    workflows = Workflows(Nobody(nobody, nobody, Renderer(), nobody), journal, "bench")
    workflows.apply([FleetWorkflow(name="w", spec=SPEC)], ["p"])
    workflows.start()
    found = {"commit_alone_ms": await _commit_ms(journal)}
    found |= await _at_rate(workflows, seconds)
    found |= await _at_once(workflows)
    await workflows.close()
    return found


def _measured(place: str, seconds: float) -> dict[str, float]:
    return asyncio.run(measure(place, seconds))


def verdicts(found: dict[str, dict[str, float]]) -> list[str]:
    """Each target, held or missed."""
    lines = []
    for store, figures in found.items():
        beyond = figures["added_ms_a_step_p99"] - figures["commit_alone_ms"]
        for what, value, most in (
            ("ms of CPU a step", figures["cpu_ms_a_step"], 2.0),
            ("ms added a step at p99 beyond a commit", beyond, 10.0),
            ("MB with 1,000 runs at once", figures["peak_mb"], 300.0),
        ):
            held = "held" if value <= most else "MISSED"
            lines.append(f"{store}: {value:.2f} {what}, at most {most:g}: {held}")
    return lines


def markdown(found: dict[str, dict[str, float]]) -> str:
    """The section of docs/benchmarks.md."""
    names = list(next(iter(found.values())))
    lines = [
        "`make bench-workflow`; runs of eight steps, 200 steps a second, answers after 50 ms by nobody.",
        "",
        *(f"- {line}" for line in verdicts(found)),
        "",
        f"| figure | {' | '.join(found)} |",
        f"|---|{'---|' * len(found)}",
    ]
    lines += [
        f"| {name.replace('_', ' ')} | {' | '.join(f'{one[name]:.2f}' for one in found.values())} |"
        for name in names
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print them, and keep them under build/bench."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    processes = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, postgres_server(durable=True) as server:
        places = {"SQLite": f"sqlite:///{folder}/runs.db", "PostgreSQL": server.database()}
        found = {}
        for store, place in places.items():
            with processes.Pool(1) as alone:
                found[store] = alone.apply(_measured, (place, seconds))
    print(markdown(found))
    target = Path("build/bench/workflows.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
