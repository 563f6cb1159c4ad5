"""What both roles do with a request before it has an exchange."""

from collections.abc import Mapping

import msgspec

from tidepool_router.control import Response
from tidepool_router.errors import Refusal, Refused
from tidepool_router.facts import RequestFacts
from tidepool_router.proxy.server import ServerConnection
from tidepool_router.wire.body import inspect, rename_model
from tidepool_router.wire.errors import REASONS
from tidepool_router.wire.messages import PRIORITY, SESSION, Request
from tidepool_router.wire.paths import Kind, Route, path_of


def facts_of(request: Request, route: Route) -> RequestFacts:
    """Raises Refused (400) for a body that cannot be read."""
    special = request.special
    session = special.get(SESSION)
    return inspect(
        route.api,
        route.path,
        request.body,
        content_type=special.get(b"content-type", b""),
        session=None if session is None else session.decode("latin-1"),
    )


def prioritised(facts: RequestFacts, request: Request, priorities: Mapping[str, int]) -> RequestFacts:
    """The facts with the number of the priority that the request names; an unknown name changes nothing."""
    name = request.special.get(PRIORITY)
    number = None if name is None else priorities.get(name.decode("latin-1"))
    return facts if number is None else msgspec.structs.replace(facts, priority=number)


def renamed(request: Request, model: str) -> bytes:
    """The body with the model's own name in place of an alias.

    Raises Refused (400) when there is no place to put it.
    """
    try:
        return rename_model(request.body, model, request.special.get(b"content-type", b""))
    except ValueError as error:
        message = f"the alias cannot be replaced in the body ({error}); ask for {model!r} itself"
        raise Refused(Refusal(400, "invalid_request_error", "invalid_json", message)) from error


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
    return Refused(Refusal(405, "invalid_request_error", "method_not_allowed", message))


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
