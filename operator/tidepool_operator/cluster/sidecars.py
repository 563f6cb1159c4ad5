"""Direct talk with the routers beside the engines: settings out, load reports in."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import aiohttp

from tidepool_api import contract
from tidepool_api.load import LoadReport
from tidepool_api.routing import SidecarSettings
from tidepool_operator.cluster.kinds import Object
from tidepool_operator.cluster.proof import OwnProof

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS: Final = 2.0
_AT_ONCE: Final = 32
_REMEMBERED: Final = 20_000
_TEXT_LIMIT: Final = 500


class Sidecars:
    """HTTP to sidecars, bounded in time and number. What a pod has taken is remembered by its router's container:
    a restarted router starts from its file again."""

    def __init__(
        self,
        control_port: int = contract.CONTROL_PORT,
        traffic_port: int = contract.TRAFFIC_PORT,
        proof_file: Path | None = None,
    ) -> None:
        self._proof = OwnProof(proof_file)
        self._control_port = control_port
        self._traffic_port = traffic_port
        self._taken: dict[str, str] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._made: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close its connections."""
        if self._made is not None:
            await self._made.close()

    async def push(self, settings: SidecarSettings, pods: Iterable[Object]) -> list[str]:
        """Give the settings to every pod that does not have them; names of pods that did not take them."""
        digest = settings.digest()
        waiting = [pod for pod in pods if (router := _router(pod)) and self._taken.get(router) != digest]
        if not waiting:
            return []
        body = settings.model_dump_json(by_alias=True).encode()
        headers = {"content-type": "application/json"} | await self._proof.headers()
        taken = await asyncio.gather(*(self._put(pod, body, digest, headers) for pod in waiting))
        return [pod["metadata"]["name"] for pod, done in zip(waiting, taken, strict=True) if not done]

    async def loads(self, pods: Iterable[Object]) -> dict[str, LoadReport]:
        """Load reports by pod name, of the pods that answer."""
        asked = [pod for pod in pods if _router(pod)]
        reports = await asyncio.gather(*(self._load(pod) for pod in asked))
        return {pod["metadata"]["name"]: report for pod, report in zip(asked, reports, strict=True) if report}

    def _client(self) -> aiohttp.ClientSession:
        """Made in the loop that it works in. aiohttp: a restarted operator tells thousands of pods, and a request
        costs it a third of what it costs httpx."""
        if self._made is None:
            # No keep-alive: settings are pushed rarely, and thousands of idle connections would stay open.
            connector = aiohttp.TCPConnector(limit=_AT_ONCE, force_close=True)
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
            self._made = aiohttp.ClientSession(
                connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._made

    async def _put(self, pod: Object, body: bytes, digest: str, headers: dict[str, str]) -> bool:
        router, address = _router(pod), pod["status"]["podIP"]
        url = f"http://{_host(address)}:{self._control_port}{contract.PATH_SETTINGS}"
        try:
            async with self._slots, self._client().put(url, data=body, headers=headers) as answer:
                status, text = answer.status, "" if answer.ok else (await answer.text())[:_TEXT_LIMIT]
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.info("settings did not reach pod %s: %r", pod["metadata"]["name"], error)
            return False
        if status >= 400:
            log.warning("pod %s refuses its settings: %s %s", pod["metadata"]["name"], status, text)
            return False
        if len(self._taken) >= _REMEMBERED:
            self._taken.clear()  # only costs a second push
        self._taken[router] = digest
        return True

    async def _load(self, pod: Object) -> LoadReport | None:
        url = f"http://{_host(pod['status']['podIP'])}:{self._traffic_port}{contract.PATH_LOAD}"
        try:
            async with self._slots, self._client().get(url) as answer:
                answer.raise_for_status()
                return LoadReport.decode(await answer.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.info("no load report from pod %s: %r", pod["metadata"]["name"], error)
            return None


def _router(pod: Object) -> str:
    """Identity of the running router of a pod that can be talked to; empty when there is none."""
    status = pod.get("status") or {}
    if not status.get("podIP") or status.get("phase") not in ("Pending", "Running"):
        return ""
    for entry in status.get("initContainerStatuses") or []:
        if entry["name"] == contract.ROUTER_CONTAINER and entry.get("started"):
            return f"{pod['metadata']['uid']}/{entry.get('containerID', '')}"
    return ""


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
