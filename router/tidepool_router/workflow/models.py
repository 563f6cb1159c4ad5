"""LLM steps: which pool answers, the request to it, and its answer, whole or live."""

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Final

from tidepool_api import contract
from tidepool_api.workflow_steps import Llm, PoolChoice
from tidepool_router.errors import Refused
from tidepool_router.facts import Api
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.proxy.keyed import name_of
from tidepool_router.wire.body import inspect
from tidepool_router.workflow.core.choice import ranked
from tidepool_router.workflow.core.outlook import Standing
from tidepool_router.workflow.core.profiles import CallProfile, Profiles
from tidepool_router.workflow.core.spent import Spent
from tidepool_router.workflow.core.warming import pays
from tidepool_router.workflow.failures import StepFailed, timed_out
from tidepool_router.workflow.inprocess import AnswerBroke, InProcess
from tidepool_router.workflow.pools import offer

_CHAT: Final = "/v1/chat/completions"
# What the headers may say.
_MOST_TOKENS: Final = 999_999_999
# Between what a key grants and what its caller asks for.
MAY_LOWER: Final = ";"
_NUMBER: Final = re.compile(r"-?[0-9]{1,4}")
_MOST_SECONDS: Final = 86_400.0
_AGAIN: Final = frozenset((408, 425, 429))
# Answers after which another candidate is asked, within the same try.
_NEXT_POOL: Final = frozenset((404, 408, 429, 500, 502, 503, 504))

OnText = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Said:
    """What a model said, and what it took. `first_seconds`: until the first token, None where it came whole.

    `cached_tokens`: of the prompt's, where the engine tells.
    """

    text: str
    prompt_tokens: int
    output_tokens: int
    pool: str
    queue_seconds: float = 0.0
    first_seconds: float | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Asking:
    """What goes with a request of a run: `session` keeps its calls on the pods that know its prompts.

    `only`: the full name of the candidate that is to answer; empty: the best one.
    """

    request_id: str
    session: str
    standing: Standing
    caller: Mapping[str, str]
    namespace: str
    cheap: bool = False
    seed: int | None = None
    only: str = ""
    spent: Spent = field(default_factory=lambda: Spent(0.0))

    def pool(self, choice: PoolChoice) -> str:
        """A candidate's full name."""
        return f"{self.namespace}/{choice.name}" if self.namespace else choice.name


class Models:
    """Asks the pools of this gateway, and learns what answers take."""

    def __init__(self, client: InProcess, fleet: GatewayFleet, profiles: Profiles) -> None:
        self._client = client
        self._fleet = fleet
        self._profiles = profiles

    async def ask(
        self,
        step: str,
        llm: Llm,
        messages: Sequence[Mapping[str, Any]],
        asking: Asking,
        live: OnText | None,
        fits: Callable[[Said], Awaitable[None]] | None = None,
    ) -> Said:
        """The answer of the best candidate that gives one; `live` gets its text as it comes.

        `fits` looks at an answer, and raises StepFailed where it is of no use. Raises StepFailed.
        """
        failure: StepFailed | None = None
        prompt_tokens = output_tokens = 0  # of candidates that did not come to an end
        for choice in self._ranked(step, llm, messages, asking):
            name = asking.pool(choice)
            model = self._model_of(name)
            if model is None:
                failure = failure or StepFailed(f"there is no pool {choice.name!r} at this gateway", again=True)
                continue
            body = _body(
                model, step, llm, messages, stream=live is not None, seed=asking.seed, most=llm.max_tokens
            )
            try:
                said = await self._asked(step, choice.name, body, asking, live, fits)
            except _NextPool as error:
                failure = error.failure
                prompt_tokens += failure.prompt_tokens
                output_tokens += failure.output_tokens
            except StepFailed as error:
                error.prompt_tokens += prompt_tokens
                error.output_tokens += output_tokens
                raise
            else:
                prompt_tokens += said.prompt_tokens
                output_tokens += said.output_tokens
                return replace(said, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        assert failure is not None  # noqa: S101 - there is a candidate at least
        failure.prompt_tokens, failure.output_tokens = prompt_tokens, output_tokens
        raise failure

    async def warm(
        self, step: str, llm: Llm, messages: Sequence[Mapping[str, Any]], asking: Asking, seconds: float
    ) -> Said | None:
        """Have the one pool of a step compute the beginning of its prompt where that pays; None: it does not."""
        name = asking.pool(llm.pools[0])
        state, model = self._fleet.pools.get(name), self._model_of(name)
        if state is None or model is None or state.queue.held:
            return None
        body = _body(model, step, llm.model_copy(update={"response_format": None}), messages, stream=False, most=1)
        try:
            facts = inspect(Api.CHAT, _CHAT, body)
            offered = offer(llm.pools[0], state, facts, CallProfile(), 1, state.now())
            return await self._ask(body, asking, None, name) if pays(offered, seconds) else None
        except (Refused, StepFailed, _NextPool):
            return None

    async def _asked(
        self,
        step: str,
        pool: str,
        body: bytes,
        asking: Asking,
        live: OnText | None,
        fits: Callable[[Said], Awaitable[None]] | None,
    ) -> Said:
        began = monotonic()
        said: Said | None = None
        full = f"{asking.namespace}/{pool}" if asking.namespace else pool
        try:
            try:
                said = await self._ask(body, asking, live, full)
            finally:
                queued = 0.0 if said is None else said.queue_seconds
                asking.spent.asked(monotonic() - began, queued, self._prefill_seconds(said))
            if fits is not None:
                await fits(said)
        except (StepFailed, _NextPool):
            self._learn(step, pool, asking, None, began)
            raise
        except asyncio.CancelledError as cut:
            if timed_out(cut):
                self._learn(step, pool, asking, None, began)
            raise
        self._learn(step, pool, asking, said, began)
        return said

    def _prefill_seconds(self, said: Said | None) -> float:
        """Until the first token; of an answer that came whole, what its pool takes for such a prompt.

        Of one that did not come nobody saw a token.
        """
        if said is None:
            return math.inf
        if said.first_seconds is not None:
            return said.first_seconds - said.queue_seconds
        state = self._fleet.pools.get(said.pool)
        return 0.0 if state is None else (said.prompt_tokens - said.cached_tokens) * state.speed.prefill.slope

    def _learn(self, step: str, pool: str, asking: Asking, said: Said | None, began: float) -> None:
        now = monotonic()
        self._profiles.called(
            asking.standing.workflow,
            step,
            pool,
            prompt_tokens=0 if said is None else said.prompt_tokens,
            output_tokens=0 if said is None else said.output_tokens,
            seconds=now - began,
            succeeded=said is not None,
            now=now,
        )

    def _ranked(
        self, step: str, llm: Llm, messages: Sequence[Mapping[str, Any]], asking: Asking
    ) -> Sequence[PoolChoice]:
        if len(llm.pools) == 1:
            return llm.pools
        if asking.only:
            return [choice for choice in llm.pools if asking.pool(choice) == asking.only]
        known = {choice.name: self._fleet.pools.get(asking.pool(choice)) for choice in llm.pools}
        body = _body("", step, llm, messages, stream=False, most=llm.max_tokens)
        try:
            facts = inspect(Api.CHAT, _CHAT, body)
        except Refused:
            return ordered(llm.pools, cheap=asking.cheap)  # whoever is asked says what is wrong with it
        standing = asking.standing
        offers = [
            offer(
                choice,
                state,
                facts,
                self._profiles.call(standing.workflow, step, choice.name),
                standing.tokens,
                state.now(),
            )
            for choice in llm.pools
            if (state := known[choice.name]) is not None
        ]
        by_name = {choice.name: choice for choice in llm.pools}
        found = [by_name[one.pool] for one in ranked(offers, standing.slack_seconds, cheap=asking.cheap)]
        return [*found, *(choice for choice in llm.pools if known[choice.name] is None)]

    def _model_of(self, pool: str) -> str | None:
        """A name that leads to this pool and no other."""
        state = self._fleet.pools.get(pool)
        if state is None:
            return None
        return next((name for name in state.config.models if self._fleet.route(name) is state), None)

    async def _ask(self, body: bytes, asking: Asking, live: OnText | None, pool: str) -> Said:
        standing, state = asking.standing, self._fleet.pools.get(pool)
        headers = {
            "content-type": "application/json",
            contract.HEADER_REQUEST_ID: asking.request_id,
            contract.HEADER_SESSION: asking.session,
            contract.HEADER_DEADLINE: f"{min(_MOST_SECONDS, max(0.05, standing.latest_seconds)):.3f}s",
            contract.HEADER_RUN: f"{min(_MOST_TOKENS, standing.tokens)};{standing.waited_seconds:.1f}",
            **as_pool_knows(asking.caller, {} if state is None else state.routing.priorities),
        }
        reader = None if live is None else LiveAnswer(live)
        try:
            status, answer, queued = await self._client.post(
                _CHAT, headers, body, None if reader is None else reader.feed
            )
        except AnswerBroke as error:
            tokens = (0, 0) if reader is None else reader.tokens
            again = reader is None or not reader.began
            failure = StepFailed(f"{pool}: {error}", again=again, prompt_tokens=tokens[0], output_tokens=tokens[1])
            raise (_NextPool(failure) if again else failure) from error
        if status != 200:
            failure = StepFailed(
                f"{pool} answered {status}: {_words(answer)}", again=status >= 500 or status in _AGAIN
            )
            raise _NextPool(failure) if status in _NEXT_POOL else failure
        try:
            said = _whole(answer, pool) if reader is None else reader.said(pool)
        except StepFailed as error:
            raise (_NextPool(error) if error.again else error) from error
        return replace(said, queue_seconds=queued)


class _NextPool(Exception):
    def __init__(self, failure: StepFailed) -> None:
        super().__init__()
        self.failure = failure


def as_pool_knows(caller: Mapping[str, str], priorities: Mapping[str, int]) -> dict[str, str]:
    """What the caller's headers say, with the priority that its key grants, or the lower one that it asked for, as
    one of the pool's names; none where that is 0, or lower than all that have a name.

    A key grants a name or a number. Who has no key asks for a name; one that is not known changes nothing.
    """
    found = dict(caller)
    granted, _, asked = found.pop(contract.HEADER_PRIORITY, "").partition(MAY_LOWER)
    number = priorities.get(granted, int(granted) if _NUMBER.fullmatch(granted) else 0)
    number = min(number, priorities.get(asked, number))
    name = None if number == 0 else name_of(number, priorities)
    return found if name is None else {**found, contract.HEADER_PRIORITY: name.decode("latin-1")}


def ordered(pools: Sequence[PoolChoice], *, cheap: bool) -> list[PoolChoice]:
    """Candidates by their quality alone; where the budget is spent the cheapest first, that of least quality."""
    best = sorted(pools, key=lambda pool: -(pool.quality or 0.0))
    return best[::-1] if cheap else best


class LiveAnswer:
    """Reads a stream of chat chunks."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._rest = b""
        self._parts: list[str] = []
        self._error: str | None = None
        self._done = False
        self._began = monotonic()
        self._first_seconds: float | None = None
        self.tokens = (0, 0)
        self._cached = 0

    @property
    def began(self) -> bool:
        """Whether somebody has seen a part of the answer."""
        return bool(self._parts)

    def feed(self, data: bytes) -> None:
        """Bytes of the stream."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    self._event(line[5:].strip())

    def said(self, pool: str) -> Said:
        """The whole answer, when the stream is over. Raises StepFailed."""
        prompt, output = self.tokens
        if self._error is not None or not self._done:
            why = self._error or "the answer ended before it was whole"
            raise StepFailed(f"{pool}: {why}", again=not self.began, prompt_tokens=prompt, output_tokens=output)
        text, first = "".join(self._parts), self._first_seconds
        return Said(text, prompt, output, pool, first_seconds=first, cached_tokens=self._cached)

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            return
        if "error" in chunk:
            self._error = str((chunk["error"] or {}).get("message", "the engine failed"))[:300]
            return
        if chunk.get("usage"):
            self.tokens = _tokens(chunk["usage"])
            self._cached = _cached(chunk["usage"])
        for choice in chunk.get("choices") or ():
            text = (choice.get("delta") or {}).get("content")
            if text:
                if self._first_seconds is None:
                    self._first_seconds = monotonic() - self._began
                self._parts.append(text)
                self._on_text(text)


def _body(
    model: str,
    step: str,
    llm: Llm,
    messages: Sequence[Mapping[str, Any]],
    *,
    stream: bool,
    seed: int | None = None,
    most: int | None = None,
) -> bytes:
    body: dict[str, Any] = {"model": model, "messages": list(messages)}
    if most is not None:
        body["max_tokens"] = most
    if seed is not None:
        body["seed"] = seed
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if llm.response_format is not None:
        schema = {"name": step, "schema": llm.response_format, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return json.dumps(body).encode()


def _whole(answer: bytes, pool: str) -> Said:
    try:
        read = json.loads(answer)
        text = read["choices"][0]["message"].get("content") or ""
        usage = read.get("usage") or {}
        return Said(text, *_tokens(usage), pool, cached_tokens=_cached(usage))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StepFailed(f"{pool} answered what is no chat completion", again=True) from error


def _tokens(usage: Mapping[str, Any]) -> tuple[int, int]:
    return int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)


def _cached(usage: Mapping[str, Any]) -> int:
    details = usage.get("prompt_tokens_details")
    return int(details.get("cached_tokens") or 0) if isinstance(details, Mapping) else 0


def _words(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"]["message"])[:300]
    except (ValueError, LookupError, TypeError):
        return answer[:300].decode("utf-8", "replace")
