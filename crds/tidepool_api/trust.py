"""Whom a sidecar believes: the cluster's public keys, and the service accounts of those who may prove themselves.

Public keys only: no secret is ever part of it. Read leniently, as all that routers of other releases write.
"""

from typing import Annotated

from pydantic import Field

from tidepool_api.kube import Document

# "system:serviceaccount:NAMESPACE:NAME", as the subject of a service account's token has it.
Subject = Annotated[str, Field(min_length=1, max_length=512)]
_Text = Annotated[str, Field(max_length=4096)]


class PublicKey(Document):
    """A public key as RFC 7517 writes it; RSA has `n` and `e`, an elliptic curve `crv`, `x` and `y`."""

    kty: _Text
    kid: _Text | None = None
    alg: _Text | None = None
    n: _Text | None = None
    e: _Text | None = None
    crv: _Text | None = None
    x: _Text | None = None
    y: _Text | None = None


class TrustedCallers(Document):
    """Whose word counts at a sidecar.

    A caller's proof is a service account's token for the audience `contract.PROOF_AUDIENCE` that `issuer` has
    signed with one of `keys`. Without keys nobody can prove anything, and so nobody is believed.
    """

    issuer: _Text = ""
    keys: tuple[PublicKey, ...] = Field(default=(), max_length=64)
    gateways: tuple[Subject, ...] = Field(default=(), max_length=64)
    peers: tuple[Subject, ...] = Field(default=(), max_length=64)
    operators: tuple[Subject, ...] = Field(default=(), max_length=64)


def subject_of(namespace: str, account: str) -> str:
    """How a token names a service account."""
    return f"system:serviceaccount:{namespace}:{account}"
