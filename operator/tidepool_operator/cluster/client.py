"""One request to the API server: access, TLS and tokens by the official client, its answer or our error.

The official package's aio flavour is used as the transport only; objects stay the dictionaries that the server
sent (docs/decisions/kubernetes-client.md says why).
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Final, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config as access
from kubernetes.aio.client import ApiClient, Configuration

from tidepool_operator.cluster.clock import ServerClock
from tidepool_operator.cluster.kinds import Object
from tidepool_operator.errors import (
    ApiError,
    ConfigurationError,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    TooManyRequests,
    Unavailable,
)

_TIMEOUT_SECONDS: Final = 15.0
_CONNECT_TIMEOUT_SECONDS: Final = 5.0
_CONNECTIONS: Final = 32
# Three more tries within some five seconds; whoever called has a queue with backoff behind it.
_ATTEMPTS: Final = 4
_BACKOFF_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 3.0
# A text of the API server goes into a status and an event; both have bounds.
_MESSAGE_LIMIT: Final = 2000
# A field that server-side apply does not know is answered with 500, although asking again cannot help.
_TYPED_PATCH_FAILED: Final = "failed to create typed patch object"
_ERRORS: Final[Mapping[int, type[ApiError]]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    405: Invalid,
    409: Conflict,
    410: Expired,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}


async def configuration(kubeconfig: str | None = None) -> Configuration:
    """Access from `kubeconfig`, else $KUBECONFIG, else the pod's service account, else ~/.kube/config.

    Raises ConfigurationError when none of them works.
    """
    made = Configuration()
    # Retries are ours: they know which requests may be sent twice and keep a budget.
    made.retries = None
    made.connection_pool_maxsize = _CONNECTIONS
    chosen = kubeconfig or os.environ.get("KUBECONFIG")
    try:
        if not chosen and "KUBERNETES_SERVICE_HOST" in os.environ:
            access.load_incluster_config(client_configuration=made)  # type: ignore[no-untyped-call]
        else:
            await access.load_kube_config(config_file=chosen, client_configuration=made)  # type: ignore[no-untyped-call]
    except (access.ConfigException, OSError, ValueError) as error:
        where = chosen or "the pod's service account or ~/.kube/config"
        raise ConfigurationError(
            f"No access to a Kubernetes API server from {where}: {error}. "
            "Set KUBECONFIG, or run in a pod with a service account."
        ) from error
    return made


class Client:
    """Requests with timeouts and a bounded number of tries. Close it, or use it as a context manager.

    `clock` is the API server's, kept by its answers; `local` is this machine's.
    """

    def __init__(
        self,
        made: Configuration,
        *,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        local: Callable[[], float] = time.time,
    ) -> None:
        self.clock = ServerClock(local)
        self._client = ApiClient(made)
        self._client.user_agent = "tidepool-operator"
        self._timeout = aiohttp.ClientTimeout(
            total=timeout_seconds, sock_connect=min(_CONNECT_TIMEOUT_SECONDS, timeout_seconds)
        )

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> Self:
        """A client by whatever access there is. Raises ConfigurationError."""
        return cls(await configuration(kubeconfig))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Object:
        """The decoded answer.

        Every request of the operator is idempotent (server-side apply, merge patches of absolute values, deletes,
        reads, creates under a fixed name), so all are tried again when no answer came. Raises ApiError.
        """
        text = await self._tried(method, path, query, body, content_type, accept)
        decoded: Object = json.loads(text) if text else {}
        return decoded

    async def text(self, path: str, *, query: Mapping[str, str] | None = None) -> str:
        """What a GET answers that is no JSON, such as a log. Raises ApiError."""
        return (await self.content(path, query=query)).decode(errors="replace")

    async def content(self, path: str, *, query: Mapping[str, str] | None = None, accept: str = "*/*") -> bytes:
        """What a GET answers, as it came. Raises ApiError."""
        return await self._tried("GET", path, query, None, "application/json", accept)

    async def _tried(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: object,
        content_type: str,
        accept: str,
    ) -> bytes:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._once(method, path, query, body, content_type, accept)
            except (TooManyRequests, Unavailable) as error:
                pause = _pause_seconds(error, attempt)
                if attempt == _ATTEMPTS or pause is None:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: object,
        content_type: str,
        accept: str,
    ) -> bytes:
        url = f"{self._client.configuration.host}{path}"
        if query:
            url = f"{url}?{urlencode(query)}"
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": self._client.user_agent}
        # Large lists are listed often; to unpack them costs more than the way inside a cluster.
        headers["Accept-Encoding"] = "identity"
        begun = self.clock.begin()
        try:
            # Re-reads a projected token's file once a minute, through the configuration's own hook.
            await self._client.update_params_for_auth(headers, [], ["BearerToken"], url, method, body)
            answer = await self._client.call_api(method, url, headers, body, _request_timeout=self._timeout)
            text: bytes = await answer.read()  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"{method} {path}: the API server did not answer: {reason}") from error
        self.clock.heard(answer.headers.get("Date"), begun)
        if answer.status >= 400:
            raise _error(answer.status, text, answer.headers.get("Retry-After"))
        return text


def _pause_seconds(error: ApiError, attempt: int) -> float | None:
    """None: the server asks for more patience than a try is worth here."""
    if isinstance(error, TooManyRequests) and error.retry_after_seconds is not None:
        asked = error.retry_after_seconds
        return asked if asked <= _LONGEST_PAUSE_SECONDS else None
    return float(_BACKOFF_SECONDS * 2 ** (attempt - 1) * random.uniform(0.75, 1.25))  # noqa: S311 - spreads load


def _error(status: int, text: bytes, retry_after: str | None) -> ApiError:
    message = _message(text)
    if message.startswith(_TYPED_PATCH_FAILED):
        return Invalid(message, status=status)
    if status == 429:
        seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
        return TooManyRequests(message, retry_after_seconds=seconds)
    return _ERRORS.get(status, Unavailable)(message, status=status)


def _message(text: bytes) -> str:
    """The API server's own words: the `message` of its Status, else the raw text."""
    try:
        decoded = json.loads(text)
    except ValueError:
        decoded = None
    if isinstance(decoded, dict) and decoded.get("message"):
        return str(decoded["message"])[:_MESSAGE_LIMIT]
    return text.decode(errors="replace")[:_MESSAGE_LIMIT]
