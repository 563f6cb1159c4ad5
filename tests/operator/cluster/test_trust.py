"""Whom the operator tells sidecars to believe: from what the API server publishes, and from a real one."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest

from pools.live import Live
from tidepool_api.trust import PublicKey, TrustedCallers, subject_of
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.trust import ClusterTrust
from tidepool_operator.errors import Forbidden
from tidepool_operator.settings import Settings
from tidepool_router.proofs import Fault, Part, Proof, Verifier

ABOUT = "/.well-known/openid-configuration"
KEYS = "/openid/v1/jwks"
SETTINGS = Settings("tidepool", "me", service_account="operator", gateway_service_account="gateway")


class Published:
    """An API server's discovery documents; what is not there may not be read."""

    def __init__(self, pages: Mapping[str, Any]) -> None:
        self.pages = dict(pages)

    async def read(self, path: str) -> Any:
        if path not in self.pages:
            raise Forbidden("may not", status=403)
        return self.pages[path]


def trust_of(pages: Mapping[str, Any], changes: list[TrustedCallers]) -> ClusterTrust:
    made: list[ClusterTrust] = []
    made.append(ClusterTrust(Published(pages), SETTINGS, lambda: changes.append(made[0].callers)))  # type: ignore[arg-type]
    return made[0]


def keys(*kids: str) -> dict[str, Any]:
    return {"keys": [{"kty": "RSA", "kid": kid, "n": "AQ", "e": "AQAB", "use": "sig"} for kid in kids]}


async def test_what_is_published_is_told_once_and_each_change_of_it() -> None:
    changes: list[TrustedCallers] = []
    trust = trust_of({ABOUT: {"issuer": "https://cluster"}, KEYS: keys("b", "a")}, changes)
    for kids in (("b", "a"), ("a", "b"), ("b", "c")):  # the order in which they come means nothing
        trust._api.pages[KEYS] = keys(*kids)  # type: ignore[attr-defined]
        await trust.look()

    assert [[key.kid for key in told.keys] for told in changes] == [["a", "b"], ["b", "c"]]
    assert changes[-1] == TrustedCallers(
        issuer="https://cluster",
        keys=tuple(PublicKey(kty="RSA", kid=kid, n="AQ", e="AQAB") for kid in ("b", "c")),
        gateways=("system:serviceaccount:tidepool:gateway",),
        operators=("system:serviceaccount:tidepool:operator",),
    )


@pytest.mark.parametrize(
    ("pages", "why"),
    [
        ({}, "the account may not read them"),
        ({ABOUT: {}, KEYS: keys("a")}, "no issuer"),
        ({ABOUT: {"issuer": "i"}, KEYS: {"keys": [{"kid": "a"}]}}, "a key without its kind"),
        ({ABOUT: {"issuer": "i"}, KEYS: []}, "no document of keys"),
    ],
)
async def test_without_keys_sidecars_are_told_to_believe_nobody_and_a_person_what_to_do(
    pages: Mapping[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    changes: list[TrustedCallers] = []
    trust = trust_of(pages, changes)
    looking = asyncio.create_task(trust.run())
    async with asyncio.timeout(20):
        while "cannot be read" not in caplog.text:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.001)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)

    assert trust.callers.keys == (), why
    assert not changes
    assert "system:service-account-issuer-discovery" in caplog.text


@pytest.mark.apiserver
async def test_tokens_of_a_real_cluster_prove_what_the_operator_says(live: Live) -> None:
    settings = Settings(live.namespace, "me", service_account="operator", gateway_service_account="gateway")
    trust = ClusterTrust(Api(live.client), settings, lambda: None)
    await trust.look()
    told = trust.callers.model_copy(update={"peers": (subject_of(live.namespace, "llama"),)})

    async def found(account: str, audience: str) -> Proof | Fault:
        path = f"/api/v1/namespaces/{live.namespace}/serviceaccounts"
        body = {"metadata": {"name": account}}
        await live.client.request("POST", path, body={"apiVersion": "v1", "kind": "ServiceAccount", **body})
        spec = {"audiences": [audience], "expirationSeconds": 3600}
        answer = await live.client.request("POST", f"{path}/{account}/token", body={"spec": spec})
        return Verifier(told).check(answer["status"]["token"].encode(), time.time())

    for account, part in (("gateway", Part.GATEWAY), ("llama", Part.PEER), ("operator", Part.OPERATOR)):
        proof = await found(account, "tidepool")
        assert isinstance(proof, Proof)
        assert proof.part is part
        assert 3000 < proof.expires_at - time.time() < 3700
    assert await found("web", "tidepool") is Fault.UNKNOWN_CALLER
    assert await found("other", "api") is Fault.WRONG_AUDIENCE
