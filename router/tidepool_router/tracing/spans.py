"""What spans a request's life makes. PURE: ids are handed in, times are those of the life.

Names and attributes are those of OpenTelemetry's semantic conventions for HTTP servers and for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/); what they have no word for is under `tidepool.`.
"""

from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

from tidepool_router.facts import Api
from tidepool_router.ledger import Outcome
from tidepool_router.tracing.life import Attempt, Life
from tidepool_router.tracing.prompts import input_messages

Kind = Literal["server", "client", "internal"]
Attributes = dict[str, str | int | float | bool]

_OPERATIONS: Final = {
    Api.CHAT: "chat",
    Api.RESPONSES: "chat",
    Api.MESSAGES: "chat",
    Api.COMPLETIONS: "text_completion",
    Api.EMBEDDINGS: "embeddings",
}
_GENERATES: Final = frozenset((Api.CHAT, Api.RESPONSES, Api.MESSAGES, Api.COMPLETIONS))


class Span(NamedTuple):
    """One span; times are seconds of the monotonic clock, `error` is its error.type."""

    name: str
    kind: Kind
    span_id: int
    parent_id: int | None
    began_at: float
    ended_at: float
    attributes: Attributes
    error: str = ""


class Trace(NamedTuple):
    """Spans that are no request's own: of runs of workflows."""

    trace_id: int
    spans: tuple[Span, ...]


# Phases before a request is sent, each a span of its own; the first step is that of pools with prefill pods.
_BEFORE: Final = ("queue", "first_step")


def spans_of(life: Life, new_id: Callable[[], int]) -> list[Span]:
    """The request's own span first, then its parts in the order of time."""
    root = life.span_id

    def part(name: str, began_at: float, ended_at: float, parent: int = root, **more: str | int) -> Span:
        attributes: Attributes = {f"tidepool.{key}": value for key, value in more.items() if value != ""}
        return Span(name, "internal", new_id(), parent, began_at, max(began_at, ended_at), attributes)

    spans = [_request(life), part("receive", life.arrived_at, life.started_at)]
    spans += [part(*phase) for phase in life.phases if phase.name in _BEFORE]
    spans += [_attempt(life, attempt) for attempt in life.attempts]
    if life.sent_at is None:
        return spans
    connects = [phase for phase in life.phases if phase.name == "connect" and phase.ended_at <= life.sent_at]
    asked_at = connects[-1].began_at if connects else life.sent_at
    if life.reason:
        picking_at = max([life.started_at, *(span.ended_at for span in spans[2:])])
        spans.append(part("pick", picking_at, asked_at, pod=life.pod, reason=life.reason))
    engine = life.engine_span_id
    spans.append(_engine(life, asked_at))
    spans += [part("connect", phase.began_at, phase.ended_at, engine) for phase in connects[-1:]]
    spans += [part(name, began, ended, engine) for name, began, ended in _work(life, life.sent_at)]
    if life.outcome is Outcome.OK:
        spans.append(part("respond", life.ended_at, life.written_at))
    return spans


def _work(life: Life, sent_at: float) -> Iterator[tuple[str, float, float]]:
    """What the engine did, as far as can be seen: an answer in one piece shows its first token only at its end."""
    facts, first = life.facts, life.first_token_at
    if facts is None or facts.api not in _GENERATES or (first is not None and not facts.stream):
        yield "generate", sent_at, life.ended_at
        return
    yield "prefill", sent_at, life.ended_at if first is None else first
    if first is not None:
        yield "decode", first, life.ended_at


def _request(life: Life) -> Span:
    attributes: Attributes = {
        "http.request.method": life.method,
        "url.path": life.path,
        "http.response.status_code": life.status,
        "client.address": life.client,
        "tidepool.request_id": life.request_id,
        "tidepool.outcome": life.outcome.value,
        "tidepool.pool": life.pool,
        "tidepool.pod": life.pod,
        "tidepool.pick_reason": life.reason,
    }
    if life.facts is not None:
        attributes["http.route"] = life.path
        attributes["gen_ai.operation.name"] = _operation(life.facts.api)
        attributes["gen_ai.request.model"] = life.facts.model
    if life.attempts:
        attributes["tidepool.failed_attempts"] = len(life.attempts)
    if life.queued_seconds:
        attributes["tidepool.queued_seconds"] = life.queued_seconds
    attributes = {name: value for name, value in attributes.items() if value != ""}
    name = f"{life.method} {life.path}" if life.facts is not None else life.method
    parent = None if life.parent is None else life.parent.span_id
    ended_at = max(life.ended_at, life.written_at)
    # By the conventions an answer of 4xx is no error of a server.
    error = life.error if life.status >= 500 else ""
    return Span(name, "server", life.span_id, parent, life.arrived_at, ended_at, attributes, error)


def _engine(life: Life, began_at: float) -> Span:
    attributes: Attributes = {"gen_ai.provider.name": "vllm", "http.response.status_code": life.status}
    if life.address is not None:
        attributes["server.address"], attributes["server.port"] = life.address
    facts, entry = life.facts, life.entry
    name = "ask"
    if facts is not None:
        operation = _operation(facts.api)
        name = f"{operation} {facts.model}"
        attributes["gen_ai.operation.name"] = operation
        attributes["gen_ai.request.model"] = facts.model
        attributes["gen_ai.request.stream"] = facts.stream
        if facts.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = facts.max_tokens
        if facts.choices != 1:
            attributes["gen_ai.request.choice.count"] = facts.choices
        if facts.session is not None:
            attributes["gen_ai.conversation.id"] = facts.session
        if life.prompt:
            attributes |= input_messages(facts.api, life.prompt)
    if entry is not None:
        attributes["gen_ai.usage.input_tokens"] = entry.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = entry.output_tokens
        attributes["gen_ai.usage.cache_read.input_tokens"] = entry.cached_tokens
        attributes["tidepool.tokens_counted_by_engine"] = entry.counted_by_engine
        attributes["tidepool.estimated_input_tokens"] = entry.estimate.prompt_tokens
        if entry.first_token_at is not None and life.sent_at is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = entry.first_token_at - life.sent_at
    error = "cancelled" if life.outcome is Outcome.CANCELLED else life.error if life.status >= 400 else ""
    return Span(name, "client", life.engine_span_id, life.span_id, began_at, life.ended_at, attributes, error)


def _attempt(life: Life, attempt: Attempt) -> Span:
    attributes: Attributes = {"gen_ai.provider.name": "vllm", "tidepool.pod": attempt.pod}
    name = "ask"
    if life.facts is not None:
        operation = _operation(life.facts.api)
        name = f"{operation} {life.facts.model}"
        attributes |= {"gen_ai.operation.name": operation, "gen_ai.request.model": life.facts.model}
    return Span(
        name,
        "client",
        attempt.span_id,
        life.span_id,
        attempt.began_at,
        attempt.ended_at,
        attributes,
        attempt.error,
    )


def _operation(api: Api) -> str:
    return _OPERATIONS.get(api, api.value)
