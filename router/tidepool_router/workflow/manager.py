"""All workflows and runs of a gateway: taken in, driven, taken over from gateways that are gone, forgotten."""

import asyncio
import json
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from tidepool_api.contract import HEADER_TENANT
from tidepool_api.language import graph
from tidepool_api.language.review import review
from tidepool_api.problems import unknown_fields
from tidepool_api.routing import FleetWorkflow
from tidepool_api.workflow import MODEL_PREFIX, AgentWorkflowSpec
from tidepool_router.errors import Refusal, Refused
from tidepool_router.tracing.sight import Sight
from tidepool_router.usage.tally import Tally, Who
from tidepool_router.workflow.core.outlook import sole_pools
from tidepool_router.workflow.core.plan import Plan, plan_of
from tidepool_router.workflow.core.replaying import Replay, differing, of_tools, replay_of
from tidepool_router.workflow.core.states import Verdict
from tidepool_router.workflow.driver import Driver
from tidepool_router.workflow.journal import Accepted, Claim, Journal, JournalError, Record, Summary, Taken, Totals
from tidepool_router.workflow.keeper import KEPT_SECONDS, MOST_ACTIVE, Keeper
from tidepool_router.workflow.steps import About, Performer
from tidepool_router.workflow.tracing import RunTrace
from tidepool_router.workflow.watching import Watch, WorkflowMetrics

_log: Final = logging.getLogger("tidepool.workflow")
_T = TypeVar("_T")
LEASE_SECONDS: Final = 15.0
_MOST_INPUT_CHARACTERS: Final = 1 << 20
_MOST_RECENT: Final = 256
_MOST_RECENT_EVENTS: Final = 65_536  # of all of them; a long run has four thousand
_MOST_IGNORED: Final = 16  # fields that are named of a workflow
# Beside a run's spec: those of the workflows that it runs, and what it is a replay of.
_INSIDE: Final = "workflows"
_REPLAY: Final = "replay"
_ID: Final = re.compile(r"[!-~]{1,64}")
# So long after its deadline a run that no gateway can restore is over.
_HOPELESS_SECONDS: Final = 60.0
_WRITES_TOGETHER: Final = 256  # of a replay; the store takes so many at once, and others' too
_GONE: Final = "the gateway that its client was connected to is gone"


@dataclass(frozen=True, slots=True)
class Called:
    """With what a workflow is called: its input, the messages of a chat; a background run outlives its client.

    `run` is the run's id where the caller has chosen one, so that asking twice begins one run. `seed`: of all that
    models answer. `key` is the id of the API key that called it.
    """

    given: Any
    messages: Sequence[Mapping[str, Any]] = ()
    background: bool = False
    run: str | None = None
    seed: int | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """A workflow of the fleet: its plan, or why it cannot be run. `ignored`: fields that have no effect here."""

    name: str
    source: FleetWorkflow
    plan: Plan | None
    why_not: str = ""
    ignored: tuple[str, ...] = ()


class Workflows:
    """Level-triggered, as the fleet: `apply` makes the workflows those of the document; runs keep their spec."""

    def __init__(
        self,
        performer: Performer,
        journal: Journal,
        owner: str,
        lease_seconds: float = LEASE_SECONDS,
        sight: Sight | None = None,
        announce: Callable[[str, int], None] | None = None,
        metrics: WorkflowMetrics | None = None,
    ) -> None:
        self.known: dict[str, Known] = {}
        self.active: dict[str, Driver] = {}
        # What happened in the runs that ended last, for whoever wants to see them drawn.
        self.recent: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()
        self._performer = performer
        self._journal = journal
        # Of this life alone: what an earlier one of the same name left behind is not renewed, but taken over.
        self._owner = f"{owner}/{secrets.token_hex(4)}"
        self._lease_seconds = lease_seconds
        self._announce = announce
        self._metrics = metrics
        self._sight = sight if sight is not None and sight.lives is not None else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper = Keeper(journal, self._owner, lease_seconds, self.active, self._go_on)
        self._beginning: set[str] = set()
        self.tally: Tally | None = None  # set where usage is kept

    def start(self) -> None:
        """Begin to keep leases, and to take over what nobody keeps."""
        self._keeper.start()

    def pause(self) -> None:
        """Keep and take over no runs from now on."""
        self._keeper.stop()

    async def close(self) -> None:
        """Stop driving. What runs in the background goes on from the journal, here or at another gateway."""
        await self._keeper.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._journal.release(self._owner)
        except JournalError:
            _log.warning("the leases of the runs could not be given back; they end by themselves")
        await self._journal.close()

    def apply(self, workflows: Sequence[FleetWorkflow], pools: Sequence[str]) -> None:
        """These are the workflows, and these the names of the pools."""
        known: dict[str, Known] = {}
        for source in workflows:
            before = self.known.get(source.name)
            if before is not None and before.source == source and before.plan is not None:
                known[source.name] = before
            else:
                judged = _judged(source, pools, [one.name for one in workflows])
                known[source.name] = _told_of(judged, () if before is None else before.ignored)
        self.known = _without_circles(known)

    def find(self, name: str) -> Known:
        """A workflow by its name, with its namespace or without. Raises Refused."""
        found = self.known.get(name) or next(
            (known for full, known in self.known.items() if full.rpartition("/")[2] == name), None
        )
        if found is None:
            names = ", ".join(list(self.known)[:20]) or "none yet"
            message = f"the workflow {name[:200]!r} does not exist; known workflows: {names}"
            raise Refused(Refusal(404, "invalid_request_error", "workflow_not_found", message))
        if found.plan is None:
            message = f"the workflow {name!r} cannot be run: {found.why_not}"
            raise Refused(Refusal(422, "invalid_request_error", "workflow_not_accepted", message))
        return found

    async def begin(
        self, known: Known, called: Called, caller: Mapping[str, str], settle: Callable[[int], None] | None
    ) -> Driver:
        """Take a run in and start it; `settle` hears of its tokens in the end.

        Raises Refused, and Taken where a run of the id that was chosen is there already. What it has returned is
        written.
        """
        assert known.plan is not None  # noqa: S101 - `find` has looked
        if len(json.dumps([called.given, called.messages])) > _MOST_INPUT_CHARACTERS:
            message = f"the input is longer than {_MOST_INPUT_CHARACTERS} characters as JSON; shorten it"
            raise Refused(Refusal(413, "invalid_request_error", "input_too_long", message))
        wrong = await self._performer.checker.wrong(known.plan.spec.input, called.given, "input")
        if wrong is not None:
            raise Refused(Refusal(400, "invalid_request_error", "invalid_input", wrong))
        self._require_room()
        inside = self._inside(known)
        spec = known.source.model_dump(mode="json", by_alias=True)
        if inside:
            spec[_INSIDE] = [one.source.model_dump(mode="json", by_alias=True) for one in inside]
        run = Accepted(
            called.run or f"run-{secrets.token_hex(12)}",
            known.name,
            spec,
            {"input": called.given, "messages": list(called.messages), "seed": called.seed},
            *_times(known.plan),
            called.background,
            dict(caller),
        )
        fence = await self._accept(run)
        plans = {one.name.rpartition("/")[2]: one.plan for one in inside if one.plan is not None}
        return self._drive(Claim(run, fence, {}), known.plan, plans, settle, called.key)

    async def replay(
        self, run: str, caller: Mapping[str, str], settle: Callable[[int], None] | None, key: str = ""
    ) -> Driver:
        """Begin a run that has ended once more, on what its tools answered then. Raises Refused."""
        self._require_room()
        found = await self._stored(self._journal.recorded(run))
        if found is None:
            raise Refused(Refusal(404, "invalid_request_error", "run_not_found", f"there is no run {run[:100]!r}"))
        first, endings = found
        try:
            plan, plans = _restored(Claim(first, 0, {}))
        except (ValueError, LookupError) as error:
            message = "the run's workflow cannot be read by this gateway; it is of another release"
            raise Refused(Refusal(422, "invalid_request_error", "workflow_not_accepted", message)) from error
        created, deadline = _times(plan)
        again = replace(
            first,
            id=f"run-{secrets.token_hex(12)}",
            spec={**first.spec, _REPLAY: replay_of(first.id, endings).as_json()},
            created=created,
            deadline=deadline,
            background=True,
            caller=dict(caller),
        )
        known = of_tools(endings, plan, plans)
        fence = await self._accept(again)
        # Kept as its own: whoever takes it over goes on from them.
        units = list(known.items())
        for at in range(0, len(units), _WRITES_TOGETHER):
            some = units[at : at + _WRITES_TOGETHER]
            await self._stored(_all(self._journal.commit(again.id, fence, unit, ending) for unit, ending in some))
        return self._drive(Claim(again, fence, known), plan, plans, settle, key)

    def _require_room(self) -> None:
        """Raises Refused."""
        if len(self.active) >= MOST_ACTIVE:
            message = f"{MOST_ACTIVE} runs are active at this gateway; try again in a moment"
            raise Refused(Refusal(429, "rate_limit_error", "too_many_runs", message, 1.0))

    async def differences(self, record: Record) -> list[str] | None:
        """Steps of a replay that ended otherwise than in the run that it is of; None: it is none, or not over."""
        replay = Replay.read(record.run.spec.get(_REPLAY))
        if replay is None or record.summary.ended is None:
            return None
        first = await self._stored(self._journal.recorded(replay.of))
        second = await self._stored(self._journal.recorded(record.run.id))
        return None if first is None or second is None else differing(first[1], second[1])

    async def _stored(self, asked: Awaitable[_T]) -> _T:
        """What the store answers. Raises Refused."""
        try:
            return await asked
        except JournalError as error:
            raise Refused(Refusal(503, "service_unavailable", "store_failed", str(error), 1.0)) from error

    async def _accept(self, run: Accepted) -> int:
        if run.id in self.active or run.id in self._beginning:
            raise Taken(f"the run {run.id} was taken in before")
        self._beginning.add(run.id)
        try:
            return await self._journal.accept(run, self._owner, self._lease_seconds)
        except Taken:
            raise
        except JournalError as error:
            raise Refused(Refusal(503, "service_unavailable", "store_failed", str(error), 1.0)) from error
        finally:
            self._beginning.discard(run.id)

    def _inside(self, known: Known) -> list[Known]:
        """The workflows that it runs, and those that these run: a run ends by the specs that it began with.

        Raises Refused when one cannot be run.
        """
        found: dict[str, Known] = {}
        waiting = [known]
        while waiting:
            for name in _runs(waiting.pop()):
                full = _beside(known.name, name)
                if full not in found:
                    found[full] = self.find(full)
                    waiting.append(found[full])
        return list(found.values())

    async def record(self, run: str) -> Record | None:
        """What is known of a run. Raises Refused."""
        if not _ID.fullmatch(run):
            return None  # no run is called so, and a store may refuse to look for it
        return await self._stored(self._journal.find(run))

    async def runs(self, workflow: str, tenant: str | None, most: int) -> Sequence[Summary]:
        """Runs of a workflow, and of a tenant where one is named, newest first. Raises Refused."""
        return await self._stored(self._journal.runs(workflow, most, tenant=tenant))

    async def open_runs(self, prefix: str, most: int) -> Sequence[tuple[str, str]]:
        """Ids that begin so, of runs that are not over at any gateway, and their workflows. Raises Refused."""
        return await self._stored(self._journal.open_runs(prefix, most))

    async def totals(self) -> Sequence[Totals]:
        """Runs of each workflow at all gateways of the store, and those that are kept. Raises Refused."""
        return await self._stored(self._journal.totals(time.time() - KEPT_SECONDS))

    async def cancel(self, run: str, reason: str) -> None:
        """End a run, whichever gateway drives it: here at once, elsewhere within a second. Raises Refused.

        What has returned is written: who takes the run over, should its gateway die now, ends it, too.
        """
        driver = self.active.get(run)
        if driver is not None:
            driver.cancel(reason)
        await self._stored(self._journal.ask_to_cancel(run, reason))

    def _drive(
        self,
        claim: Claim,
        plan: Plan,
        plans: Mapping[str, Plan],
        settle: Callable[[int], None] | None = None,
        key: str = "",
    ) -> Driver:
        run = claim.run
        about = About(
            run.id,
            run.workflow.rpartition("/")[0],
            run.input["messages"],
            run.caller,
            run.spec.get("hosts") or (),
            seed=run.input.get("seed"),
            replay=Replay.read(run.spec.get(_REPLAY)),
        )
        trace = None if self._sight is None else RunTrace(self._sight, run.id, run.workflow, run.caller)
        watch = Watch(run.workflow, self._metrics, trace)
        driver = Driver(claim, plan, plans, self._performer, self._journal, about, watch)
        self.active[run.id] = driver
        task = asyncio.get_running_loop().create_task(self._driven(driver, settle, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return driver

    def _tell_of(self, driver: Driver, pools: Collection[str], change: int) -> None:
        if self._announce is not None:
            for pool in pools:
                self._announce(_beside(driver.claim.run.workflow, pool), change)

    async def _driven(self, driver: Driver, settle: Callable[[int], None] | None, key: str) -> None:
        pools = sole_pools(driver.plan, self._performer.profiles, driver.plans)
        self._tell_of(driver, pools, 1)
        try:
            await driver.drive()
        finally:
            self._tell_of(driver, pools, -1)
            if settle is not None:
                settle(driver.prompt_tokens + driver.output_tokens)
            if self.tally is not None:
                _count(self.tally, driver, key)
            if self.active.get(driver.claim.run.id) is driver:
                del self.active[driver.claim.run.id]
            self.recent[driver.claim.run.id] = driver.history
            while len(self.recent) > _MOST_RECENT or sum(map(len, self.recent.values())) > _MOST_RECENT_EVENTS:
                self.recent.popitem(last=False)

    async def _go_on(self, claim: Claim) -> None:
        run = claim.run
        stale = self.active.get(run.id)
        if stale is not None:
            stale.let_go()
        try:
            plans = _restored(claim)
        except (ValueError, LookupError) as error:  # of a later release: its gateways may know what to do with it
            _log.warning("a run cannot be restored", extra={"run": run.id, "reason": type(error).__name__})
            if time.time() > run.deadline + _HOPELESS_SECONDS:
                why = "its workflow cannot be read by this gateway"
                end = Summary(run.id, run.workflow, run.created, Verdict.FAILED, why, round(time.time(), 3))
                await self._journal.finish(run.id, claim.fence, end, None)
            return
        driver = self._drive(claim, *plans)
        _log.info("took over a run", extra={"run": run.id, "fence": claim.fence})
        if claim.cancel is not None or not run.background:
            driver.cancel(claim.cancel or _GONE)


def _times(plan: Plan) -> tuple[float, float]:
    """When a run begins that begins now, and its deadline."""
    now = round(time.time(), 3)
    return now, now + plan.deadline_seconds


async def _all(writes: Iterable[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*writes)


def _restored(claim: Claim) -> tuple[Plan, dict[str, Plan]]:
    spec = dict(claim.run.spec)
    inside = [_plan(raw) for raw in spec.pop(_INSIDE, ())]
    return _plan(spec), {plan.name.rpartition("/")[2]: plan for plan in inside}


def _plan(raw: Mapping[str, Any]) -> Plan:
    source = FleetWorkflow.model_validate(raw)
    return plan_of(source.name, AgentWorkflowSpec.model_validate(source.spec), source.hosts)


def _runs(known: Known) -> list[str]:
    """Names of the workflows that its steps run."""
    steps = () if known.plan is None else known.plan.spec.steps
    return [step.workflow.name for step in steps if step.workflow is not None]


def _without_circles(known: Mapping[str, Known]) -> dict[str, Known]:
    """Workflows that run each other without end cannot be run."""
    needs = {name: [_beside(name, other) for other in _runs(one)] for name, one in known.items()}
    found = dict(known)
    for circle in graph.cycles(needs):
        why = f"the workflows run each other without end: {' -> '.join(circle)}; break the circle"
        found |= {name: replace(known[name], plan=None, why_not=why) for name in circle}
    return found


def _beside(name: str, other: str) -> str:
    """A name in the namespace of a workflow."""
    namespace = name.rpartition("/")[0]
    return f"{namespace}/{other}" if namespace else other


def _told_of(known: Known, told_before: Sequence[str]) -> Known:
    """With the fields that have no effect; the log names them once, for each time that they change."""
    ignored = tuple(unknown_fields(AgentWorkflowSpec, known.source.spec)[:_MOST_IGNORED])
    if ignored and ignored != tuple(told_before):
        _log.warning(
            "fields of a workflow are not known to this release and have no effect; "
            "mend their names, or upgrade the gateway",
            extra={"workflow": known.name, "fields": ", ".join(ignored)},
        )
    return replace(known, ignored=ignored)


def _judged(source: FleetWorkflow, pools: Sequence[str], names: Sequence[str]) -> Known:
    namespace, _, name = source.name.rpartition("/")
    near = {pool.rpartition("/")[2] for pool in pools if pool.rpartition("/")[0] == namespace}
    workflows = {one.rpartition("/")[2] for one in names if one.rpartition("/")[0] == namespace}
    raw = {"metadata": {"name": name}, "spec": source.spec}
    problems = [problem for problem in review(raw, near, workflows) if not problem.accepted]
    if problems:
        return Known(source.name, source, None, "; ".join(map(str, problems[:5])))
    try:
        return Known(source.name, source, _plan(source.model_dump()))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return Known(source.name, source, None, f"spec.{'.'.join(map(str, first['loc']))}: {first['msg']}")


def _count(tally: Tally, driver: Driver, key: str) -> None:
    """A run as one request for its workflow: its steps' own requests belong to nobody else."""
    name = driver.claim.run.workflow.rpartition("/")[2]
    tenant = driver.claim.run.caller.get(HEADER_TENANT, "")
    tally.ended(
        Who(key, tenant, MODEL_PREFIX + name, name),
        whole=driver.run.verdict is Verdict.SUCCEEDED,
        prompt_tokens=driver.prompt_tokens,
        cached_tokens=0,  # answers of steps do not tell
        output_tokens=driver.output_tokens,
    )
