"""Who sends a request, by the service account token that comes with it. PURE: keys and the time are given.

A token is checked offline against the cluster's public keys, once: what came of it is remembered by the token's
bytes, so that a request costs one look into a dictionary. Prompts, tokens and their parts reach no message.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from tidepool_api import contract
from tidepool_api.trust import PublicKey, TrustedCallers

if TYPE_CHECKING:
    from jwt import PyJWK
    from jwt.types import Options

# What Kubernetes signs service account tokens with (RSA of 2048 bits, or an elliptic curve's key).
ALGORITHMS: Final = ("RS256", "ES256", "ES384", "ES512")
# Clocks of a cluster's nodes differ by less; it is what Kubernetes' own check grants.
_LEEWAY_SECONDS: Final = 10.0
_LONGEST_BYTES: Final = 8192
_MOST_REMEMBERED: Final = 1024
# A token that was not good is looked at again after so long: it may only have been too early.
_REFUSED_SECONDS: Final = 5.0


_SIGNATURE_ALONE: "Final[Options]" = {
    "verify_signature": True,
    "verify_aud": False,
    "verify_exp": False,
    "verify_iat": False,
    "verify_iss": False,
    "verify_jti": False,
    "verify_nbf": False,
    "verify_sub": False,
}


class Part(StrEnum):
    """Who can prove who it is."""

    GATEWAY = "gateway"
    PEER = "peer"
    OPERATOR = "operator"


class Fault(StrEnum):
    """Why a token proves nothing."""

    MALFORMED = "malformed"
    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    WRONG_ISSUER = "wrong_issuer"
    WRONG_AUDIENCE = "wrong_audience"
    EXPIRED = "expired"
    NOT_YET = "not_yet_valid"
    UNKNOWN_CALLER = "unknown_caller"


@dataclass(frozen=True, slots=True)
class Proof:
    """What a good token proves: the part that shows it, until when (Unix seconds)."""

    part: Part
    expires_at: float


class Verifier:
    """Checks tokens against one state of keys and accounts; makes a new one where these change."""

    def __init__(self, trusted: TrustedCallers) -> None:
        self._issuer = trusted.issuer
        self._keys = _loaded(trusted.keys)
        self._parts: dict[str, Part] = {}
        for part, subjects in (
            (Part.PEER, trusted.peers),
            (Part.GATEWAY, trusted.gateways),
            (Part.OPERATOR, trusted.operators),
        ):
            self._parts |= dict.fromkeys(subjects, part)

    @property
    def has_keys(self) -> bool:
        """Whether anything can be proved at all."""
        return bool(self._keys)

    def check(self, token: bytes, now: float) -> Proof | Fault:
        """What the token proves at `now` (Unix seconds), or why it does not."""
        if not self._keys:
            return Fault.UNKNOWN_KEY
        if len(token) > _LONGEST_BYTES:
            return Fault.MALFORMED
        claims = self._signed(token)
        return claims if isinstance(claims, Fault) else self._judge(claims, now)

    def _signed(self, token: bytes) -> dict[str, Any] | Fault:
        import jwt

        try:
            key = self._keys.get(str(jwt.get_unverified_header(token).get("kid") or ""))
            if key is None:
                return Fault.UNKNOWN_KEY
            # Signature and form only: the claims are judged below, by the time that the caller gives.
            claims: dict[str, Any] = jwt.decode(token, key, list(ALGORITHMS), _SIGNATURE_ALONE)
        except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError):
            return Fault.BAD_SIGNATURE
        except (jwt.PyJWTError, ValueError):
            return Fault.MALFORMED
        return claims

    def _judge(self, claims: dict[str, Any], now: float) -> Proof | Fault:
        audience, subject = claims.get("aud"), claims.get("sub")
        expires_at, begins_at = _number(claims.get("exp")), _number(claims.get("nbf", 0))
        if expires_at is None or begins_at is None or not isinstance(subject, str):
            return Fault.MALFORMED
        if claims.get("iss") != self._issuer:
            return Fault.WRONG_ISSUER
        if contract.PROOF_AUDIENCE not in (audience if isinstance(audience, list) else (audience,)):
            return Fault.WRONG_AUDIENCE
        if now >= expires_at + _LEEWAY_SECONDS:
            return Fault.EXPIRED
        if now < begins_at - _LEEWAY_SECONDS:
            return Fault.NOT_YET
        part = self._parts.get(subject)
        return Fault.UNKNOWN_CALLER if part is None else Proof(part, expires_at + _LEEWAY_SECONDS)


class Callers:
    """A verifier with a memory; `tell` hears of each token that had to be checked."""

    def __init__(self, trusted: TrustedCallers, tell: Callable[[Proof | Fault], None]) -> None:
        self.trusted = trusted
        self._verifier = Verifier(trusted)
        self._tell = tell
        self._known: dict[bytes, tuple[Part | None, float]] = {}

    @property
    def can_prove(self) -> bool:
        """Whether any token can be good."""
        return self._verifier.has_keys

    def part_of(self, token: bytes | None, now: float) -> Part | None:
        """Whoever shows the token; None: nobody that is to be believed. `now` in Unix seconds."""
        if token is None:
            return None
        known = self._known.get(token)
        if known is None or now >= known[1]:
            known = self._look(token, now)
        return known[0]

    def _look(self, token: bytes, now: float) -> tuple[Part | None, float]:
        found = self._verifier.check(token, now)
        self._tell(found)
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()  # only costs that the good ones are checked again
        known = (None, now + _REFUSED_SECONDS) if isinstance(found, Fault) else (found.part, found.expires_at)
        if len(token) <= _LONGEST_BYTES:
            self._known[token] = known
        return known


def _loaded(keys: tuple[PublicKey, ...]) -> "dict[str, PyJWK]":
    """By their ids; a key of a kind that is not known here is left out, and its tokens prove nothing."""
    if not keys:
        return {}
    import jwt

    made = {}
    for key in keys:
        try:
            made[key.kid or ""] = jwt.PyJWK(key.model_dump(exclude_none=True))
        except (jwt.PyJWTError, KeyError, TypeError, ValueError):
            continue
    return made


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
