"""A cluster that signs tokens for service accounts, as its API server does."""

import json
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from jwt.algorithms import ECAlgorithm

from tidepool_api.trust import PublicKey, TrustedCallers, subject_of

ISSUER = "https://kubernetes.default.svc.cluster.local"
GATEWAY = subject_of("tidepool", "gateway")
PEER = subject_of("default", "pool")
OPERATOR = subject_of("tidepool", "operator")


@cache
def key_of(kid: str) -> EllipticCurvePrivateKey:
    """The cluster's private key of this id; made once."""
    return generate_private_key(SECP256R1())


def published(kid: str) -> PublicKey:
    """The public half."""
    document = json.loads(ECAlgorithm.to_jwk(key_of(kid).public_key()))
    return PublicKey.model_validate(document | {"kid": kid, "alg": "ES256", "use": "sig"})


def token(
    subject: str = GATEWAY, *, kid: str = "one", signed_by: str = "", now: float = 0.0, **claims: Any
) -> bytes:
    """A projected token; a claim of None is left out. `signed_by` is the key that really signs."""
    said: dict[str, Any] = {
        "iss": ISSUER,
        "sub": subject,
        "aud": ["tidepool"],
        "iat": int(now),
        "nbf": int(now),
        "exp": int(now) + 3600,
        "kubernetes.io": {"namespace": subject.split(":")[2]},
    } | claims
    said = {name: value for name, value in said.items() if value is not None}
    return jwt.encode(said, key_of(signed_by or kid), "ES256", headers={"kid": kid}).encode()


def trust(*kids: str) -> TrustedCallers:
    """Whom a sidecar of the pool `pool` believes while these keys are published."""
    return TrustedCallers(
        issuer=ISSUER,
        keys=tuple(published(kid) for kid in kids or ("one",)),
        gateways=(GATEWAY,),
        peers=(PEER,),
        operators=(OPERATOR,),
    )


def line(proof: bytes) -> bytes:
    """The header line that carries a proof."""
    return b"x-tidepool-proof: %b\r\n" % proof
