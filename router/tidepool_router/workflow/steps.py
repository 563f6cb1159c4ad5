"""One try of one unit of work: its templates rendered, its call made, its answer checked."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import jsonschema

from tidepool_api.workflow_steps import Http, Llm
from tidepool_router.workflow.core.plan import StepPlan
from tidepool_router.workflow.core.states import Call, Output
from tidepool_router.workflow.failures import StepErrored, StepFailed
from tidepool_router.workflow.models import Asking, Models, OnText
from tidepool_router.workflow.rendering import Renderer, RenderError
from tidepool_router.workflow.tools import Tools

_MOST_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class Skipped:
    """`when` came out false."""

    when: str


@dataclass(frozen=True, slots=True)
class Done:
    """A try that succeeded."""

    output: Output
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class About:
    """What a step knows of its run. `messages` are those that the workflow was called with."""

    run: str
    namespace: str
    messages: Sequence[Mapping[str, Any]]
    caller: Mapping[str, str]
    hosts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Performer:
    """Makes tries, for all runs of a process."""

    models: Models
    tools: Tools
    renderer: Renderer

    async def perform(
        self, step: StepPlan, call: Call, values: Mapping[str, Any], about: About, live: OnText | None
    ) -> Done | Skipped:
        """One try. Raises StepFailed."""
        if step.fans_out:
            values = {**values, "item": call.value}
        if step.step.when is not None:
            came_out = (await self.render(step.step.when, values, "when")).strip()
            if came_out.lower() != "true":
                return Skipped(f"when came out {came_out[:80]!r}")
        if step.step.llm is not None:
            return await self._llm(step, step.step.llm, call, values, about, live)
        if step.step.http is not None:
            return await self._http(step.step.http, call, values, about)
        raise StepErrored(f"{step.kind} steps cannot be run by this gateway")  # the review refuses them before

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
        messages: Sequence[Mapping[str, Any]] = about.messages
        if llm.messages:
            messages = [
                {"role": one.role.value, "content": await self.render(one.content, values, "messages")}
                for one in llm.messages
            ]
        if not messages:
            raise StepErrored("messages: there are none, and the workflow was not called with any")
        key = _key(about.run, call)
        asking = Asking(
            f"{key}.{call.attempt}", about.run, call.until - monotonic(), about.caller, about.namespace, call.cheap
        )
        said = await self.models.ask(step.name, llm, messages, asking, live)
        data = _json(said.text)
        if llm.response_format is not None:
            _check(llm.response_format, data, said.prompt_tokens, said.output_tokens)
        tokens = said.prompt_tokens + said.output_tokens
        return Done(Output(said.text, data, tokens), said.prompt_tokens, said.output_tokens)

    async def _http(self, http: Http, call: Call, values: Mapping[str, Any], about: About) -> Done:
        url = await self.render(http.url, values, "url")
        body = None if http.body is None else await self.render(http.body, values, "body")
        text, data = await self.tools.call(http.method.value, url, body, _key(about.run, call), about.hosts)
        return Done(Output(text, data))


def wrong_input(schema: Mapping[str, Any] | None, value: object) -> str | None:
    """What is wrong with the input of a run, with its place; None: nothing."""
    return None if schema is None else _wrong(schema, value, "input")


def _key(run: str, call: Call) -> str:
    """The same in every try of one unit of work, also by another gateway."""
    return f"{run}.{call.key.step}" if call.key.item is None else f"{run}.{call.key.step}.{call.key.item}"


def _check(schema: Mapping[str, Any], data: object, prompt_tokens: int, output_tokens: int) -> None:
    wrong = _wrong(schema, data, "answer")
    if wrong is not None:
        raise StepFailed(
            f"responseFormat: {wrong}", again=True, prompt_tokens=prompt_tokens, output_tokens=output_tokens
        )


def _wrong(schema: Mapping[str, Any], value: object, name: str) -> str | None:
    try:
        error = next(iter(jsonschema.Draft202012Validator(schema).iter_errors(value)), None)
    except (jsonschema.SchemaError, jsonschema.exceptions._WrappedReferencingError, RecursionError) as broken:  # noqa: SLF001
        return f"cannot be checked against its schema: {type(broken).__name__}"
    if error is None:
        return None
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    return f"{name}{place}: {error.message[:_MOST_SHOWN]}"


def _json(text: str) -> Any:  # noqa: ANN401 - JSON
    stripped = text.strip()
    if stripped[:1] not in ("{", "["):
        return None
    try:
        return json.loads(stripped)
    except (ValueError, RecursionError):
        return None
