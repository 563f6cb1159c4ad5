"""The door of a gateway's control port, wired: whom it believes from a mounted file, its checks into metrics."""

import asyncio
from pathlib import Path
from typing import Any

from tidepool_api import contract
from tidepool_router.door import Door, Writer
from tidepool_router.fleet.filewatch import TrustFile, WatchedFile
from tidepool_router.metrics import Children, Registry, Value
from tidepool_router.proofs import Fault, Part, Proof
from tidepool_router.proxy.services import Services
from tidepool_router.settings import Options


async def open_door(options: Options, registry: Registry, services: Services) -> Door:
    """Raises SettingsError for a trust file that cannot be read."""
    if options.fleet_writer is not Writer.OPERATOR or options.trust_file is None:
        return Door(options.fleet_writer)
    family = registry.counter(
        contract.METRIC_PROOFS, "Callers' tokens that were checked, by who it was or what is wrong.", "outcome"
    )
    counts: Children[Part | Fault, Value] = Children(lambda outcome: family.labels(outcome.value))

    def tell(found: Proof | Fault) -> None:
        counts[found if isinstance(found, Fault) else found.part].inc()

    door = Door(options.fleet_writer, tell)
    await follow(TrustFile(options.trust_file, door.believe), options.trust_file, services)
    return door


async def follow(file: WatchedFile[Any], path: Path, services: Services) -> None:
    """Load a file that may not be there yet, and each change of it."""
    if await asyncio.to_thread(path.exists):
        await file.load()
    services.spawn(file.run())
