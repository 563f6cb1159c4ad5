"""Whom sidecars are to believe: the cluster's keys for service account tokens, and the accounts of the parts.

The API server publishes its keys to every service account (OpenID Connect discovery, KEP-1393). They are looked at
again and again: a cluster turns its keys over while both the old and the new one are published.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pydantic import ValidationError

from tidepool_api.trust import PublicKey, TrustedCallers, subject_of
from tidepool_operator.cluster.api import Api
from tidepool_operator.errors import ApiError
from tidepool_operator.settings import Settings

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 5.0
_FIRST_LOOK_SECONDS: Final = 10.0
_MOST_KEYS: Final = 64


class ClusterTrust:
    """`callers` is the newest state; `changed` is called when there is another one."""

    def __init__(self, api: Api, settings: Settings, changed: Callable[[], None]) -> None:
        self._api = api
        self._changed = changed
        self._refused = ""
        self._looked = asyncio.Event()
        account, gateway = settings.service_account, settings.gateway_service_account
        # Without keys yet: sidecars believe nobody until they are known.
        self.callers = TrustedCallers(
            gateways=(subject_of(settings.namespace, gateway),) if gateway else (),
            operators=(subject_of(settings.namespace, account),) if account else (),
        )

    async def look(self) -> None:
        """Look once. Raises ApiError, and ValueError for what cannot be understood."""
        about = await self._api.read("/.well-known/openid-configuration")
        published = await self._api.read("/openid/v1/jwks")
        try:
            keys = tuple(PublicKey.model_validate(key) for key in published["keys"][:_MOST_KEYS])
            found = self.callers.model_copy(
                update={"issuer": str(about["issuer"]), "keys": tuple(sorted(keys, key=lambda key: key.kid or ""))}
            )
        except (KeyError, TypeError, ValidationError) as error:
            raise ValueError(f"the API server's discovery document lacks something: {error!r}") from error
        if found != self.callers:
            self.callers = found
            log.info("sidecars are told %d keys of %s", len(found.keys), found.issuer)
            self._changed()

    async def looked(self) -> None:
        """Wait for the end of the first look, whatever came of it, but not for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LOOK_SECONDS):
                await self._looked.wait()

    async def run(self) -> None:
        """Look until cancelled; what was before stays while nothing can be read, and that is said once."""
        while True:
            try:
                await self.look()
            except (ApiError, ValueError) as error:
                if str(error) != self._refused:
                    self._refused = str(error)
                    log.warning(
                        "the cluster's keys cannot be read (%s): sidecars believe %s. The operator's account "
                        "needs the ClusterRole system:service-account-issuer-discovery; or switch trust off.",
                        error,
                        "those that they know" if self.callers.keys else "nobody's priority, tenant and deadline",
                    )
                self._looked.set()
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                self._refused = ""
                self._looked.set()
                await asyncio.sleep(_LOOK_SECONDS)
