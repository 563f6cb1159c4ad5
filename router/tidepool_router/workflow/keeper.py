"""Keeps the leases of the runs that are driven here, and takes over those that nobody keeps."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Final

from tidepool_router.workflow.driver import Driver
from tidepool_router.workflow.journal import Claim, Journal, JournalError

MOST_ACTIVE: Final = 2000  # runs at one gateway
_TICKS_A_LEASE: Final = 3
_MOST_CLAIMED: Final = 25  # at a time, so that gateways share what one left behind, and for their memory
_CLAIM_MORE_SECONDS: Final = 0.2
KEPT_SECONDS: Final = 24 * 3600.0
_SWEEP_TICKS: Final = 60
# How soon a gateway hears that another was asked to cancel a run of its own.
_CANCEL_SECONDS: Final = 0.4

_log: Final = logging.getLogger("tidepool.workflow")


class Keeper:
    """`active`: what is driven here. `go_on` drives a run that was taken over."""

    def __init__(
        self,
        journal: Journal,
        owner: str,
        lease_seconds: float,
        active: Mapping[str, Driver],
        go_on: Callable[[Claim], Awaitable[None]],
    ) -> None:
        self._journal = journal
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._active = active
        self._go_on = go_on
        self._tasks: list[asyncio.Task[None]] = []
        # Until when other gateways' runs are left alone: their owners could not reach the store either.
        self._patient_until = 0.0

    def start(self) -> None:
        """Begin."""
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._keep()))
        if self._journal.shared:
            self._tasks.append(loop.create_task(self._hear_cancels()))

    def stop(self) -> None:
        """Keep and take over nothing from now on."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Stop, and wait until it has."""
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self) -> None:
        ticks = 0
        while True:
            more = False
            began = monotonic()
            try:
                await self._renew()
                if monotonic() >= self._patient_until:
                    more = await self._take_over()
                if ticks % _SWEEP_TICKS == 0:
                    await self._journal.forget(time.time() - KEPT_SECONDS)
            except JournalError as error:
                _log.warning("the store of workflow runs cannot be used", extra={"reason": str(error)})
                self._be_patient()
            except Exception:  # every run depends on its lease: nothing may end this
                _log.exception("keeping the runs failed; going on")
            if monotonic() - began > self._lease_seconds / 2:
                self._be_patient()
            ticks += 1
            await asyncio.sleep(_CLAIM_MORE_SECONDS if more else self._lease_seconds / _TICKS_A_LEASE)

    def _be_patient(self) -> None:
        """The store was away. Its clock went on, so that leases ran out whose owners live: let them come first."""
        self._patient_until = monotonic() + self._lease_seconds

    async def _renew(self) -> None:
        """Keep what is driven here, and let go of what another gateway has taken over meanwhile."""
        driven = dict(self._active)
        if not driven:
            return
        kept = await self._journal.renew(self._owner, list(driven), self._lease_seconds)
        for run, driver in driven.items():
            if run not in kept and not driver.run.finished:
                _log.warning("let go of a run that another gateway has taken over", extra={"run": run})
                driver.let_go()

    async def _take_over(self) -> bool:
        """Go on with what nobody keeps; True: there may be more."""
        room = max(0, min(_MOST_CLAIMED, MOST_ACTIVE - len(self._active)))
        claims = await self._journal.claim(self._owner, self._lease_seconds, room)
        for claim in claims:
            await self._go_on(claim)
        return 0 < room == len(claims)

    async def _hear_cancels(self) -> None:
        """Other gateways were asked to cancel what is driven here."""
        while True:
            await asyncio.sleep(_CANCEL_SECONDS)
            if not self._active:
                continue
            try:
                for run, reason in (await self._journal.cancels(self._owner)).items():
                    if (driver := self._active.get(run)) is not None:
                        driver.cancel(reason)
            except JournalError:
                continue  # who keeps the leases says so
            except Exception:  # a run that was cancelled must hear of it
                _log.exception("hearing of cancelled runs failed; going on")
