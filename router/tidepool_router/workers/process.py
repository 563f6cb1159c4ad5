"""One worker: a gateway process on the shared port, started again when it ends, killed when it falls silent."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

import httpx

from tidepool_api import contract
from tidepool_api.load import GatewayReport
from tidepool_router.errors import RouterError, SettingsError, UpstreamError
from tidepool_router.fleet.client import open_stream
from tidepool_router.fleet.endpoint import Endpoint

HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 30.0
# Its load stream has a heartbeat each second.
_SILENT_SECONDS: Final = 10.0
# They speak plain HTTP: nobody's certificates are read for it, which takes longer than the request.
_NOBODY: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 10.0
# A worker that lived so long has not failed by how it was started.
_SOUND_SECONDS: Final = 30.0
_BAD_SETTINGS: Final = 2  # as __main__ exits

_log: Final = logging.getLogger("tidepool.router")


class WorkerEnded(RouterError):
    """The process ended before it served."""


class Worker:
    """`heard` gets its reports, None when it has ended; `begun` is asked for the fleet that it starts with."""

    def __init__(
        self,
        number: int,
        arguments: Sequence[str],
        heard: Callable[[int, GatewayReport | None], None],
        begun: Callable[[], bytes | None],
    ) -> None:
        self.number = number
        self.restarts = 0
        self.control: Endpoint | None = None  # while it serves
        self.metrics: Endpoint | None = None
        self._arguments = arguments
        self._heard = heard
        self._begun = begun
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    async def start(self) -> None:
        """Start it and wait until it serves. Raises SettingsError or WorkerEnded."""
        told, tells = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tidepool_router", *self._arguments, "--worker-fd", str(tells),
                pass_fds=(tells,), start_new_session=True,  # a terminal's signal is the parent's to pass on
            )  # fmt: skip
        finally:
            os.close(tells)
        line = await self._first_line(told)
        if not line:
            status = await self._process.wait()
            if status == _BAD_SETTINGS:
                raise SettingsError("the workers cannot use the settings; their messages stand above")
            raise WorkerEnded(f"worker {self.number} ended with status {status} before it served")
        ports = json.loads(line)
        self.metrics = Endpoint.at(HOST, ports["metrics"])
        self.control = Endpoint.at(HOST, ports["control"])

    async def _first_line(self, told: int) -> bytes:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(told, "rb", 0)
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                return await reader.readline()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            return b""
        finally:
            transport.close()

    async def run(self) -> None:
        """Watch it, and start it again when it ends, until it was told to stop."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            began_at = monotonic()
            await self._watch()
            self.control = self.metrics = None
            self._heard(self.number, None)
            if self._stopping:
                return
            pause = _FIRST_PAUSE_SECONDS if monotonic() - began_at > _SOUND_SECONDS else pause
            while not self._stopping:
                self.restarts += 1
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                try:
                    await self.start()
                    if self._stopping:  # it was told to while this one was not there to hear
                        self.signal(signal.SIGTERM)
                    break
                except RouterError as error:
                    _log.error("a worker does not start", extra={"worker": self.number, "reason": str(error)})

    async def _watch(self) -> None:
        """Until the process has ended."""
        process = self._process
        if process is None:
            return
        listening = asyncio.ensure_future(self._listen())
        status = await process.wait()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        if not self._stopping:
            _log.error("a worker ended and is started again", extra={"worker": self.number, "status": status})

    async def _listen(self) -> None:
        """Pass its reports on; kill it when there are none for too long."""
        endpoint = self.control
        if endpoint is None:
            return
        try:
            fleet = self._begun()
            if fleet is not None:
                await self.put_fleet(fleet)
            stream = await open_stream(endpoint, contract.PATH_LOAD_STREAM, _SILENT_SECONDS)
            try:
                while True:
                    async with asyncio.timeout(_SILENT_SECONDS):
                        line = await stream.line()
                    if line is None:
                        break
                    self._heard(self.number, GatewayReport.decode(line))
            finally:
                stream.close()
        except (UpstreamError, TimeoutError, ValueError, httpx.HTTPError) as error:
            if not self._stopping:
                what = "a worker does not answer and is ended"
                _log.error(what, extra={"worker": self.number, "reason": repr(error)})
                self.signal(signal.SIGKILL)

    async def put_fleet(self, body: bytes) -> tuple[int, bytes]:
        """Status and text of its answer. Raises httpx.HTTPError."""
        return await self.ask("PUT", contract.PATH_FLEET, body)

    async def ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and text of its control port's answer. Raises httpx.HTTPError."""
        endpoint = self.control
        if endpoint is None:
            return 503, b"the worker is being started\n"
        async with httpx.AsyncClient(verify=_NOBODY, timeout=_SILENT_SECONDS, trust_env=False) as client:
            answer = await client.request(method, f"http://{endpoint.authority}{path}", content=body)
            return answer.status_code, answer.content

    def stop(self) -> None:
        """Let it drain and end, and do not start it again; the second call ends it at once."""
        self._stopping = True
        self.signal(signal.SIGTERM)

    async def close(self) -> None:
        """Kill it, if it lives."""
        self._stopping = True
        process = self._process
        if process is not None:
            self.signal(signal.SIGKILL)
            await process.wait()

    def signal(self, number: int) -> None:
        """Send it a signal, if it lives."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
