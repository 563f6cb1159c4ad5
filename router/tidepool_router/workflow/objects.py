"""Runs of AgentWorkflowRuns: what the operator asks of a gateway, on the control port.

Level by level: the operator says that a run is to be there, as often as it likes and to whichever gateway, and
hears how it stands. The object's uid is the run's name, so there is one run of one object.
"""

import json
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from tidepool_api import contract
from tidepool_api.workflow_run import (
    MOST_OUTPUT_CHARACTERS,
    MOST_REASON_CHARACTERS,
    OpenRun,
    OpenRuns,
    RunOrder,
    RunPhase,
    RunReport,
)
from tidepool_router.control import JSON, Response
from tidepool_router.errors import Refusal, Refused
from tidepool_router.workflow.journal import Record, Taken
from tidepool_router.workflow.looking import looked, totals_told
from tidepool_router.workflow.manager import Called, Workflows

_PREFIX: Final = "object-"
_MOST_UID_CHARACTERS: Final = 57  # beside the prefix in the journal's 64
_MOST_OPEN: Final = 10_000


class RunObjects:
    """Handler below PATH_RUNS."""

    def __init__(self, workflows: Workflows, *, keeps: bool) -> None:
        self._workflows = workflows
        self._keeps = keeps

    async def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Handler."""
        del headers
        if method == "GET":
            try:
                if (answer := await looked(self._workflows, path)) is not None:
                    return answer
            except Refused as refused:
                return _refusal(refused.refusal)
        uid = path.removeprefix(contract.PATH_RUNS).strip("/")
        if not self._keeps:
            message = "this gateway keeps no runs; give it a store (gateway.workflows of the chart)"
            return _refusal(Refusal(501, "invalid_request_error", "no_store", message))
        if len(uid) > _MOST_UID_CHARACTERS:
            return _refusal(Refusal(400, "invalid_request_error", "invalid_uid", "that is no uid"))
        try:
            return await self._handle(method, path, uid, body)
        except Refused as refused:
            return _refusal(refused.refusal)

    async def _handle(self, method: str, path: str, uid: str, body: bytes) -> Response:
        if (method, path) == ("GET", contract.PATH_RUNS_TOTALS):
            return await totals_told(self._workflows)
        match method, bool(uid):
            case "GET", False:
                found = await self._workflows.open_runs(_PREFIX, _MOST_OPEN)
                runs = tuple(
                    OpenRun(uid=run.removeprefix(_PREFIX), namespace=workflow.rpartition("/")[0])
                    for run, workflow in found
                )
                return _json(200, OpenRuns(runs=runs).model_dump_json(by_alias=True))
            case "PUT", True:
                report = await self._put(_PREFIX + uid, _order(body))
                return _json(200, report.model_dump_json(by_alias=True))
            case "DELETE", True:
                await self._workflows.cancel(_PREFIX + uid, "its AgentWorkflowRun was deleted or cancelled")
                return Response(204)
        message = f"{method} is not for {path[:200]}"
        raise Refused(Refusal(405, "invalid_request_error", "unknown_path", message))

    async def _put(self, run: str, order: RunOrder) -> RunReport:
        record = await self._workflows.record(run)
        if record is None and order.begun:
            message = "the run is not kept any more, so how it ended is not known; runs are kept for a day"
            raise Refused(Refusal(410, "invalid_request_error", "run_forgotten", message))
        if record is None:
            known = self._workflows.find(f"{order.namespace}/{order.workflow}")
            # A tenant for each namespace; a key of that tenant sees these runs.
            caller = {contract.HEADER_TENANT: f"kubernetes/{order.namespace}"}
            given = {} if order.input is None else order.input
            try:
                driver = await self._workflows.begin(known, Called(given, background=True, run=run), caller, None)
            except Taken:
                record = await self._workflows.record(run)
            else:
                return RunReport(run=run, phase=RunPhase.RUNNING, created=driver.claim.run.created)
        if record is None:
            message = "the run is being taken in; ask again in a moment"
            raise Refused(Refusal(503, "service_unavailable", "run_beginning", message, 1.0))
        return report(record)


def report(record: Record) -> RunReport:
    """A run as its object may hold it."""
    summary, output = record.summary, record.output
    return RunReport(
        run=summary.id,
        phase=RunPhase(summary.verdict.value),
        reason=_sound(summary.reason[:MOST_REASON_CHARACTERS]),
        created=summary.created,
        ended=summary.ended,
        tokens=summary.tokens or sum(ending.output.tokens for ending in record.endings.values()),
        steps=len(record.endings),
        output=None if output is None else _sound(output[:MOST_OUTPUT_CHARACTERS]),
        output_cut=output is not None and len(output) > MOST_OUTPUT_CHARACTERS,
    )


def _sound(text: str) -> str:
    """Without halves of surrogate pairs, which no object can hold."""
    return text.encode("utf-8", "replace").decode()


def _order(body: bytes) -> RunOrder:
    try:
        return RunOrder.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}"
        raise Refused(Refusal(400, "invalid_request_error", "invalid_order", message)) from error


def _refusal(refusal: Refusal) -> Response:
    told = {"code": refusal.code, "message": refusal.message}
    return _json(refusal.status, json.dumps({"error": told}, ensure_ascii=False))


def _json(status: int, text: str) -> Response:
    return Response(status, text.encode("utf-8", "replace"), JSON)
