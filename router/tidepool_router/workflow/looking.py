"""Runs for who only looks, the operator's console: all tenants', without a word of what steps heard or said."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from time import time
from typing import Any, Final

from pydantic import ValidationError

from tidepool_api import contract
from tidepool_api.workflow_run import AllTotals, RunEvent, RunList, RunStory, RunSummary, RunTotals
from tidepool_router.control import JSON, Response
from tidepool_router.errors import Refusal, Refused
from tidepool_router.workflow.journal import Summary
from tidepool_router.workflow.manager import Workflows
from tidepool_router.workflow.telling import past

_MOST_RUNS: Final = 50
_MOST_EVENTS: Final = 2000
_MOST_REASON_CHARACTERS: Final = 200
# What templates and models wrote stands in quotes.
_QUOTED: Final = re.compile(r"['\"].*", re.DOTALL)


async def looked(workflows: Workflows, path: str) -> Response | None:
    """The answer to a look at `path`; None where it is no such path. Raises Refused."""
    if path.startswith(contract.PATH_RUNS_OF + "/"):
        name = path.removeprefix(contract.PATH_RUNS_OF + "/")
        found = await workflows.runs(name, None, _MOST_RUNS)
        return _json(RunList(runs=tuple(_summary(one) for one in found)))
    if path.startswith(contract.PATH_RUNS_TOLD + "/"):
        return _json(await _story(workflows, path.removeprefix(contract.PATH_RUNS_TOLD + "/")))
    return None


async def totals_told(workflows: Workflows) -> Response:
    """Runs of every workflow that has some, counted. Raises Refused."""
    found = await workflows.totals()
    return _json(AllTotals(workflows=tuple(RunTotals.model_validate(asdict(one)) for one in found)))


async def _story(workflows: Workflows, run: str) -> RunStory:
    record = await workflows.record(run)
    if record is None:
        message = f"there is no run {run[:100]!r}; runs are kept for a day"
        raise Refused(Refusal(404, "invalid_request_error", "run_not_found", message))
    driver = workflows.active.get(run)
    events = driver.history if driver is not None else workflows.recent.get(run)
    if events is None:
        events = past(record.endings, time())
    endings = sorted(record.endings.items(), key=lambda one: (one[0].path, one[0].item or 0))
    return RunStory(
        summary=_summary(record.summary),
        deadline=record.run.deadline,
        moves=record.moves,
        steps=tuple(
            RunEvent(step=key.path, item=key.item, phase=ending.phase.value, tokens=ending.output.tokens)
            for key, ending in endings[:_MOST_EVENTS]
        ),
        events=tuple(_events(events))[:_MOST_EVENTS],
    )


def _events(events: Iterable[Mapping[str, Any]]) -> Iterable[RunEvent]:
    for event in events:
        if event.get("type") == "step":
            try:
                yield RunEvent.model_validate({**event, "reason": without_texts(str(event.get("reason") or ""))})
            except ValidationError:
                continue


def _summary(summary: Summary) -> RunSummary:
    return RunSummary(
        id=summary.id,
        workflow=summary.workflow,
        phase=summary.verdict.value,
        reason=without_texts(summary.reason),
        created=summary.created,
        ended=summary.ended,
        tokens=summary.tokens,
    )


def without_texts(reason: str) -> str:
    """A reason up to where it begins to quote."""
    return _QUOTED.sub("…", reason)[:_MOST_REASON_CHARACTERS]


def _json(found: AllTotals | RunList | RunStory) -> Response:
    return Response(200, found.model_dump_json(by_alias=True).encode("utf-8", "replace"), JSON)
