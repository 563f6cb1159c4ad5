"""What a client's connection asks of whoever answers: the application, and then the request under way."""

from typing import TYPE_CHECKING, Protocol

from tidepool_router.proxy.services import Services
from tidepool_router.wire.messages import Request

if TYPE_CHECKING:
    from tidepool_router.proxy.server import ServerConnection


class ActiveExchange(Protocol):
    """One request that is being answered."""

    @property
    def holds_drain(self) -> bool:
        """Whether a drain waits for its end; streams of load reports have none."""

    def client_gone(self) -> None:
        """The client left: stop upstream, close the books, write nothing more."""

    def pause(self) -> None:
        """The client takes no more for now."""

    def resume(self) -> None:
        """The client takes bytes again."""

    def check(self, now: float) -> None:
        """Look at deadlines."""


class Application(Protocol):
    """What a server serves."""

    services: Services

    def begin(self, request: Request, connection: "ServerConnection") -> ActiveExchange | None:
        """Start to answer. None: the answer has been written and `finished` called.

        Raises Refused; NotYet for a request with a `feed`, which comes again when it is whole.
        """
