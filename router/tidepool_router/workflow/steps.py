"""One try of one unit of work: its templates rendered, its call made, its answer checked."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Final

from tidepool_api.workflow_steps import ChatMessage, Choose, Http, Llm, Mcp, SubWorkflow
from tidepool_router.workflow import picks
from tidepool_router.workflow.checking import Checker
from tidepool_router.workflow.core.outlook import Standing
from tidepool_router.workflow.core.plan import StepPlan
from tidepool_router.workflow.core.profiles import Profiles
from tidepool_router.workflow.core.replaying import Replay, seed_of
from tidepool_router.workflow.core.spent import Spent
from tidepool_router.workflow.core.states import Call, Key, Output
from tidepool_router.workflow.core.texts import data_of
from tidepool_router.workflow.core.warming import LEAST_BYTES
from tidepool_router.workflow.failures import StepErrored, StepFailed
from tidepool_router.workflow.mcp_tools import McpTools
from tidepool_router.workflow.models import Asking, Models, OnText, Said
from tidepool_router.workflow.rendering import Renderer, RenderError
from tidepool_router.workflow.tools import Tools

_MOST_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class Skipped:
    """`when` came out false."""

    when: str


@dataclass(frozen=True, slots=True)
class Done:
    """A try that succeeded; `said`: by a model. `told_apart`: its data is not read from its text."""

    output: Output
    prompt_tokens: int = 0
    output_tokens: int = 0
    said: Said | None = None
    told_apart: bool = False


@dataclass(frozen=True, slots=True)
class Entered:
    """A step that chooses begins; or one that runs `workflow`, on the input `given`."""

    workflow: str | None = None
    given: Any = None


@dataclass(frozen=True, slots=True)
class About:
    """What a step knows of its run. `messages` are those that the workflow was called with.

    `seed`: of all its models' answers. `replay`: it is another one again, and calls no tool. `spent`: where
    the time of the unit goes.
    """

    run: str
    namespace: str
    messages: Sequence[Mapping[str, Any]]
    caller: Mapping[str, str]
    hosts: Sequence[str]
    standing: Standing = field(default_factory=Standing)
    seed: int | None = None
    replay: Replay | None = None
    spent: Spent = field(default_factory=lambda: Spent(0.0))


@dataclass(frozen=True, slots=True)
class Performer:
    """Makes tries, for all runs of a process."""

    models: Models
    tools: Tools
    renderer: Renderer
    mcp: McpTools
    profiles: Profiles = field(default_factory=Profiles)
    checker: Checker = field(default_factory=Checker)

    async def perform(
        self, step: StepPlan, call: Call, values: Mapping[str, Any], about: About, live: OnText | None
    ) -> Done | Skipped | Entered:
        """One try. Raises StepFailed."""
        if step.fans_out:
            values = {**values, "item": call.value}
        if step.step.when is not None:
            came_out = (await self.render(step.step.when, values, "when")).strip()
            if came_out.lower() != "true":
                return Skipped(f"when came out {came_out[:80]!r}")
        return await self._perform(step, call, values, about, live)

    async def _perform(
        self, step: StepPlan, call: Call, values: Mapping[str, Any], about: About, live: OnText | None
    ) -> Done | Entered:
        match step.step.llm or step.step.http or step.step.mcp or step.step.choose or step.step.workflow:
            case Llm() as llm:
                return await self._llm(step, llm, call, values, about, live)
            case Http() as http:
                return await self._http(http, call, values, about)
            case Mcp() as mcp:
                return await self._mcp(mcp, call, values, about)
            case Choose() as choose if call.turn:
                return await self._pick(step, choose, call, values, about)
            case Choose():
                return Entered()
            case SubWorkflow() as sub:
                return Entered(sub.name, await self._filled(dict(sub.input or {}), values, "input"))
        raise StepErrored("the step does nothing")  # the review refuses it before

    async def warm(
        self, step: StepPlan, key: Key, values: Mapping[str, Any], about: About, seconds: float
    ) -> tuple[int, int]:
        """Compute ahead what is known of a step's prompt, where that pays; tokens of prompt and answer it took.

        `seconds`: until the step begins, whose key this is.
        """
        llm = step.step.llm
        assert llm is not None  # noqa: S101 - others are not warmed
        messages = self._beginning(llm.messages, values) if llm.messages else about.messages
        if sum(len(str(message.get("content") or "")) for message in messages) < LEAST_BYTES:
            return 0, 0
        # As the step's own call would be, so that it goes where that goes; it is of no use later than that begins.
        stands = replace(about.standing, latest_seconds=seconds)
        call = Call(key, 0, 0.0)
        asking = Asking(
            f"{_key(about.run, call)}.warm", _session(about.run, call), stands, about.caller, about.namespace
        )
        said = await self.models.warm(step.name, llm, messages, asking, seconds)
        return (0, 0) if said is None else (said.prompt_tokens, said.output_tokens)

    def _beginning(self, written: Sequence[ChatMessage], values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for one in written:
            text, whole = self.renderer.beginning(one.content, values)
            if text:
                found.append({"role": one.role.value, "content": text})
            if not whole:
                break
        return found

    async def items(self, step: StepPlan, values: Mapping[str, Any]) -> list[Any]:
        """The items of `withParam`. Raises StepErrored."""
        assert step.step.with_param is not None  # noqa: S101 - who expands has one
        text = await self.render(step.step.with_param, values, "withParam")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, list):
            raise StepErrored(f"withParam gives no JSON list but {text[:_MOST_SHOWN]!r}")
        return found

    async def render(self, template: str, values: Mapping[str, Any], field: str) -> str:
        """A template's text. Raises StepErrored that names the field."""
        try:
            return await self.renderer.render(template, values)
        except RenderError as error:
            raise StepErrored(f"{field}: {error}") from error

    async def _llm(
        self, step: StepPlan, llm: Llm, call: Call, values: Mapping[str, Any], about: About, live: OnText | None
    ) -> Done:
        messages = await self._messages(llm.messages, values, about)
        return await self._ask(step, llm, messages, call, about, live)

    async def _pick(
        self, step: StepPlan, choose: Choose, call: Call, values: Mapping[str, Any], about: About
    ) -> Done:
        written = await self._messages(choose.messages, values, about)
        reads_turns = any(f"steps.{step.name}" in one.content for one in choose.messages)
        turns = () if reads_turns else values["steps"][step.name]["turns"]
        llm = Llm.model_construct(pools=choose.pools, messages=(), response_format=picks.schema(step.options))
        return await self._ask(step, llm, picks.messages(step, written, turns), call, about, None)

    async def _messages(
        self, written: Sequence[ChatMessage], values: Mapping[str, Any], about: About
    ) -> Sequence[Mapping[str, Any]]:
        found = [
            {"role": one.role.value, "content": await self.render(one.content, values, "messages")}
            for one in written
        ]
        if not found and not about.messages:
            raise StepErrored("messages: there are none, and the workflow was not called with any")
        return found or about.messages

    async def _ask(
        self,
        step: StepPlan,
        llm: Llm,
        messages: Sequence[Mapping[str, Any]],
        call: Call,
        about: About,
        live: OnText | None,
    ) -> Done:
        key = _key(about.run, call)
        only, seed = _asked_then(about, call)
        asking = Asking(
            f"{key}.{call.attempt}",
            _session(about.run, call),
            about.standing,
            about.caller,
            about.namespace,
            call.cheap,
            seed,
            only,
            about.spent,
        )

        async def fits(said: Said) -> None:
            wrong = await self.checker.wrong(llm.response_format, data_of(said.text), "answer")
            if wrong is not None:
                raise StepFailed(
                    f"responseFormat: {wrong}",
                    again=True,
                    prompt_tokens=said.prompt_tokens,
                    output_tokens=said.output_tokens,
                )

        said = await self.models.ask(step.name, llm, messages, asking, live, fits if llm.response_format else None)
        data = data_of(said.text)
        tokens = said.prompt_tokens + said.output_tokens
        output = Output(said.text, data, tokens, said.pool, seed)
        return Done(output, said.prompt_tokens, said.output_tokens, said)

    async def _http(self, http: Http, call: Call, values: Mapping[str, Any], about: About) -> Done:
        _require_no_replay(about)
        url = await self.render(http.url, values, "url")
        body = None if http.body is None else await self.render(http.body, values, "body")
        with _called(about.spent):
            text, data = await self.tools.call(http.method.value, url, body, _key(about.run, call), about.hosts)
        return Done(Output(text, data))

    async def _mcp(self, mcp: Mcp, call: Call, values: Mapping[str, Any], about: About) -> Done:
        _require_no_replay(about)
        server = await self.render(mcp.server, values, "server")
        arguments = await self._filled(dict(mcp.arguments or {}), values, "arguments")
        with _called(about.spent):
            text, data = await self.mcp.call(server, mcp.tool, arguments, _key(about.run, call), about.hosts)
        return Done(Output(text, data), told_apart=True)

    async def _filled(self, value: Any, values: Mapping[str, Any], field: str) -> Any:  # noqa: ANN401 - JSON
        """A structure with its texts rendered; one that only looks something up is what it finds."""
        if isinstance(value, str):
            try:
                return await self.renderer.value(value, values)
            except RenderError as error:
                raise StepErrored(f"{field}: {error}") from error
        if isinstance(value, Mapping):
            return {key: await self._filled(inner, values, f"{field}.{key}") for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [await self._filled(inner, values, f"{field}[{i}]") for i, inner in enumerate(value)]
        return value


@contextmanager
def _called(spent: Spent) -> Iterator[None]:
    began = monotonic()
    try:
        yield
    finally:
        spent.called(monotonic() - began)


def _asked_then(about: About, call: Call) -> tuple[str, int | None]:
    """The pool that is to answer, empty for the best one, and the seed."""
    seed = None if about.seed is None else seed_of(about.seed, call)
    return ("", seed) if about.replay is None else about.replay.asked.get(str(call.key), ("", seed))


def _require_no_replay(about: About) -> None:
    """What a tool answered then stands for its call, so whoever comes here calls what was not called then."""
    if about.replay is not None:
        raise StepErrored(
            f"{about.replay.of} did not make this call, so what it would be answered is not recorded"
        )


def _key(run: str, call: Call) -> str:
    """The same in every try of one unit of work, also by another gateway."""
    return f"{run}.{call.key.path}" if call.key.item is None else f"{run}.{call.key.path}.{call.key.item}"


def _session(run: str, call: Call) -> str:
    """Calls one after the other share a session, branches have one each, and so do the turns of a chooser."""
    owner = call.key.within[: max(call.key.within.rfind("."), call.key.within.rfind("#"), 0)]
    item = "" if call.key.item is None else f"[{call.key.item}]"
    return f"{run}{'.' if owner else ''}{owner}{item}"
