"""All keys of a gateway: who has presented what, in time that says nothing about the digests."""

import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tidepool_router.errors import Refusal, Refused
from tidepool_router.keys.document import ApiKey
from tidepool_router.keys.form import id_of
from tidepool_router.keys.grant import Grant
from tidepool_router.wire.headers import API_KEY, AUTHORIZATION

_BEARER: Final = b"bearer "
_NOBODY: Final = bytes(32)
_MISSING: Final = Refusal(
    401,
    "authentication_error",
    "missing_api_key",
    "this gateway asks for an API key: send it as `Authorization: Bearer KEY`, or as `x-api-key: KEY`",
)
_UNKNOWN: Final = Refusal(
    401,
    "authentication_error",
    "invalid_api_key",
    "the API key is not known here; check that it is whole, or ask those who run this gateway for another",
)


class KeyRing:
    """Level-triggered: `apply` makes the keys those of the document; limits of those that stay are not reset."""

    def __init__(self) -> None:
        self.refused: dict[str, int] = {"missing": 0, "unknown": 0}
        self._grants: dict[str, Grant] = {}
        self._gateways = 1

    def apply(self, keys: Sequence[ApiKey], now: float) -> None:
        """Take the keys of a document."""
        known = self._grants
        self._grants = {}
        for key in keys:
            grant = known.get(key.id)
            if grant is None or grant.key.sha256 != key.sha256:
                grant = Grant(key, self._gateways, now)
            else:
                grant.update(key, self._gateways, now)
            self._grants[key.id] = grant

    def divide(self, gateways: int, now: float) -> None:
        """So many gateways share the limits from now on."""
        if gateways == self._gateways or gateways < 1:
            return
        self._gateways = gateways
        for grant in self._grants.values():
            grant.update(grant.key, gateways, now)

    def grant_of(self, headers: Mapping[bytes, bytes]) -> Grant:
        """The grant of the key that the headers present.

        Raises Refused (401) for none and for a wrong one. A wrong secret and an unknown id take the same steps.
        """
        value = headers.get(AUTHORIZATION)
        if value is not None and value[:7].lower() == _BEARER:
            presented = value[7:].strip()
        else:
            presented = headers.get(API_KEY, b"")
        if not presented:
            self.refused["missing"] += 1
            raise Refused(_MISSING)
        claimed = id_of(presented)
        grant = None if claimed is None else self._grants.get(claimed)
        digest = hashlib.sha256(presented).digest()
        if not hmac.compare_digest(digest, _NOBODY if grant is None else grant.digest) or grant is None:
            self.refused["unknown"] += 1
            raise Refused(_UNKNOWN)
        return grant

    def __iter__(self) -> Iterator[Grant]:
        return iter(self._grants.values())

    def __len__(self) -> int:
        return len(self._grants)
