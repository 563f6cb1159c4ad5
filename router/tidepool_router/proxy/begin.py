"""What both roles do with a request before it has an exchange."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from tidepool_router.control import Response
from tidepool_router.errors import NotYet, Refusal, Refused
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.proxy.server import ServerConnection
from tidepool_router.proxy.services import Services
from tidepool_router.proxy.spool import StoredFeed
from tidepool_router.wire.body import inspect, rename_model, set_priority
from tidepool_router.wire.coding import opened
from tidepool_router.wire.errors import REASONS
from tidepool_router.wire.front import read_front, rename_front, set_front_priority, told_of
from tidepool_router.wire.guard import NameGuard
from tidepool_router.wire.headers import COLON, CRLF, DEADLINE, FACTS, PRIORITY, RUN, SESSION, TENANT
from tidepool_router.wire.messages import Request
from tidepool_router.wire.paths import Kind, Route, path_of
from tidepool_router.wire.pieces import BodyFeed

_DEADLINE: Final = re.compile(rb"[ \t]*([0-9]{1,9}(?:\.[0-9]{0,9})?)[ \t]*(ms|s|m|h)?[ \t]*")
_UNIT_SECONDS: Final = {b"ms": 0.001, b"s": 1.0, b"m": 60.0, b"h": 3600.0}
# The requests of vLLM's server that have the field `priority`; others are served as if it were 0.
_TELLS_PRIORITY: Final = frozenset(
    (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.EMBEDDINGS, Api.RERANK, Api.SCORE)
)
# What passes at once keeps the head that it came with, which the next router then need not parse.
_LEAST_SPENT_SECONDS: Final = 0.02
_CLAIMS: Final = frozenset((PRIORITY, TENANT, DEADLINE, RUN))
_RUN: Final = re.compile(rb"([0-9]{1,9});([0-9]{1,6}(?:\.[0-9]{1,3})?)")
_LONGEST_DEADLINE_SECONDS: Final = 86_400.0
# A name longer than this is another tenant's by its first characters: what a client sends must not fill memory.
_LONGEST_TENANT: Final = 128


def facts_of(request: Request, route: Route) -> RequestFacts:
    """Raises Refused (400) for a body that cannot be read."""
    body, feed = request.body, request.feed
    if feed is not None:
        if not isinstance(feed, StoredFeed):
            return _facts_of_front(request, feed, route)
        body = feed.read_all()
    special = request.special
    session = special.get(SESSION)
    coding = special.get(b"content-encoding")
    return inspect(
        route.api,
        route.path,
        body if coding is None else opened(body, coding),
        content_type=special.get(b"content-type", b""),
        session=None if session is None else session.decode("latin-1"),
    )


def _facts_of_front(request: Request, feed: BodyFeed, route: Route) -> RequestFacts:
    """What the front of a large body says; the model is "" where it names none. Raises NotYet."""
    special = request.special
    session = special.get(SESSION)
    length = special.get(b"content-length")
    found = None
    if b"content-encoding" not in special:
        found = read_front(
            route.api,
            route.path,
            request.body,
            0 if length is None else int(length),
            special.get(b"content-type", b""),
            None if session is None else session.decode("latin-1"),
        )
    if found is None:
        raise NotYet("the front of the body does not say enough")
    feed.model_at = found.model_at
    return found.facts


def tell_facts(request: Request, facts: RequestFacts, model: str) -> None:
    """Tell a sidecar what its request says at the end, so that it need not wait for that."""
    request.rewrite((FACTS,), [FACTS, COLON, told_of(facts, model), CRLF])


def prioritised(facts: RequestFacts, request: Request, priorities: Mapping[str, int]) -> RequestFacts:
    """The facts with what the request's headers say of its place in a queue: priority, tenant, deadline, run.

    An unknown name of a priority changes nothing, nor does a run that cannot be read. Raises Refused (400) for a
    deadline that cannot be read.
    """
    special = request.special
    name, tenant, deadline = special.get(PRIORITY), special.get(TENANT), special.get(DEADLINE)
    run = special.get(RUN)
    if name is None and tenant is None and deadline is None and run is None:
        return facts
    number = None if name is None else priorities.get(name.decode("latin-1"))
    return msgspec.structs.replace(
        facts,
        priority=facts.priority if number is None else number,
        tenant=facts.tenant if tenant is None else tenant[:_LONGEST_TENANT].decode("latin-1"),
        deadline_seconds=facts.deadline_seconds if deadline is None else _seconds(deadline),
        run=None if run is None else _run(run),
    )


def disbelieve(request: Request) -> None:
    """Take off what an unproven caller says of its place in a queue: a peer would believe it from us."""
    if not _CLAIMS.isdisjoint(request.special):
        request.rewrite(_CLAIMS, [])


def spend_deadline(request: Request, seconds: float, spent_seconds: float) -> None:
    """Tell whoever gets the request next what is left of its deadline; never nothing, which would be an error."""
    if spent_seconds < _LEAST_SPENT_SECONDS:
        return
    left = b"%.3f" % max(0.001, seconds - spent_seconds)
    request.rewrite((DEADLINE,), [DEADLINE, COLON, left, CRLF])


def _run(text: bytes) -> tuple[int, float] | None:
    match = _RUN.fullmatch(text.strip())
    return None if match is None else (int(match[1]), float(match[2]))


def _seconds(text: bytes) -> float:
    """A deadline's header: `30`, `2.5s` or `1500ms`; above zero and at most a day."""
    match = _DEADLINE.fullmatch(text)
    seconds = 0.0 if match is None else float(match[1]) * _UNIT_SECONDS[match[2] or b"s"]
    if not 0 < seconds <= _LONGEST_DEADLINE_SECONDS:
        message = (
            f"the header {DEADLINE.decode()} is {text[:40].decode('latin-1')!r} and must be a time until the "
            "end of the answer, above 0 and at most a day; write it like 30, 2.5s or 1500ms"
        )
        raise Refused(Refusal(400, "invalid_request_error", "invalid_deadline", message))
    return seconds


def tell_priority(request: Request, facts: RequestFacts) -> None:
    """Put the request's priority into its body, for an engine that schedules by it.

    vLLM serves the lower number first and takes 0 for what names none, so the number is ours with its sign turned.
    A client may put its own request back with a higher one, and not forward with a lower one.
    """
    if facts.api not in _TELLS_PRIORITY:
        return
    number, own = -facts.priority, facts.engine_priority
    if own is not None:
        number = max(number, own)
    if number == (own or 0):
        return
    feed = request.feed
    try:
        if isinstance(feed, StoredFeed):
            feed.replace(set_priority(feed.read_all(), number, named=own is not None))
        else:
            request.body = set_priority(request.body, number, named=own is not None)
    except ValueError as error:
        message = f"the priority cannot be put into the body ({error}); leave `priority` out of it"
        raise Refused(Refusal(400, "invalid_request_error", "invalid_json", message)) from error


def tell_front_priority(request: Request, feed: BodyFeed, facts: RequestFacts) -> None:
    """As `tell_priority`, where the front alone is there: what the client itself names is kept from the engine."""
    if facts.api not in _TELLS_PRIORITY:
        return
    feed.guard = NameGuard(b"priority")
    front = feed.guard.feed(request.body)
    feed.put_back(len(request.body) - len(front))
    number = -facts.priority if facts.engine_priority is None else max(-facts.priority, facts.engine_priority)
    request.body = set_front_priority(front, number) if number else front


def renamed(request: Request, model: str) -> bytes:
    """The body with the model's own name in place of an alias.

    Raises Refused: 400 when there is no place to put it, 415 when the body is compressed.
    """
    feed = request.feed
    if feed is not None and not isinstance(feed, StoredFeed):
        return rename_front(request.body, model, feed.model_at, request.special.get(b"content-type", b""))
    if b"content-encoding" in request.special:
        message = f"the alias cannot be replaced in a compressed body; ask for {model!r} itself, or send it plain"
        raise Refused(Refusal(415, "invalid_request_error", "unsupported_encoding", message))
    content_type = request.special.get(b"content-type", b"")
    try:
        if isinstance(feed, StoredFeed):
            feed.replace(rename_model(feed.read_all(), model, content_type))
            return b""
        return rename_model(request.body, model, content_type)
    except ValueError as error:
        message = f"the alias cannot be replaced in the body ({error}); ask for {model!r} itself"
        raise Refused(Refusal(400, "invalid_request_error", "invalid_json", message)) from error


def turn_away(request: Request, connection: ServerConnection, route: Route | None) -> None:
    """Answer what is not served; OPTIONS is told which methods are.

    Raises Refused that says why: the path is unknown, closed, or not with this method.
    """
    if request.method != b"OPTIONS" or route is None or route.kind is Kind.CLOSED:
        raise refuse_path(request, route)
    keep_alive = request.keep_alive and not connection.last_answer
    closing = b"" if keep_alive else b"connection: close\r\n"
    connection.write(b"HTTP/1.1 204 No Content\r\nallow: %b\r\n%b\r\n" % (b", ".join(_allowed(route)), closing))
    connection.finished(keep_alive=keep_alive)


def tell_of_refusal(services: Services, request: Request, connection: ServerConnection, refused: Refused) -> None:
    """Tell whoever watches of a request that was turned away before it had an exchange."""
    if services.sight is not None:
        arrived_at = connection.arriving_since
        services.sight.refused(request, connection.remote_address, arrived_at, refused.refusal)


def _allowed(route: Route) -> tuple[bytes, ...]:
    return (*route.methods, b"OPTIONS")


def refuse_path(request: Request, route: Route | None) -> Refused:
    """Why a path is not served: unknown, closed, or not with this method."""
    path = path_of(request.target).decode("latin-1")[:200]
    if route is None:
        message = (
            f"the path {path!r} is not served here; chats go to /v1/chat/completions, models are at /v1/models"
        )
        return Refused(Refusal(404, "invalid_request_error", "unknown_path", message))
    if route.kind is Kind.CLOSED:
        message = f"{path} is closed to clients: it is for those who run the engine, on ports of their own"
        return Refused(Refusal(403, "permission_error", "path_closed", message))
    takes = ", ".join(method.decode() for method in route.methods)
    message = f"{path} does not take {request.method.decode('latin-1')}; it takes {takes}"
    allow = b", ".join(_allowed(route)).decode()
    return Refused(Refusal(405, "invalid_request_error", "method_not_allowed", message, allow=allow))


def write_response(request: Request, connection: ServerConnection, answer: Response) -> None:
    """Write an answer that is known at once, and finish."""
    keep_alive = request.keep_alive and not connection.last_answer
    head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
        answer.status,
        REASONS.get(answer.status, b"Unknown"),
        answer.content_type.encode("latin-1"),
        len(answer.body),
        b"" if keep_alive else b"connection: close\r\n",
    )
    connection.write(head if request.method == b"HEAD" else head + answer.body)
    connection.finished(keep_alive=keep_alive)
