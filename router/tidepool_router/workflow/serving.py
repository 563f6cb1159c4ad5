"""Workflows over HTTP: as a chat model, and as runs in the background."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final
from urllib.parse import unquote

from tidepool_api import contract
from tidepool_api.workflow import MODEL_PREFIX
from tidepool_router.control import JSON, Response, StreamResponse
from tidepool_router.errors import Refusal, Refused
from tidepool_router.keys import Grant
from tidepool_router.proxy.keyed import require_model
from tidepool_router.workflow.core.states import Key, Verdict
from tidepool_router.workflow.driver import Driver
from tidepool_router.workflow.journal import Record, Summary, Taken
from tidepool_router.workflow.manager import Called, Known, Workflows
from tidepool_router.workflow.models import MAY_LOWER
from tidepool_router.workflow.telling import past

PREFIX: Final = "/v1/workflows"
CHAT: Final = "/v1/chat/completions"
_EVENTS: Final = "text/event-stream"
_PASSED_ON: Final = (contract.HEADER_PRIORITY, contract.HEADER_TENANT)
# As other requests': what a client sends must fit a column of the store.
_LONGEST: Final = 128
_TRACE: Final = "traceparent"
_MOST_LISTED: Final = 100
_KEY: Final = "idempotency-key"
_MOST_KEY_CHARACTERS: Final = 255
# How often the journal is looked at for who follows a run that another gateway drives.
_LOOK_SECONDS: Final = 1.0


class Serving:
    """Handler of one request that speaks of workflows. `grant`: the key's, None where the gateway has none.

    A run belongs to the tenant of the key that began it, and is nobody else's to see.
    """

    def __init__(self, workflows: Workflows, grant: Grant | None, *, keeps: bool) -> None:
        self._workflows = workflows
        self._grant = grant
        self._keeps = keeps  # runs survive this process

    async def handle(  # noqa: C901, PLR0911 - one path each
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Response | StreamResponse:
        """Handler."""
        caller = self._caller(headers)
        if path == CHAT:
            return await self._chat(_object(body), caller)
        parts = [unquote(part) for part in path.removeprefix(PREFIX).split("/") if part]
        if not parts and method == "GET":
            return _json(200, {"object": "list", "data": self._list()})
        if parts and self._grant is not None:
            require_model(self._grant, MODEL_PREFIX + parts[0])
        match method, parts:
            case "GET", [name]:
                return _json(200, _shape(self._workflows.find(name)))
            case "POST", [name, "runs"]:
                return await self._begin(name, _object(body), caller, headers.get(_KEY))
            case "GET", [name, "runs"]:
                found = await self._workflows.runs(self._workflows.find(name).name, self._tenant, _MOST_LISTED)
                return _json(200, {"object": "list", "data": [_summary(one) for one in found]})
            case "GET", [name, "runs", run]:
                record = await self._record(name, run)
                differs = await self._workflows.differences(record)
                return _json(200, _state(record, self._workflows.active.get(run), differs))
            case "GET", [name, "runs", run, "events"]:
                return await self._events(name, run)
            case ("POST", [name, "runs", run, "cancel"]) | ("DELETE", [name, "runs", run]):
                return await self._cancel(name, run)
            case "POST", [name, "runs", run, "replay"]:
                return await self._replay(name, run, caller)
        message = f"{method} {path[:200]} is not served here; runs are at {PREFIX}/NAME/runs"
        raise Refused(Refusal(404, "invalid_request_error", "unknown_path", message))

    @property
    def _tenant(self) -> str | None:
        return None if self._grant is None else self._grant.tenant

    @property
    def _key(self) -> str:
        return "" if self._grant is None else self._grant.id

    def _caller(self, headers: Mapping[str, str]) -> dict[str, str]:
        """What the steps' requests say of the caller: what the key grants; without one, what the client says."""
        trace = {_TRACE: headers[_TRACE]} if _TRACE in headers else {}
        if self._grant is None:
            return {**trace, **{name: headers[name][:_LONGEST] for name in _PASSED_ON if name in headers}}
        granted, asked = str(self._grant.key.priority), headers.get(contract.HEADER_PRIORITY)
        priority = granted if asked is None else f"{granted}{MAY_LOWER}{asked}"
        return {contract.HEADER_TENANT: self._grant.tenant, contract.HEADER_PRIORITY: priority, **trace}

    def _admit(self) -> Callable[[int], None] | None:
        """Count the run against the key's requests; its tokens when it is over. Raises Refused."""
        grant = self._grant
        if grant is None:
            return None
        refusal = grant.admit(0, monotonic())
        if refusal is not None:
            raise Refused(refusal)
        return lambda tokens: grant.settle(0, tokens)

    # As a chat model.

    async def _chat(self, body: dict[str, Any], caller: dict[str, str]) -> Response | StreamResponse:
        known = self._workflows.find(str(body.get("model", "")).removeprefix(MODEL_PREFIX))
        messages = _messages(body.get("messages"))
        given, usage = _input(known, body, messages), _wants_usage(body)
        called = Called(given, messages, seed=_seed(body), key=self._key)
        driver = await self._workflows.begin(known, called, caller, self._admit())
        if body.get("stream"):
            return StreamResponse(200, _chunks(driver, str(body["model"]), usage=usage), _EVENTS)
        try:
            await driver.over()
        finally:  # the client has gone, or all is over
            driver.cancel("the client has gone")
        if driver.summary is None or driver.summary.verdict is not Verdict.SUCCEEDED:
            raise Refused(_failure(driver))
        message = {"role": "assistant", "content": driver.run.answer}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return _json(200, _envelope(driver, str(body["model"]), "chat.completion", [choice], _usage(driver)))

    # In the background.

    def _list(self) -> list[dict[str, Any]]:
        return [
            {
                "name": known.name,
                "runnable": known.plan is not None,
                "reason": known.why_not,
                "ignored": known.ignored,
            }
            for known in self._workflows.known.values()
        ]

    async def _begin(
        self, name: str, body: dict[str, Any], caller: dict[str, str], key: str | None = None
    ) -> Response:
        known = self._workflows.find(name)
        self._require_store(name)
        if body.keys() - {"input", "seed"}:
            unknown = min(body.keys() - {"input", "seed"})
            message = f'unknown field {unknown!r}; the body is {{"input": ..., "seed": ...}}'
            raise Refused(Refusal(400, "invalid_request_error", "unknown_field", message))
        run_id = None if key is None else _run_id(self._tenant, known.name, key)
        called = Called(body.get("input"), background=True, run=run_id, seed=_seed(body), key=self._key)
        settle = self._admit()
        try:
            driver = await self._workflows.begin(known, called, caller, settle)
        except Taken:
            if settle is not None:
                settle(0)
            return await self._begun(name, str(run_id), called)
        run = driver.claim.run
        return _json(
            202, {"id": run.id, "workflow": run.workflow, "phase": Verdict.RUNNING, "created": run.created}
        )

    def _require_store(self, name: str) -> None:
        if not self._keeps:
            message = (
                "this gateway keeps no runs, so none can go on in the background; start it with --workflow-store, "
                f"or call the model {MODEL_PREFIX}{name}"
            )
            raise Refused(Refusal(501, "invalid_request_error", "no_store", message))

    async def _replay(self, name: str, run: str, caller: dict[str, str]) -> Response:
        """A run that is over, once more."""
        self._require_store(name)
        record = await self._record(name, run)
        if record.summary.ended is None:
            message = f"the run {run} is not over; replay it when it is"
            raise Refused(Refusal(409, "invalid_request_error", "run_not_over", message))
        driver = await self._workflows.replay(run, caller, self._admit(), self._key)
        again = driver.claim.run
        told = {"id": again.id, "workflow": again.workflow, "phase": Verdict.RUNNING, "created": again.created}
        return _json(202, {**told, "replays": run})

    async def _begun(self, name: str, run: str, called: Called) -> Response:
        """The run that was begun with the same key before, and is what the caller asks for again."""
        try:
            record = await self._record(name, run)
        except Refused as refused:  # it is being written down by another request of this moment
            message = "a run with this idempotency-key is being taken in; ask again in a moment"
            busy = Refusal(409, "invalid_request_error", "run_beginning", message, 1.0)
            raise Refused(busy) from refused
        if (record.run.input["input"], record.run.input.get("seed")) != (called.given, called.seed):
            message = f"the {_KEY} was used for another input before; take a new key for a new run"
            raise Refused(Refusal(422, "invalid_request_error", "idempotency_key_reused", message))
        return _json(202, _summary(record.summary))

    async def _record(self, name: str, run: str) -> Record:
        record = await self._workflows.record(run)
        mine = record is not None and self._tenant in (None, record.run.caller.get(contract.HEADER_TENANT))
        if record is None or not mine or record.run.workflow.rpartition("/")[2] != name.rpartition("/")[2]:
            message = f"the workflow {name[:200]!r} has no run {run[:100]!r}; runs are kept for a day"
            raise Refused(Refusal(404, "invalid_request_error", "run_not_found", message))
        return record

    async def _cancel(self, name: str, run: str) -> Response:
        record = await self._record(name, run)
        if record.summary.ended is not None:
            return _json(200, _summary(record.summary))
        await self._workflows.cancel(run, "cancelled by a request")
        return _json(202, {"id": run, "cancelling": True})

    async def _events(self, name: str, run: str) -> StreamResponse:
        await self._record(name, run)
        driver = self._workflows.active.get(run)
        past = self._workflows.recent.get(run)

        async def lines() -> AsyncIterator[bytes]:
            if driver is None and past is not None:
                for event in past:
                    yield _event(event)
                return
            if driver is not None:
                async for event in driver.follow():
                    yield _event(event)
                if driver.summary is not None:
                    return
            async for event in self._looked_at(name, run):
                yield _event(event)

        return StreamResponse(200, lines(), _EVENTS)

    async def _looked_at(self, name: str, run: str) -> AsyncIterator[dict[str, Any]]:
        """What the journal says of a run that another gateway drives, as it comes, until the run is over."""
        told: set[Key] = set()
        while True:
            try:
                record = await self._record(name, run)
            except Refused:  # the store is away; whoever wants to know asks again
                return
            new = {key: ending for key, ending in record.endings.items() if key not in told}
            told.update(new)
            for event in past(new, time.time()):
                yield event
            summary = record.summary
            if summary.ended is not None:
                yield {
                    "type": "run",
                    "phase": summary.verdict,
                    "reason": summary.reason,
                    "tokens": summary.tokens,
                    "at": summary.ended,
                }
                return
            await asyncio.sleep(_LOOK_SECONDS)


async def _chunks(driver: Driver, model: str, *, usage: bool) -> AsyncIterator[bytes]:
    """The stream of a chat: progress as reasoning, then the answer, live where its step allows it."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event(_envelope(driver, model, "chat.completion.chunk", [choice], None))

    live = False
    try:
        yield chunk({"role": "assistant", "content": ""})
        async for event in driver.follow():
            if event["type"] == "text":
                live = True
                yield chunk({"content": event["text"]})
            elif event["type"] == "step" and not live:
                yield chunk({"reasoning_content": _progress(event)})
        if driver.summary is None or driver.summary.verdict is not Verdict.SUCCEEDED:
            refusal = _failure(driver)
            fault = {"message": refusal.message, "type": refusal.type, "param": None, "code": refusal.code}
            yield _event({"error": fault})
            return  # without [DONE]: the answer is not whole
        if not live and driver.run.answer:
            yield chunk({"content": driver.run.answer})
        yield chunk({}, "stop")
        if usage:
            yield _event(_envelope(driver, model, "chat.completion.chunk", [], _usage(driver)))
        yield b"data: [DONE]\n\n"
    finally:
        driver.cancel("the client has gone")


def _progress(event: Mapping[str, Any]) -> str:
    item = "" if event["item"] is None else f"[{event['item']}]"
    reason = f": {event['reason']}" if event.get("reason") else ""
    return f"{event['step']}{item} {event['phase']}{reason}\n"


def _failure(driver: Driver) -> Refusal:
    if driver.summary is None:
        message = "the run could not be written down and goes on without this connection; look for it in a moment"
        return Refusal(503, "server_error", "run_lost", message, 5.0)
    reason = driver.summary.reason
    status = 504 if reason.startswith("DeadlineExceeded") else 502
    return Refusal(status, "server_error", "workflow_failed", f"the run {driver.summary.id} failed: {reason}")


def _envelope(
    driver: Driver, model: str, kind: str, choices: Sequence[Any], usage: dict[str, int] | None
) -> dict[str, Any]:
    run = driver.claim.run
    found: dict[str, Any] = {
        "id": f"chatcmpl-{run.id}",
        "object": kind,
        "created": int(run.created),
        "model": model,
        "choices": choices,
    }
    return found if usage is None else found | {"usage": usage}


def _usage(driver: Driver) -> dict[str, int]:
    prompt, output = driver.prompt_tokens, driver.output_tokens
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        "id": summary.id,
        "workflow": summary.workflow,
        "phase": summary.verdict,
        "reason": summary.reason,
        "created": summary.created,
        "ended": summary.ended,
        "tokens": summary.tokens,
    }


def _state(record: Record, driver: Driver | None, differs: Sequence[str] | None) -> dict[str, Any]:
    steps = [
        {
            "step": key.path,
            "item": key.item,
            "phase": ending.phase,
            "reason": ending.reason,
            "tokens": ending.output.tokens,
            "pool": ending.output.pool or None,
        }
        for key, ending in sorted(record.endings.items(), key=lambda one: (one[0].path, one[0].item or 0))
    ]
    found = {
        **_summary(record.summary),
        "output": record.output,
        "deadline": record.run.deadline,
        "moves": record.moves,  # each may have repeated what was under way, whose tokens nobody knows
        "seed": record.run.input.get("seed"),
        "steps": steps,
    }
    if differs is not None:
        found["differs"] = differs
    if driver is not None:
        found["running"] = sorted(
            str(key) for frame in driver.run.frames() for work in frame.works.values() for key, _ in work.running()
        )
        found["degraded"] = driver.run.measures  # each with the tokens that were used when it was taken
    return found


def _shape(known: Known) -> dict[str, Any]:
    """A workflow's steps, as they wait for each other."""
    plan = known.plan
    assert plan is not None  # noqa: S101 - `find` has looked
    choosers = {name: step.name for step in plan.spec.steps for name in (step.choose.among if step.choose else ())}
    steps = []
    for step in plan.spec.steps:
        planned = plan.steps.get(step.name) or plan.picked.get(step.name) or plan.exit
        assert planned is not None  # noqa: S101 - every step is one of these
        role = "picked" if step.name in plan.picked else "step" if step.name in plan.steps else "exit"
        asked = step.llm or step.choose
        steps.append(
            {
                "name": step.name,
                "kind": planned.kind,
                "role": role,
                "needs": [choosers[step.name]] if role == "picked" else list(planned.needs),
                "soft": planned.soft,
                "items": planned.fans_out,
                "pools": [] if asked is None else [pool.name for pool in asked.pools],
            }
        )
    return {"name": known.name, "deadline": plan.spec.deadline, "steps": steps}


def _run_id(tenant: str | None, workflow: str, key: str) -> str:
    """The id of the run that a caller's key stands for: the same at every gateway."""
    if not 0 < len(key) <= _MOST_KEY_CHARACTERS:
        message = f"the {_KEY} has {len(key)} characters; take 1 to {_MOST_KEY_CHARACTERS}"
        raise Refused(Refusal(400, "invalid_request_error", "invalid_idempotency_key", message))
    whose = json.dumps([tenant, workflow, key]).encode()
    return f"run-{hashlib.sha256(whose).hexdigest()[:24]}"


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        message = "the body is no JSON object"
        raise Refused(Refusal(400, "invalid_request_error", "invalid_json", message))
    return found


def _messages(given: object) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(one, dict) and "role" in one for one in given):
        message = "messages must be a list of objects with role and content"
        raise Refused(Refusal(400, "invalid_request_error", "invalid_messages", message))
    return given


def _input(known: Known, body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Any:  # noqa: ANN401
    """The run's input: `input` of the body; else what the last user message says, as JSON or as the one text."""
    if "input" in body:
        return body["input"]
    said = next((one.get("content") for one in reversed(messages) if one["role"] == "user"), "")
    if isinstance(said, list):
        said = "".join(str(part.get("text", "")) for part in said if isinstance(part, dict))
    text = said if isinstance(said, str) else ""
    schema = known.plan.spec.input if known.plan is not None else None
    if schema is None:
        return {"text": text}
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    required = schema.get("required") or list(schema.get("properties") or ())
    return {required[0]: text} if len(required) == 1 else {"text": text}


def _seed(body: Mapping[str, Any]) -> int | None:
    """The seed of the run's models, as chat completions have it. Raises Refused."""
    seed = body.get("seed")
    if seed is None or (isinstance(seed, int) and not isinstance(seed, bool)):
        return seed
    raise Refused(Refusal(400, "invalid_request_error", "invalid_seed", "seed: write an integer"))


def _wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether a stream ends with what it took. Raises Refused."""
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        message = 'stream_options: write an object, such as {"include_usage": true}'
        raise Refused(Refusal(400, "invalid_request_error", "invalid_stream_options", message))
    return bool(options.get("include_usage"))


def _event(event: Mapping[str, Any]) -> bytes:
    return b"data: " + _written(event) + b"\n\n"


def _json(status: int, body: Mapping[str, Any]) -> Response:
    return Response(status, _written(body), JSON)


def _written(body: Mapping[str, Any]) -> bytes:
    # JSON can say half a surrogate pair, and UTF-8 cannot.
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
