"""Leader election by a Lease: keeps the rules of `election` against the real object."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.election import (
    DURATION_SECONDS,
    RETRY_SECONDS,
    Election,
    Record,
    Step,
)
from tidepool_operator.cluster.kinds import LEASE, Object
from tidepool_operator.errors import ApiError, Conflict, NotFound, NotLeader

log = logging.getLogger(__name__)

_CALL_TIMEOUT_SECONDS: Final = 3.0


class Lease:
    """One candidate's hold on a Lease.

    `run` campaigns until it is cancelled; `fence` is for Api and stops every write of a process that does not
    lead. `api` must itself have an open fence.
    """

    def __init__(self, api: Api, namespace: str, name: str, identity: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._state = Election(identity)

    @property
    def leads(self) -> bool:
        """Whether this process leads at this moment."""
        return self._state.leads(_now())

    def fence(self) -> None:
        """Raise NotLeader unless this process leads."""
        if not self.leads:
            raise NotLeader("This replica does not hold the operator's Lease; the one that does will do the work.")

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Campaign; while leading have `lead` running, cancelled at once when the Lease is lost."""
        leading: asyncio.Future[None] | None = None
        try:
            while True:
                await self._try_once()
                if self.leads and leading is None:
                    log.info("leading", extra={"lease": self._name})
                    leading = asyncio.ensure_future(lead())
                elif leading is not None and (not self.leads or leading.done()):
                    await _end(leading)
                    leading = None
                await self._pause(leading)
        finally:
            if leading is not None:
                leading.cancel()
                await asyncio.gather(leading, return_exceptions=True)
            await self._release()

    async def _pause(self, leading: asyncio.Future[None] | None) -> None:
        if leading is None:
            await asyncio.sleep(RETRY_SECONDS)
        else:
            # An error in `lead` must end the leadership now, not at the next renewal.
            await asyncio.wait([leading], timeout=RETRY_SECONDS)

    async def _try_once(self) -> None:
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_SECONDS):
                await self._campaign()
        except (ApiError, TimeoutError) as error:
            log.warning("the operator's Lease could not be read or renewed: %s", error)

    async def _campaign(self) -> None:
        started = _now()
        if self._state.record is None or not self._state.leads(started):
            self._state = self._state.observed(await self._read(), started)
        step = self._state.step(started)
        if step is Step.WAIT:
            return
        try:
            written = await self._write(step)
        except Conflict:
            # Somebody was quicker. What they wrote is read next time; until then nobody leads here.
            self._state = self._state.observed(await self._read(), started)
            return
        self._state = self._state.renewed(_record(written), started)

    async def _read(self) -> Record | None:
        try:
            return _record(await self._api.get(LEASE, self._namespace, self._name))
        except NotFound:
            return None

    async def _write(self, step: Step) -> Object:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        known = self._state.record
        spec: Object = {
            "holderIdentity": self._state.me,
            "leaseDurationSeconds": int(DURATION_SECONDS),
            "renewTime": stamp,
        }
        if step is not Step.RENEW:
            spec["acquireTime"] = stamp
            spec["leaseTransitions"] = known.transitions + 1 if known else 0
        metadata: Object = {"name": self._name, "namespace": self._namespace}
        if known is None:
            body = {"apiVersion": LEASE.api_version, "kind": "Lease", "metadata": metadata, "spec": spec}
            return await self._api.create(LEASE, self._namespace, body)
        metadata["resourceVersion"] = known.version
        return await self._api.patch(LEASE, self._namespace, self._name, {"metadata": metadata, "spec": spec})

    async def _release(self) -> None:
        """Give the Lease up, so that the next replica need not wait for its end."""
        known = self._state.record
        if known is None or known.holder != self._state.me:
            return
        self._state = Election(self._state.me)
        body = {"metadata": {"resourceVersion": known.version}, "spec": {"holderIdentity": ""}}
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_SECONDS):
                await self._api.patch(LEASE, self._namespace, self._name, body)
        except (ApiError, TimeoutError) as error:
            log.warning("the operator's Lease could not be released, it ends by itself: %s", error)


async def _end(leading: asyncio.Future[None]) -> None:
    if leading.done():
        error = leading.exception()
        # An error in the leader's work is for the whole process to know; a write that the fence stopped is none.
        if error is not None and not _is_loss(error):
            raise error
        return
    log.warning("the operator's Lease is lost; every write stops here")
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


def _is_loss(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_loss(inner) for inner in error.exceptions)
    return isinstance(error, NotLeader)


def _record(item: Object) -> Record:
    spec = item.get("spec") or {}
    return Record(
        holder=spec.get("holderIdentity") or "",
        version=item["metadata"]["resourceVersion"],
        transitions=int(spec.get("leaseTransitions") or 0),
        duration_seconds=float(spec.get("leaseDurationSeconds") or DURATION_SECONDS),
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
