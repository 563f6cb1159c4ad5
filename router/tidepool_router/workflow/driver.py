"""Drives one run: does what the core asks, writes down what has ended, tells whoever follows.

An ending is in the journal before the core hears of it, so nothing that builds on it can begin before it is kept.
"""

import asyncio
import json
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import replace
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

from tidepool_api.workflow import Measure
from tidepool_router.workflow.core.coming import Course, course
from tidepool_router.workflow.core.frame import Frame
from tidepool_router.workflow.core.learning import Learning
from tidepool_router.workflow.core.outlook import standing
from tidepool_router.workflow.core.plan import Plan, StepPlan
from tidepool_router.workflow.core.run import Entry, Run
from tidepool_router.workflow.core.spent import Spent
from tidepool_router.workflow.core.states import (
    Call,
    Compose,
    Effect,
    Ending,
    Expand,
    Finish,
    Keep,
    Key,
    Output,
    Phase,
    Save,
    Stop,
    TimeOut,
)
from tidepool_router.workflow.core.warming import next_steps, seconds_until
from tidepool_router.workflow.failures import TIMED_OUT, StepErrored, StepFailed
from tidepool_router.workflow.journal import Claim, Fenced, Journal, JournalError, Summary
from tidepool_router.workflow.steps import About, Done, Entered, Performer, Skipped
from tidepool_router.workflow.telling import past
from tidepool_router.workflow.watching import Watch

_log: Final = logging.getLogger("tidepool.workflow")
_MOST_CHARACTERS: Final = 16 << 20  # of all outputs of a run
_TOO_LONG: Final = "all outputs of the run together are longer than a run may hold; have its steps answer less"
_MOST_EVENTS: Final = 4096
# What a follower may be behind; who reads slower than that is let go.
_MOST_BEHIND: Final = 16_384
_WRITES_AGAIN_SECONDS: Final = (0.1, 0.5, 2.0)

Event = Callable[[float], list[Effect]]


class Driver:
    """One run at this gateway. `plans`: of the workflows that its steps run, by name.

    `summary` is set when it is over; `lost` when another gateway has it.
    """

    def __init__(
        self,
        claim: Claim,
        plan: Plan,
        plans: Mapping[str, Plan],
        performer: Performer,
        journal: Journal,
        about: About,
        watch: Watch,
    ) -> None:
        self.claim = claim
        self.plan = plan
        self.summary: Summary | None = None
        self.lost = False
        self.prompt_tokens = 0
        self.output_tokens = 0
        left = claim.run.deadline - time.time()
        given = claim.run.input["input"]
        self.run = Run(plan, deadline=monotonic() + left, ended_before=claim.endings, given=given)
        before = {key: ending for key, ending in claim.endings.items() if ending.ended is not None}
        self.history = past(before, time.time())[:_MOST_EVENTS]
        self.live_step = _live_step(plan)
        self.plans = plans
        self._about = about
        self._performer = performer
        self._journal = journal
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._tasks: dict[Key | str, asyncio.Task[None]] = {}
        self._timed_out: set[Key] = set()
        self._made: set[Key] = set()  # has come to an end, which is being written down
        self._tokens: defaultdict[Key, int] = defaultdict(int)
        self._learning = Learning(self.run, performer.profiles)
        self._watch = watch
        self._characters = sum(len(ending.output.text) for ending in claim.endings.values())
        self._warmed: set[str] = set()
        self._first_tries: dict[Key, float] = {}
        self._course: Course | None = None  # until something happens
        self._followers: set[asyncio.Queue[dict[str, Any] | None]] = set()
        self._over = asyncio.Event()

    async def drive(self) -> None:
        """To the end of the run, its exit step included; or until the run is lost or this is cancelled."""
        try:
            self._take(self.run.begin(monotonic()))
            while not self.run.finished and not self.lost:
                await self._next()
            if not self.lost:
                await self._finish()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._over.set()
            self._send(None)

    def cancel(self, reason: str) -> None:
        """End the run; what is under way is cut at once."""
        self._inbox.put_nowait(lambda now: self.run.cancel(reason, now))

    def let_go(self) -> None:
        """Another gateway has the run: cut what is under way, and write no more."""
        self.lost = True
        self._inbox.put_nowait(lambda _: [])

    async def over(self) -> None:
        """Return when the run is over here."""
        await self._over.wait()

    def course(self) -> Course:
        """Going."""
        if self._course is None:
            namespace = self.plan.name.rpartition("/")[0]
            profiles, since = self._performer.profiles, self._learning.since
            self._course = course(self.run, self.plans, profiles, since, monotonic(), namespace)
        return self._course

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """What has happened so far and what happens, until the run is over here."""
        mine: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(_MOST_BEHIND)
        for earlier in self.history:
            mine.put_nowait(earlier)
        if self._over.is_set():
            mine.put_nowait(None)
        self._followers.add(mine)
        try:
            while (event := await mine.get()) is not None:
                yield event
        finally:
            self._followers.discard(mine)

    async def _next(self) -> None:
        wake = self.run.next_wake()
        try:
            async with asyncio.timeout(None if wake is None else max(0.0, wake - monotonic())):
                event = await self._inbox.get()
        except TimeoutError:
            self._take(self.run.tick(monotonic()))
        else:
            self._take(event(monotonic()))

    async def _finish(self) -> None:
        run = self.run
        end = Summary(
            self.claim.run.id,
            self.plan.name,
            self.claim.run.created,
            run.verdict,
            run.reason,
            round(time.time(), 3),
            run.tokens,
        )
        if await self._written(lambda: self._journal.finish(end.id, self.claim.fence, end, run.answer)):
            self.summary = end
            self._learning.finished(monotonic())
            self._watch.run(run.verdict, run.tokens)
            self._tell({"type": "run", "phase": run.verdict.value, "reason": run.reason, "tokens": run.tokens})

    def _take(self, effects: list[Effect]) -> None:
        self._course = None
        for effect in effects:
            match effect:
                case Call():
                    self._spawn(effect.key, self._call(effect))
                case Expand():
                    self._spawn(effect.within + effect.step, self._expand(effect))
                case Compose(within):
                    self._spawn(f"{within}output", self._compose(within))
                case Keep(key, ending):
                    self._spawn(key, self._keep(key, ending))
                case Stop(key):
                    self._cut(key)
                case TimeOut(key, _):
                    self._time_out(key)
                case Save(measure, tokens, within):
                    self._saves(within, measure)
                    self._tell({"type": "saving", "measure": measure, "tokens": tokens, "within": within})
                case Finish():
                    pass

    def _saves(self, within: str, measure: Measure) -> None:
        frame = self.run.frame(within)
        self._watch.saves(self.plan.name if frame is None else frame.plan.name, measure)

    def _spawn(self, name: Key | str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._tasks.pop(name) if self._tasks.get(name) is done else None)

    def _time_out(self, key: Key) -> None:
        if key not in self._made:  # else it was in time, however long the store takes
            self._timed_out.add(key)
            self._cut(key, TIMED_OUT)

    def _cut(self, key: Key | str, why: str | None = None) -> None:
        task = self._tasks.get(key)
        if task is not None:
            task.cancel(why)

    async def _call(self, call: Call) -> None:
        key = call.key
        frame = self.run.frame(key.within)
        if frame is None:
            return  # stopped before it began
        step = frame.step(key.step)
        now = monotonic()
        waited = time.time() - self.claim.run.created
        stands = standing(self.run, call, self._performer.profiles, waited, now)
        headers, spent = self._watch.tries(key)
        about = replace(self._about, standing=stands, spent=spent, caller={**self._about.caller, **headers})
        if key.within:
            # A workflow that runs inside has hosts of its own, and was called with no messages.
            about = replace(about, hosts=frame.plan.hosts, messages=() if "#" in key.within else about.messages)
        self._learning.began(key, now)
        self._first_tries.setdefault(key, round(time.time(), 3))
        self._tell_step(key, "Running")
        self._cut(f"warm {key.path}")  # it begins; what is not computed yet its own call computes
        if call.attempt == 1 and about.replay is None:
            self._warm(frame, key, about)
        live = self._on_text if key.path == self.live_step else None
        try:
            done = await self._performer.perform(step, call, frame.values(), about, live)
            self._made.add(key)
            if isinstance(done, Entered):
                spent.inside = True
                entry = await self._entry(done)
                self._inbox.put_nowait(lambda now: self.run.entered(key, call.attempt, entry, now))
            else:
                await self._done(call, done)
        except StepFailed as failure:
            await self._failed(call, failure, spent)
        except asyncio.CancelledError:
            if key not in self._timed_out:
                raise
            self._timed_out.discard(key)
            took = f"took longer than its timeout of {step.step.timeout}"
            await self._failed(call, StepFailed(took, again=True), spent)
        except Exception as error:
            await self._failed(call, StepErrored(_why(error)), spent)
        finally:
            self._made.discard(key)

    def _warm(self, frame: Frame, key: Key, about: About) -> None:
        """Have the beginnings of what follows a unit that begins computed meanwhile."""
        profiles = self._performer.profiles
        for step in next_steps(frame, key.step, profiles):
            path = key.within + step.name
            if path not in self._warmed:
                self._warmed.add(path)
                self._spawn(
                    f"warm {path}", self._warming(frame, step, about, seconds_until(frame, key.step, profiles))
                )

    async def _warming(self, frame: Frame, step: StepPlan, about: About, seconds: float) -> None:
        key = Key(step.name, None, frame.scope)
        prompt_tokens, output_tokens = await self._performer.warm(step, key, frame.values(), about, seconds)
        if prompt_tokens:
            self.prompt_tokens += prompt_tokens
            self.output_tokens += output_tokens
            used = prompt_tokens + output_tokens
            self._watch.warmed(frame.plan.name, prompt_tokens)
            self._tell({"type": "warmed", "step": key.path, "tokens": used})
            self._inbox.put_nowait(lambda now: self.run.used(used, now, frame.scope))

    async def _entry(self, entered: Entered) -> Entry:
        if entered.workflow is None:
            return Entry()
        plan = self.plans.get(entered.workflow)
        if plan is None:
            raise StepErrored(f"there is no workflow {entered.workflow!r}, or it cannot be run")
        wrong = await self._performer.checker.wrong(plan.spec.input, entered.given, "input")
        if wrong is not None:
            raise StepErrored(wrong)
        return Entry(plan, entered.given)

    async def _done(self, call: Call, done: Done | Skipped) -> None:
        if isinstance(done, Skipped):
            await self._end(call.key, Ending(Phase.SKIPPED, done.when))
            return
        if self._too_long(done.output, told_apart=done.told_apart):
            raise StepErrored(_TOO_LONG)
        tokens = self._used(call.key, done.prompt_tokens, done.output_tokens)
        output = replace(done.output, tokens=tokens)
        await self._end(call.key, Ending(Phase.SUCCEEDED, "", output), _call_told(done))

    async def _failed(self, call: Call, failure: StepFailed, spent: Spent) -> None:
        self._made.add(call.key)
        tokens = self._used(call.key, failure.prompt_tokens, failure.output_tokens)
        at = self.run.retry_at(call.key, call.attempt, monotonic()) if failure.again else None
        if at is not None:
            spent.pauses(monotonic())
            self._tell(
                {
                    "type": "step",
                    "step": call.key.path,
                    "item": call.key.item,
                    "phase": "Waiting",
                    "reason": str(failure),
                }
            )
            self._inbox.put_nowait(lambda _: self.run.failed(call.key, call.attempt, at))
            return
        phase = Phase.ERRORED if isinstance(failure, StepErrored) else Phase.FAILED
        await self._end(call.key, Ending(phase, str(failure), Output(tokens=tokens)))

    def _used(self, key: Key, prompt_tokens: int, output_tokens: int) -> int:
        """Count what a try used; returns what all tries of this unit did."""
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens
        tokens = prompt_tokens + output_tokens
        self._tokens[key] += tokens
        if tokens:
            self._inbox.put_nowait(lambda now: self.run.used(tokens, now, key.within))
        return self._tokens[key]

    def _too_long(self, output: Output, *, told_apart: bool = False) -> bool:
        """Count what a unit made; whether that is more than a run may hold."""
        self._characters += len(output.text) + (len(json.dumps(output.data)) if told_apart else 0)
        return self._characters > _MOST_CHARACTERS

    async def _keep(self, key: Key, ending: Ending) -> None:
        """What is made of others has ended."""
        if self._too_long(ending.output):
            ending = Ending(Phase.ERRORED, _TOO_LONG, Output(tokens=ending.output.tokens))
        await self._end(key, ending)

    async def _end(self, key: Key, ending: Ending, more: Mapping[str, Any] = MappingProxyType({})) -> None:
        run = self.claim.run.id
        ending = replace(ending, began=self._first_tries.pop(key, None), ended=round(time.time(), 3))
        self._learning.ended(key, ending, monotonic())
        frame = self.run.frame(key.within)
        if await self._written(lambda: self._journal.commit(run, self.claim.fence, key, ending)):
            if frame is not None:
                self._watch.unit(frame.plan.name, frame.step(key.step), key, ending)
            self._tell_step(key, ending.phase.value, reason=ending.reason, tokens=ending.output.tokens, **more)
            self._inbox.put_nowait(lambda now: self.run.ended(key, ending, now))

    async def _written(self, write: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Whether it is kept. A run that cannot be written is let go: it goes on from its journal, later."""
        for pause in (*_WRITES_AGAIN_SECONDS, None):
            try:
                await write()
            except JournalError as error:
                if pause is None or isinstance(error, Fenced):
                    _log.warning("let go of a run", extra={"run": self.claim.run.id, "reason": str(error)})
                    self.let_go()
                    return False
                await asyncio.sleep(pause)
            else:
                return True
        return False

    async def _expand(self, effect: Expand) -> None:
        step, within = effect.step, effect.within
        frame = self.run.frame(within)
        if frame is None:
            return
        try:
            items = await self._performer.items(frame.step(step), frame.values())
        except Exception as error:
            why = _why(error, "withParam")
            self._inbox.put_nowait(lambda now: self.run.unexpandable(step, why, now, within))
        else:
            self._inbox.put_nowait(lambda now: self.run.expanded(step, items, now, within))

    async def _compose(self, within: str) -> None:
        frame = self.run.frame(within)
        if frame is None:
            return
        output = frame.plan.spec.output
        values = frame.values()
        try:
            if output is None:
                answer = str(values["steps"][frame.plan.last]["text"])
            else:
                answer = await self._performer.render(output, values, "output")
        except Exception as error:
            why = _why(error, "output")
            self._inbox.put_nowait(lambda now: self.run.uncomposable(why, now, within))
        else:
            self._inbox.put_nowait(lambda now: self.run.composed(answer, now, within))

    def _on_text(self, text: str) -> None:
        self._send({"type": "text", "text": text})

    def _send(self, event: dict[str, Any] | None) -> None:
        for follower in list(self._followers):
            if follower.full():
                self._followers.discard(follower)
                while not follower.empty():
                    follower.get_nowait()
                follower.put_nowait(None)
            else:
                follower.put_nowait(event)

    def _tell_step(self, key: Key, phase: str, **more: Any) -> None:  # noqa: ANN401 - JSON
        self._tell({"type": "step", "step": key.path, "item": key.item, "phase": phase, **more})

    def _tell(self, event: dict[str, Any]) -> None:
        event = {**event, "at": round(time.time(), 3)}
        if len(self.history) < _MOST_EVENTS:
            self.history.append(event)
        self._send(event)


def _why(error: Exception, field: str = "") -> str:
    """What is told of a failure; of one that nobody foresaw, the log says more. Whoever waits must hear of any."""
    if isinstance(error, StepFailed):
        return str(error).removeprefix(f"{field}: ")
    _log.error("a step failed in a way that nobody foresaw; please report it", exc_info=error)
    return f"the gateway failed on it: {type(error).__name__}"


def _call_told(done: Done) -> Mapping[str, Any]:
    """Of a call of a model, for those who draw the run: who answered, and how its time went."""
    said = done.said
    if said is None:
        return {}
    return {
        "pool": said.pool,
        "prompt_tokens": said.prompt_tokens,
        "queue_seconds": round(said.queue_seconds, 3),
        "first_seconds": None if said.first_seconds is None else round(said.first_seconds, 3),
    }


def _live_step(plan: Plan) -> str | None:
    """The step whose tokens are the answer as it grows: the answer is its text, and it is asked once."""
    output = plan.spec.output
    name = (
        plan.last if output is None else "".join(output.split()).removeprefix("{{steps.").removesuffix(".text}}")
    )
    step = plan.steps.get(name)
    if step is None or step.kind != "llm" or step.fans_out:
        return None
    return name
