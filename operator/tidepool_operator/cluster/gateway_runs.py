"""What the operator asks the gateways of runs: any of them answers, for they share the store."""

import asyncio
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from tidepool_api import contract
from tidepool_api.workflow_run import (
    AllTotals,
    OpenRun,
    OpenRuns,
    RunList,
    RunOrder,
    RunReport,
    RunStory,
    RunSummary,
    RunTotals,
)
from tidepool_operator.cluster.http import plain_client
from tidepool_operator.errors import OperatorError

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS: Final = 8.0  # the store's own bound is five
_TRIES: Final = 2
_MOST_LOOKED_AT: Final = 8  # gateways: without a store that they share, each knows its own runs alone
# Whoever looks names it: nothing in it may lead to another path, where the operator's proof opens more.
_RUN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
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
        return _read(RunReport, answer)

    async def cancel(self, uid: str) -> None:
        """End the run. Raises RunRefused."""
        await self._ask("DELETE", f"{contract.PATH_RUNS}/{uid}")

    async def open(self) -> Sequence[OpenRun]:
        """Runs of objects that are not over. Raises RunRefused."""
        return _read(OpenRuns, await self._ask("GET", contract.PATH_RUNS)).runs

    async def of(self, workflow: str) -> Sequence[RunSummary]:
        """Runs of a workflow ("namespace/name") by any gateway, the newest first. Raises RunRefused."""
        found: dict[str, RunSummary] = {}
        for answer in await self._looks(f"{contract.PATH_RUNS_OF}/{workflow}"):
            found |= {one.id: one for one in _read(RunList, answer).runs}
        return sorted(found.values(), key=lambda one: -one.created)

    async def totals(self) -> Mapping[str, RunTotals]:
        """Runs of every workflow that has some ("namespace/name"), counted. Raises RunRefused."""
        found = _read(AllTotals, await self._ask("GET", contract.PATH_RUNS_TOTALS))
        return {one.workflow: one for one in found.workflows}

    async def told(self, run: str) -> RunStory:
        """One run, as the gateway tells it that remembers most. Raises RunRefused."""
        if not _RUN.fullmatch(run):
            raise RunRefused("that is no run's id", "run_not_found")
        stories = [_read(RunStory, one) for one in await self._looks(f"{contract.PATH_RUNS_TOLD}/{run}")]
        return max(stories, key=lambda story: len(story.events))

    async def _looks(self, path: str) -> Sequence[bytes]:
        """What the gateways answer that do, one at least. Raises RunRefused."""
        addresses = list(self._addresses())[:_MOST_LOOKED_AT]
        answers = await asyncio.gather(
            *(self._sent(one, "GET", path) for one in addresses), return_exceptions=True
        )
        refused: BaseException = RunRefused("no gateway serves at the moment")
        found = []
        for answer in answers:
            if isinstance(answer, httpx.Response) and not answer.is_error:
                found.append(answer.content)
            else:
                refused = _refused(answer) if isinstance(answer, httpx.Response) else answer
        if not found:
            raise refused
        return found

    async def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        refused = RunRefused("no gateway serves at the moment")
        for address in list(self._addresses())[:_TRIES]:
            try:
                answer = await self._sent(address, method, path, body)
            except RunRefused as error:
                refused = error
                continue
            if not answer.is_error:
                return answer.content
            refused = _refused(answer)
            if answer.status_code < 500:
                break
        raise refused

    async def _sent(self, address: str, method: str, path: str, body: bytes = b"") -> httpx.Response:
        if self._client is None:
            self._client = plain_client(_TIMEOUT_SECONDS)
        headers = {**_JSON, **(await self._proof() if self._proof is not None else {})}
        host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
        url = f"http://{host}:{self._control_port}{path}"
        try:
            return await self._client.request(method, url, content=body, headers=headers)
        except httpx.HTTPError as error:
            raise RunRefused(f"the gateway at {address} does not answer: {type(error).__name__}") from error


_Read = TypeVar("_Read", bound=BaseModel)


def _read(kind: type[_Read], answer: bytes) -> _Read:
    try:
        return kind.model_validate_json(answer)
    except ValidationError as error:
        raise RunRefused("a gateway's answer cannot be read; is it of another release?") from error


def _refused(answer: httpx.Response) -> RunRefused:
    try:
        told = answer.json()["error"]
        return RunRefused(str(told["message"])[:1024], str(told["code"])[:64])
    except (ValueError, LookupError, TypeError):
        return RunRefused(f"a gateway answered {answer.status_code}: {answer.text[:200].strip()}")
