"""LLM steps: which pool answers, the request to it, and its answer, whole or live."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidepool_api import contract
from tidepool_api.workflow_steps import Llm, PoolChoice
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.workflow.failures import StepFailed
from tidepool_router.workflow.inprocess import AnswerBroke, InProcess

_CHAT: Final = "/v1/chat/completions"
_AGAIN: Final = frozenset((408, 425, 429))
# Answers after which another candidate is asked, within the same try.
_NEXT_POOL: Final = frozenset((404, 408, 429, 500, 502, 503, 504))

OnText = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Said:
    """What a model said, and what it took."""

    text: str
    prompt_tokens: int
    output_tokens: int
    pool: str


@dataclass(frozen=True, slots=True)
class Asking:
    """What goes with a request of a run: `session` keeps its calls on the pods that know its prompts."""

    request_id: str
    session: str
    seconds_left: float
    caller: Mapping[str, str]
    namespace: str
    cheap: bool = False


class Models:
    """Asks the pools of this gateway."""

    def __init__(self, client: InProcess, fleet: GatewayFleet) -> None:
        self._client = client
        self._fleet = fleet

    async def ask(
        self, step: str, llm: Llm, messages: Sequence[Mapping[str, Any]], asking: Asking, live: OnText | None
    ) -> Said:
        """The answer of the best candidate that gives one; `live` gets its text as it comes. Raises StepFailed."""
        failure: StepFailed | None = None
        for choice in ordered(llm.pools, cheap=asking.cheap):
            name = f"{asking.namespace}/{choice.name}" if asking.namespace else choice.name
            model = self._model_of(name)
            if model is None:
                failure = failure or StepFailed(f"there is no pool {choice.name!r} at this gateway", again=True)
                continue
            try:
                return await self._ask(
                    _body(model, step, llm, messages, stream=live is not None), asking, live, name
                )
            except _NextPool as error:
                failure = error.failure
        assert failure is not None  # noqa: S101 - there is a candidate at least
        raise failure

    def _model_of(self, pool: str) -> str | None:
        """A name that leads to this pool and no other."""
        state = self._fleet.pools.get(pool)
        if state is None:
            return None
        return next((name for name in state.config.models if self._fleet.route(name) is state), None)

    async def _ask(self, body: bytes, asking: Asking, live: OnText | None, pool: str) -> Said:
        headers = {
            "content-type": "application/json",
            contract.HEADER_REQUEST_ID: asking.request_id,
            contract.HEADER_SESSION: asking.session,
            contract.HEADER_DEADLINE: f"{max(0.05, asking.seconds_left):.3f}s",
            **asking.caller,
        }
        reader = None if live is None else LiveAnswer(live)
        try:
            status, answer = await self._client.post(_CHAT, headers, body, None if reader is None else reader.feed)
        except AnswerBroke as error:
            tokens = (0, 0) if reader is None else reader.tokens
            again = reader is None or not reader.began
            raise StepFailed(
                f"{pool}: {error}", again=again, prompt_tokens=tokens[0], output_tokens=tokens[1]
            ) from error
        if status != 200:
            failure = StepFailed(
                f"{pool} answered {status}: {_words(answer)}", again=status >= 500 or status in _AGAIN
            )
            raise _NextPool(failure) if status in _NEXT_POOL else failure
        return _whole(answer, pool) if reader is None else reader.said(pool)


class _NextPool(Exception):
    def __init__(self, failure: StepFailed) -> None:
        super().__init__()
        self.failure = failure


def ordered(pools: Iterable[PoolChoice], *, cheap: bool) -> list[PoolChoice]:
    """Candidates, the best first; where the budget is spent the cheapest, which is that of least quality."""
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
        self.tokens = (0, 0)

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
        return Said("".join(self._parts), prompt, output, pool)

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
        for choice in chunk.get("choices") or ():
            text = (choice.get("delta") or {}).get("content")
            if text:
                self._parts.append(text)
                self._on_text(text)


def _body(model: str, step: str, llm: Llm, messages: Sequence[Mapping[str, Any]], *, stream: bool) -> bytes:
    body: dict[str, Any] = {"model": model, "messages": list(messages)}
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
        return Said(text, *_tokens(read.get("usage") or {}), pool)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StepFailed(f"{pool} answered what is no chat completion", again=True) from error


def _tokens(usage: Mapping[str, Any]) -> tuple[int, int]:
    return int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)


def _words(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"]["message"])[:300]
    except (ValueError, LookupError, TypeError):
        return answer[:300].decode("utf-8", "replace")
