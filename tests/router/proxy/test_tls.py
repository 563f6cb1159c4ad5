"""TLS to clients and between the parts: verified, never old, and renewed without a connection lost."""

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from cluster.ports import free_ports
from scripted.certificates import POD_NAME, Secret, client_of
from scripted.clients import RawClient, chat, post
from scripted.peers import ONE, TWO
from scripted.programs import run_program
from scripted.routers import RunningRouter, until
from scripted.upstreams import ScriptedEngine, Seen
from tidepool_api.routing import Fleet, FleetPool, Queue, Routing
from tidepool_router.errors import SettingsError
from tidepool_router.fleet.gateway import GatewayFleet
from tidepool_router.tls import OwnCertificate, Trust

_DONE = b"data: [DONE]\n\n"
_BRIEF = Routing(queue=Queue(timeout="300ms"))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secret(authority: trustme.CA, tmp_path: Path) -> Secret:
    secret = Secret(tmp_path / "secret", authority)
    secret.issue("127.0.0.1", POD_NAME)
    return secret


@pytest.fixture
def pair(sidecar: Any, gateway: Any) -> tuple[Any, Any]:
    return sidecar, gateway


@pytest.fixture
def own(secret: Secret) -> OwnCertificate:
    return OwnCertificate(secret.certificate, secret.key)


@pytest.fixture
def client(authority: trustme.CA) -> ssl.SSLContext:
    return client_of(authority)


async def _serial(port: int, client: ssl.SSLContext, name: str | None = None) -> str:
    """Serial number of the certificate that a new connection is shown."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name)
    del reader
    serial: str = writer.get_extra_info("peercert")["serialNumber"]
    writer.transport.abort()
    return serial


@pytest.mark.parametrize("role", ["gateway", "sidecar"])
async def test_clients_are_served_over_tls(
    pair: tuple[Any, Any], own: OwnCertificate, client: ssl.SSLContext, role: str
) -> None:
    start = pair[role == "gateway"]
    body = chat(image="Q" * (8 << 20))
    client.set_alpn_protocols(["h2", "http/1.1"])
    async with ScriptedEngine() as engine:
        router = await start(engine.url, tls=own.context)
        async with RawClient(router.port, tls=client) as raw:
            answers = [await raw.ask(post(body)), await raw.ask(post(chat()))]
            protocol = raw.writer.get_extra_info("ssl_object").selected_alpn_protocol()

    assert [answer.status for answer in answers] == [200, 200]
    assert engine.requests[0].body == body
    assert protocol == "http/1.1"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_tls_before_1_2_is_refused(gateway: Any, own: OwnCertificate, client: ssl.SSLContext) -> None:
    router = await gateway(tls=own.context)
    client.set_ciphers("DEFAULT:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await _serial(router.port, client)


async def test_plain_http_on_the_tls_port_is_closed(gateway: Any, own: OwnCertificate) -> None:
    router = await gateway(tls=own.context)
    async with RawClient(router.port) as raw:
        await raw.send(post(chat()))
        assert b"HTTP" not in await raw.rest()


async def test_a_handshake_that_never_ends_is_ended(gateway: Any, own: OwnCertificate) -> None:
    router = await gateway(tls=own.context, header_seconds=0.1)
    async with RawClient(router.port) as raw:
        assert await raw.rest() == b""


async def test_a_swapped_secret_is_shown_to_new_connections_and_cuts_no_stream(
    gateway: Any, secret: Secret, own: OwnCertificate, client: ssl.SSLContext
) -> None:
    renewed = asyncio.Event()

    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(b"data: 1\n\n")
        await renewed.wait()
        await seen.chunk(_DONE)
        await seen.chunk(b"")

    async with ScriptedEngine(script) as engine:
        router = await gateway(engine.url, tls=own.context)
        async with RawClient(router.port, tls=client) as raw:
            await raw.send(post(chat(stream=True)))
            await raw.head()
            await raw.chunk()
            before = await _serial(router.port, client)
            secret.issue("127.0.0.1", POD_NAME)
            own.look()
            after = [await _serial(router.port, client, name) for name in (None, POD_NAME)]
            renewed.set()
            assert [await raw.chunk(), await raw.chunk()] == [_DONE, b""]

    assert after[0] == after[1] != before


async def test_the_files_are_looked_at_by_themselves(
    gateway: Any, secret: Secret, own: OwnCertificate, client: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidepool_router.tls._INTERVAL_SECONDS", 0.01)
    router = await gateway(tls=own.context)
    watching = asyncio.create_task(own.run())
    before = own.newest
    secret.issue("127.0.0.1")
    await until(lambda: own.newest is not before)
    watching.cancel()

    assert await _serial(router.port, client)


def _other(secret: Secret) -> bytes:
    return secret.authority.issue_cert("other").private_key_pem.bytes()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tls.key", _other, r"tls\.key does not belong to the certificate .*tls\.crt; write both anew"),
        ("tls.crt", b"", r"tls\.crt is of another kind; it must hold a certificate chain in PEM"),
        ("tls.key", b"\0\1", r"tls\.key is of another kind; it must hold a private key in PEM"),
        ("tls.key", b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n", r"tls\.key is encrypted.*decrypt it"),
        ("tls.crt", b"-----BEGIN CERTIFICATE-----\nx", r"cannot be used together .*write both anew"),
    ],
)
def test_a_bad_pair_is_refused_and_the_one_before_stays(
    secret: Secret, own: OwnCertificate, caplog: pytest.LogCaptureFixture, file: str, content: Any, message: str
) -> None:
    before, good = own.newest, {path.name: path.read_bytes() for path in (secret.certificate, secret.key)}
    secret.write(good | {file: content(secret) if callable(content) else content})

    with pytest.raises(SettingsError, match=message):
        OwnCertificate(secret.certificate, secret.key)
    with caplog.at_level(logging.INFO, "tidepool.tls"):
        own.look()
        own.look()
        assert own.newest is before
        secret.write(good)
        own.look()

    assert own.newest is not before
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "PRIVATE" not in caplog.text


def test_a_file_that_is_gone_is_named_and_the_pair_stays(
    secret: Secret, own: OwnCertificate, caplog: pytest.LogCaptureFixture
) -> None:
    before = own.newest
    secret.key.unlink()
    own.look()

    assert own.newest is before
    assert "tls.key cannot be read (No such file or directory); check path and rights" in str(
        caplog.records[0].__dict__["reason"]
    )


def test_authorities_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_bytes(b"-----BEGIN CERTIFICATE-----\nx")
    with pytest.raises(SettingsError, match=r"ca\.crt holds no certificates that can be read"):
        Trust(path)


# Between gateway and sidecars.


@pytest.fixture
def trust(secret: Secret) -> Trust:
    return Trust(secret.ca, POD_NAME)


async def test_a_gateway_reaches_sidecars_over_tls_and_verifies_their_name(
    sidecar: Any, gateway: Any, secret: Secret, trust: Trust
) -> None:
    secret.issue(POD_NAME)  # no address: the name alone must do, as addresses of pods come and go
    own = OwnCertificate(secret.certificate, secret.key)

    async def script(seen: Seen) -> None:
        if b'"stream": true' not in seen.body:
            await seen.answer()
            return
        await seen.begin_stream()
        await seen.chunk(b"data: 1\n\n")
        await seen.closed.wait()

    async with ScriptedEngine(script) as engine:
        behind = await sidecar(engine.url, tls=own.context)
        front = await gateway(f"https://127.0.0.1:{behind.port}", trust=trust)
        async with RawClient(front.port) as raw:
            answer = await raw.ask(post(chat(image="Q" * (8 << 20))))
            assert (answer.status, answer.headers[b"x-tidepool-pod"]) == (200, b"pod-1")
            await raw.send(post(chat(stream=True)))
            await raw.head()
            assert await raw.chunk() == b"data: 1\n\n"
        await asyncio.wait_for(engine.requests[1].closed.wait(), 20)  # the client's leaving goes through both


async def test_endpoints_that_are_found_by_dns_are_verified_by_the_name(
    sidecar: Any, own: OwnCertificate, trust: Trust
) -> None:
    async with ScriptedEngine() as engine:
        behind = await sidecar(engine.url, tls=own.context)
        fleet = GatewayFleet(name="g", boot="b", lookup=lambda _: ["127.0.0.1"], trust=trust)
        try:
            url = f"dns+https://pool-peers.default.svc:{behind.port}"
            fleet.apply(Fleet(pools=(FleetPool(name="p", models=("m",), endpoints=(url,)),)))
            await until(lambda: any(pod.streaming for pod in fleet.pools["p"].pods.values()))
        finally:
            await fleet.close()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [("authority", "unable to get local issuer certificate"), ("name", "Hostname mismatch"), ("plain", "SSL")],
)
async def test_a_sidecar_that_cannot_prove_itself_gets_no_request(
    pair: tuple[Any, Any],
    own: OwnCertificate,
    secret: Secret,
    caplog: pytest.LogCaptureFixture,
    wrong: str,
    why: str,
) -> None:
    sidecar, gateway = pair
    trust = Trust(secret.ca, "other.tidepool.test" if wrong == "name" else POD_NAME)
    if wrong == "authority":
        path = secret.folder / "other.crt"
        path.write_bytes(trustme.CA().cert_pem.bytes())
        trust = Trust(path, POD_NAME)
    async with ScriptedEngine() as engine:
        behind = await sidecar(engine.url, tls=None if wrong == "plain" else own.context)
        front = await gateway(f"https://127.0.0.1:{behind.port}", trust=trust, known=0, routing=_BRIEF)
        pool = front.state.pools["default/pool"]
        (pod,) = pool.pods.values()
        pod.reachable = True  # as after a moment of trust: the next loss is told
        await until(lambda: not pod.reachable)
        async with RawClient(front.port) as raw:
            answer = await raw.ask(post(chat()))

    assert answer.status == 503
    assert not engine.requests
    assert why in " ".join(str(record.__dict__.get("reason")) for record in caplog.records)


async def test_the_same_port_with_and_without_tls_are_two_endpoints(
    sidecar: Any, gateway: Any, own: OwnCertificate, trust: Trust
) -> None:
    async with ScriptedEngine() as engine:
        behind = await sidecar(engine.url, tls=own.context)
        front: RunningRouter = await gateway(f"http://127.0.0.1:{behind.port}", trust=trust, known=0)
        (pool,) = front.state.pools.values()
        config = pool.config.model_copy(update={"endpoints": (f"https://127.0.0.1:{behind.port}",)})
        front.state.apply(Fleet(pools=(config,)))
        await until(lambda: [pod.streaming for pod in pool.pods.values()] == [True])
        async with RawClient(front.port) as raw:
            assert (await raw.ask(post(chat()))).status == 200


async def test_peers_hand_on_over_tls(member: Any, own: OwnCertificate, secret: Secret) -> None:
    trust = Trust(secret.ca, POD_NAME)
    async with ScriptedEngine() as engine:
        broken = await member(ONE, tls=own.context, trust=trust)
        await member(TWO, engine.url, tls=own.context, trust=trust)
        client = client_of(secret.authority)
        client.check_hostname = False
        async with RawClient(broken.port, ONE, tls=client) as raw:
            answer = await raw.ask(post(chat()))

    assert answer.status == 200
    assert json.loads(engine.requests[0].body)["model"] == "tiny"


async def test_while_pods_are_replaced_each_is_asked_as_it_can_be_asked(
    sidecar: Any, own: OwnCertificate, trust: Trust
) -> None:
    """A pod with TLS is named by both sources, and must not get its requests without."""
    names = {"peers.svc": ["127.0.0.1", "127.0.2.1"], "peers-tls.svc": []}
    async with ScriptedEngine() as engine:
        plain = await sidecar(engine.url, address=("127.0.0.1", 0))
        secure = await sidecar(engine.url, address=("127.0.2.1", 0), tls=own.context, pod="pod-2")
        fleet = GatewayFleet(name="g", boot="b", lookup=lambda host: names[host], trust=trust)
        urls = (f"dns+https://peers-tls.svc:{secure.port}", f"dns+http://peers.svc:{plain.port}")
        pool = FleetPool(name="p", models=("m",), endpoints=urls)

        def asked() -> set[str]:
            return {key for key, pod in fleet.pools["p"].pods.items() if not pod.leaving}

        try:
            fleet.apply(Fleet(pools=(pool,)))
            before = {f"127.0.0.1:{plain.port}", f"127.0.2.1:{plain.port}"}
            await until(lambda: asked() == before)
            names["peers-tls.svc"] = ["127.0.2.1"]
            after = {f"127.0.0.1:{plain.port}", f"https://127.0.2.1:{secure.port}"}
            await until(lambda: asked() == after)
            await until(lambda: [pod.streaming for pod in fleet.pools["p"].pods.values()] == [True] * 2)
        finally:
            await fleet.close()


@pytest.mark.traffic
async def test_a_sidecar_serves_tls_beside_plain_http_reloads_it_and_drains_both(
    secret: Secret, trust: Trust
) -> None:
    (port,) = free_ports(1)
    end = asyncio.Event()

    async def script(seen: Seen) -> None:
        await seen.begin_stream()
        await seen.chunk(b"data: 1\n\n")
        await end.wait()
        await seen.chunk(_DONE)
        await seen.chunk(b"")

    client = client_of(secret.authority)
    files = ("--tls-cert", str(secret.certificate), "--tls-key", str(secret.key), "--tls-port", str(port))
    async with (
        ScriptedEngine(script) as engine,
        run_program("sidecar", "--engine", engine.url, *files, ready="/engine/ready") as running,
    ):
        await _eventually(lambda: _open(port))  # the control port is there first
        before = await _serial(port, client)
        secret.issue("127.0.0.1", POD_NAME)
        await _eventually(lambda: _renewed(port, client, before))
        async with RawClient(port, tls=client) as safe, RawClient(running.port) as plain:
            for raw in (safe, plain):
                await raw.send(post(chat(stream=True)))
                await raw.head()
                assert await raw.chunk() == b"data: 1\n\n"
            running.process.terminate()
            await _eventually(
                lambda: _open(port, wanted=False)
            )  # it takes nobody new, and goes on with those that it has
            end.set()
            for raw in (safe, plain):
                assert [await raw.chunk(), await raw.chunk()] == [_DONE, b""]
        status, _ = await running.ended()

    assert status == 0


async def _eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what another process does, of which there is no event here."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _renewed(port: int, client: ssl.SSLContext, before: str) -> bool:
    return await _serial(port, client) != before


async def _open(port: int, *, wanted: bool = True) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return not wanted
    writer.close()
    return wanted
