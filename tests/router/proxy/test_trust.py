"""Sidecars that believe those who prove themselves, and nobody else, over real sockets and with signed tokens."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted.clients import RawClient, chat, post
from scripted.issuer import GATEWAY, OPERATOR, PEER, line, token, trust
from scripted.peers import ONE, TWO, counted
from scripted.programs import run_program
from scripted.routers import RunningRouter, StartRouter
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api import contract
from tidepool_api.load import LoadReport
from tidepool_api.routing import SidecarSettings
from tidepool_api.trust import TrustedCallers, subject_of
from tidepool_router.control import Response, sidecar_control

_CLAIMS = b"x-tidepool-priority: interactive\r\nx-tidepool-tenant: acme\r\nx-tidepool-deadline: 30\r\n"
_NAMES = (b"x-tidepool-priority", b"x-tidepool-tenant", b"x-tidepool-deadline")


def fresh(subject: str = GATEWAY, **claims: Any) -> bytes:
    return token(subject, now=time.time(), **claims)


def settings(trusted: TrustedCallers | None) -> SidecarSettings:
    return SidecarSettings(pool="pool", engine_priority=True, trust=trusted)


def priority(seen: Seen) -> int:
    """What the engine is told; the lower the sooner."""
    return int(json.loads(seen.body).get("priority", 0))


def shows(router: RunningRouter, proof: bytes) -> None:
    router.services.proof = line(proof)


async def test_a_gateway_that_proves_itself_is_believed_and_the_engine_sees_no_proof(
    sidecar: StartRouter, gateway: StartRouter
) -> None:
    async with ScriptedEngine() as engine:
        pod = await sidecar(engine.url, settings=settings(trust()))
        front = await gateway(f"http://127.0.0.1:{pod.port}")
        shows(front, fresh())
        shows(pod, fresh(PEER))  # a sidecar has one too, and its engine is no part of ours
        async with RawClient(front.port) as client:
            for _ in range(5):  # the later heads are compared and not parsed
                assert (await client.ask(post(chat(), extra=_CLAIMS))).status == 200

        assert [priority(seen) for seen in engine.requests] == [-100] * 5
        assert engine.requests[0].headers[b"x-tidepool-tenant"] == b"acme"
        assert not any(b"proof" in seen.head for seen in engine.requests)
        assert counted(pod, contract.METRIC_PROOFS) == {'outcome="gateway"': 1}


@pytest.mark.parametrize(
    ("proof", "outcome", "why"),
    [
        (b"", None, "whoever reaches the pool's own Service"),
        (line(b"no token"), "malformed", "no proof at all"),
        (line(fresh(aud=["api"])), "wrong_audience", "a token that the caller has for something else"),
        (line(fresh(subject_of("default", "web"))), "unknown_caller", "another pod of the cluster"),
        (line(fresh()) + line(fresh()), "malformed", "two proofs are none"),
    ],
)
async def test_without_proof_the_defaults_hold_and_nothing_is_passed_on(
    sidecar: StartRouter, proof: bytes, outcome: str | None, why: str
) -> None:
    async with ScriptedEngine() as engine:
        pod = await sidecar(engine.url, settings=settings(trust()))
        async with RawClient(pod.port) as client:
            assert (await client.ask(post(chat(), extra=_CLAIMS + proof))).status == 200
            bad = b"x-tidepool-deadline: soon\r\n" + proof  # 400 from whoever is believed
            assert (await client.ask(post(chat(), extra=bad))).status == 200

        for seen in engine.requests:
            assert priority(seen) == 0, why
            assert not {b"x-tidepool-proof", *_NAMES} & set(seen.headers), why
        assert set(counted(pod, contract.METRIC_PROOFS)) == ({f'outcome="{outcome}"'} if outcome else set())


async def test_a_client_of_the_gateway_cannot_lend_itself_a_proof(
    sidecar: StartRouter, gateway: StartRouter
) -> None:
    async with ScriptedEngine() as engine:
        pod = await sidecar(engine.url, settings=settings(trust()))
        front = await gateway(f"http://127.0.0.1:{pod.port}")
        async with RawClient(front.port) as client:
            assert (await client.ask(post(chat(), extra=_CLAIMS + line(fresh())))).status == 200

        assert priority(engine.requests[0]) == 0


@pytest.mark.parametrize("trusted", [None, TrustedCallers()], ids=["no trust", "no keys"])
async def test_with_trust_off_everybody_is_believed_and_before_the_keys_are_known_nobody(
    sidecar: StartRouter, trusted: TrustedCallers | None
) -> None:
    async with ScriptedEngine() as engine:
        pod = await sidecar(engine.url, settings=settings(trusted))
        async with RawClient(pod.port) as client:
            assert (await client.ask(post(chat(), extra=_CLAIMS + line(fresh())))).status == 200

        assert priority(engine.requests[0]) == (-100 if trusted is None else 0)


async def test_keys_that_come_later_make_the_same_connection_believed(sidecar: StartRouter) -> None:
    async with ScriptedEngine() as engine:
        pod = await sidecar(engine.url, settings=settings(TrustedCallers()))
        proof = fresh()
        async with RawClient(pod.port) as client:
            for _ in range(4):
                await client.ask(post(chat(), extra=_CLAIMS + line(proof)))
            pod.state.believe(trust())
            for _ in range(4):
                await client.ask(post(chat(), extra=_CLAIMS + line(proof)))

        assert [priority(seen) for seen in engine.requests] == [0] * 4 + [-100] * 4


async def test_what_a_stranger_claims_is_not_believed_by_a_peer_either(
    member: StartRouter, pool_port: int
) -> None:
    async with ScriptedEngine() as engine:
        first = await member(ONE, settings=settings(trust()))
        await member(TWO, engine.url, settings=settings(trust()))
        shows(first, fresh(PEER))
        for proof, told in ((b"", 0), (line(fresh()), -100)):
            async with RawClient(pool_port, ONE) as client:
                assert (await client.ask(post(chat(), extra=_CLAIMS + proof))).status == 200
            assert priority(engine.requests[-1]) == told


@pytest.mark.parametrize(("shown", "status"), [(PEER, 503), (GATEWAY, 200)])
async def test_the_mark_of_what_was_handed_on_is_believed_from_a_peer_by_its_proof(
    member: StartRouter, pool_port: int, shown: str, status: int
) -> None:
    async with ScriptedEngine() as engine:
        await member(ONE, settings=settings(trust()))
        await member(TWO, engine.url, settings=settings(trust()))
        async with RawClient(pool_port, ONE, source="127.0.9.9") as client:  # no peer's address
            mark = b"x-tidepool-handed-on: 1\r\n" + line(fresh(shown))
            assert (await client.ask(post(chat(), extra=mark))).status == status


@pytest.mark.parametrize(
    ("now", "new", "proof", "then", "why"),
    [
        (trust("one"), trust("one", "two"), fresh(OPERATOR), trust("one", "two"), "keys turn over"),
        (trust("one"), None, fresh(OPERATOR), None, "trust was switched off"),
        (trust("one"), trust("two"), b"", trust("one"), "whoever reaches the port would be believed next"),
        (trust("one"), None, fresh(GATEWAY), trust("one"), "a gateway gives no orders"),
        (trust("one"), None, fresh(OPERATOR, kid="two"), trust("one"), "its key is not known"),
        (None, trust("one"), fresh(OPERATOR), None, "nobody is known yet: the mounted file comes first"),
    ],
)
async def test_whom_to_believe_is_told_by_the_proven_operator_alone(
    sidecar: StartRouter,
    now: TrustedCallers | None,
    new: TrustedCallers | None,
    proof: bytes,
    then: TrustedCallers | None,
    why: str,
) -> None:
    async with ScriptedEngine() as engine:
        pod = await sidecar(engine.url, settings=settings(now))
        order = SidecarSettings(pool="pool", drain_timeout="7s", trust=new)
        headers = {contract.HEADER_PROOF: proof.decode()} if proof else {}
        body = order.model_dump_json(by_alias=True).encode()
        answer = await sidecar_control(pod.state).handle("PUT", contract.PATH_SETTINGS, headers, body)

        assert isinstance(answer, Response)
        assert answer.status == 204
        assert pod.state.settings == order.model_copy(update={"trust": then}), why
        assert pod.state.report().settings == pod.state.settings.digest()


@pytest.mark.traffic
async def test_a_sidecar_follows_whom_to_believe_in_its_mounted_file(tmp_path: Path) -> None:
    file, proof = tmp_path / "settings.json", tmp_path / "token"
    proof.write_bytes(fresh(PEER))
    arguments = ("sidecar", "--engine", "http://127.0.0.1:1", "--settings", str(file), "--wait-for-file")
    async with (
        run_program(*arguments, "--proof-file", str(proof), ready="/healthz") as pod,
        httpx.AsyncClient(timeout=60) as client,
    ):

        async def in_force(wanted: SidecarSettings) -> None:
            async with asyncio.timeout(60):
                while True:
                    report = LoadReport.decode((await client.get(pod.url() + contract.PATH_LOAD)).content)
                    if report.settings == wanted.digest():
                        return
                    await asyncio.sleep(0.05)

        async def push(wanted: SidecarSettings, shown: bytes) -> None:
            headers = {contract.HEADER_PROOF: shown.decode()}
            body = wanted.model_dump_json(by_alias=True)
            assert (await client.put(pod.url(2) + "/settings", content=body, headers=headers)).status_code == 204

        await push(settings(trust("one")), fresh(OPERATOR))  # no key is known by which that could be proved
        await in_force(settings(TrustedCallers()))
        file.write_text(settings(trust("one")).model_dump_json(by_alias=True))
        await in_force(settings(trust("one")))
        await push(settings(trust("one", "two")), fresh(OPERATOR))
        await in_force(settings(trust("one", "two")))
