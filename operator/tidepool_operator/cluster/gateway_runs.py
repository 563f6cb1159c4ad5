"""What the operator asks the gateways of runs: any of them answers, for they share the store."""

import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import httpx
from pydantic import ValidationError

from tidepool_api import contract
from tidepool_api.workflow_run import OpenRun, OpenRuns, RunOrder, RunReport
from tidepool_operator.errors import OperatorError

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS: Final = 8.0  # the store's own bound is five
_TRIES: Final = 2
_JSON: Final = {"content-type": "application/json"}


class RunRefused(OperatorError):
    """No gateway does it; `code` is the gateway's own word, empty where none answered."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class GatewayRuns:
    """`addresses` are those of the gateways that serve; `proof` gives the headers that show who asks."""

    def __init__(
        self,
        addresses: Callable[[], Sequence[str]],
        control_port: int = contract.CONTROL_PORT,
        proof: Callable[[], Awaitable[Mapping[str, str]]] | None = None,
    ) -> None:
        self._addresses = addresses
        self._control_port = control_port
        self._proof = proof
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()

    async def put(self, uid: str, order: RunOrder) -> RunReport:
        """See that the run is there; how it stands. Raises RunRefused."""
        body = order.model_dump_json(by_alias=True, exclude_none=True).encode()
        answer = await self._ask("PUT", f"{contract.PATH_RUNS}/{uid}", body)
        try:
            return RunReport.model_validate_json(answer)
        except ValidationError as error:
            raise RunRefused("a gateway's answer cannot be read; is it of another release?") from error

    async def cancel(self, uid: str) -> None:
        """End the run. Raises RunRefused."""
        await self._ask("DELETE", f"{contract.PATH_RUNS}/{uid}")

    async def open(self) -> Sequence[OpenRun]:
        """Runs of objects that are not over. Raises RunRefused."""
        try:
            return OpenRuns.model_validate_json(await self._ask("GET", contract.PATH_RUNS)).runs
        except ValidationError as error:
            raise RunRefused("a gateway's answer cannot be read; is it of another release?") from error

    async def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False)
        refused = RunRefused("no gateway serves at the moment")
        headers = {**_JSON, **(await self._proof() if self._proof is not None else {})}
        for address in list(self._addresses())[:_TRIES]:
            host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
            url = f"http://{host}:{self._control_port}{path}"
            try:
                answer = await self._client.request(method, url, content=body, headers=headers)
            except httpx.HTTPError as error:
                refused = RunRefused(f"the gateway at {address} does not answer: {type(error).__name__}")
                continue
            if not answer.is_error:
                return answer.content
            refused = _refused(answer)
            if answer.status_code < 500:
                break
        raise refused


def _refused(answer: httpx.Response) -> RunRefused:
    try:
        told = answer.json()["error"]
        return RunRefused(str(told["message"])[:1024], str(told["code"])[:64])
    except (ValueError, LookupError, TypeError):
        return RunRefused(f"a gateway answered {answer.status_code}: {answer.text[:200].strip()}")
