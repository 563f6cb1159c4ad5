"""Who may give a gateway its fleet and read its demand, and how it learns whom to believe."""

import time
from pathlib import Path

import httpx
import pytest

from scripted.issuer import GATEWAY, OPERATOR, PEER, token, trust
from scripted.programs import Program, run_program
from tidepool_api import contract
from tidepool_api.load import GatewayReport
from tidepool_api.routing import Fleet, FleetPool
from tidepool_router.door import Door, Writer
from tidepool_router.errors import SettingsError
from tidepool_router.settings import Options, parse

NOW = 1000.0
_SECONDS = 60.0  # for what another process does on a busy machine
REPORTS = (contract.PATH_LOAD, contract.PATH_LOAD_STREAM)


def shown(subject: str = OPERATOR, *, kid: str = "one") -> str:
    return token(subject, kid=kid, now=NOW).decode()


def believing(*kids: str) -> Door:
    door = Door(Writer.OPERATOR)
    door.believe(trust(*kids))
    return door


@pytest.mark.parametrize(
    ("proof", "let_in", "why"),
    [
        (shown(), True, "the operator"),
        (None, False, "whoever reaches the port"),
        ("", False, "nothing is no proof"),
        ("no-token", False, "nor is anything else"),
        (shown(GATEWAY), False, "a gateway gives no orders to another"),
        (shown(PEER), False, "an engine pod gives none"),
        (shown(kid="two"), False, "its key is not the cluster's"),
        (token(OPERATOR, now=NOW - 4000).decode(), False, "it ended"),
        ("\u20ac", False, "characters that no token has"),
    ],
)
def test_orders_and_reports_are_the_proven_operators_alone(proof: str | None, let_in: bool, why: str) -> None:
    door = believing()
    asked = [door.refusal(*what, proof, NOW) for what in (("PUT", "/fleet"), *(("GET", path) for path in REPORTS))]

    assert [refused is None for refused in asked] == [let_in] * 3, why
    assert let_in or {refused[0] for refused in asked if refused} == {403}


@pytest.mark.parametrize("path", [contract.PATH_HEALTH, contract.PATH_READY, contract.PATH_DRAIN])
@pytest.mark.parametrize("writer", Writer)
def test_the_kubelet_is_let_in_without_proof(writer: Writer, path: str) -> None:
    assert Door(writer).refusal("GET", path, None, NOW) is None


def test_before_the_keys_are_known_nobody_writes_and_demand_can_be_read() -> None:
    door = Door(Writer.OPERATOR)
    refused = door.refusal("PUT", "/fleet", shown(), NOW)

    assert refused is not None
    assert refused[0] == 403
    assert "not known" in refused[1]
    assert door.refusal("GET", contract.PATH_LOAD_STREAM, None, NOW) is None


def test_keys_turn_over() -> None:
    door = believing("one", "two")
    assert door.refusal("PUT", "/fleet", shown(kid="two"), NOW) is None
    door.believe(trust("two"))

    assert door.refusal("PUT", "/fleet", shown(kid="two"), NOW) is None
    assert door.refusal("PUT", "/fleet", shown(kid="one"), NOW) is not None


def test_without_trust_there_is_no_such_path_unless_it_was_opened() -> None:
    refused = Door(Writer.NOBODY).refusal("PUT", "/fleet", shown(), NOW)

    assert refused is not None
    assert refused[0] == 404
    assert Door(Writer.EVERYBODY).refusal("PUT", "/fleet", None, NOW) is None


@pytest.mark.parametrize(
    ("flags", "writer", "host"),
    [
        ([], Writer.NOBODY, "127.0.0.1"),
        (["--workers", "2"], Writer.NOBODY, "127.0.0.1"),
        (["--control-open"], Writer.EVERYBODY, ""),
        (["--trust-file", "t.json"], Writer.OPERATOR, ""),
        (["--trust-file", "t.json", "--worker-fd", "3"], Writer.EVERYBODY, ""),
        (["--worker-fd", "3"], Writer.NOBODY, "127.0.0.1"),
    ],
)
def test_the_control_port_is_on_loopback_unless_somebody_is_to_reach_it(
    flags: list[str], writer: Writer, host: str
) -> None:
    options: Options = parse(["gateway", *flags], {})
    assert (options.fleet_writer, options.control_host) == (writer, host)
    with pytest.raises(SettingsError, match="give one"):
        parse(["gateway", "--control-open", "--trust-file", "t.json"], {})


async def put(program: Program, issued_at: float, proof: bytes = b"") -> int:
    fleet = Fleet(issued_at=issued_at, pools=(FleetPool(name="default/a", models=("a",)),))
    headers = {contract.HEADER_PROOF: proof.decode()} if proof else {}
    async with httpx.AsyncClient(timeout=_SECONDS) as client:
        answer = await client.put(
            program.url(2) + "/fleet", content=fleet.model_dump_json(by_alias=True), headers=headers
        )
    return answer.status_code


@pytest.mark.traffic
@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one process", "workers"])
async def test_a_gateway_follows_whom_to_believe_in_its_mounted_file(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    file = tmp_path / "trust.json"
    flags = ("--trust-file", str(file), "--fleet", str(tmp_path / "none.json"), "--wait-for-file")
    proof = token(OPERATOR, now=time.time())
    async with run_program("gateway", *workers, *flags, ready="/healthz") as gateway:
        assert await put(gateway, 1.0, proof) == 403
        file.write_text(trust().model_dump_json(by_alias=True))
        deadline = time.monotonic() + _SECONDS
        while (status := await put(gateway, 2.0, proof)) != 204:
            assert (status, time.monotonic() < deadline) == (403, True)

        assert await put(gateway, 3.0) == 403
        assert await put(gateway, 3.0, token(GATEWAY, now=time.time())) == 403
        async with httpx.AsyncClient(timeout=_SECONDS, headers={contract.HEADER_PROOF: proof.decode()}) as client:
            report = GatewayReport.decode((await client.get(gateway.url(2) + contract.PATH_LOAD)).content)
            page = (await client.get(gateway.url(1) + "/metrics")).text
        async with httpx.AsyncClient(timeout=_SECONDS) as client:
            assert (await client.get(gateway.url(2) + contract.PATH_LOAD)).status_code == 403
            # A worker that is slow to answer is not counted.
            while (await client.get(gateway.url(2) + "/readyz")).status_code != 200:
                assert time.monotonic() < deadline

    assert report.fleet_issued_at in (None, 2.0)
    assert 'tidepool_proofs_checked_total{outcome="operator"}' in page


@pytest.mark.parametrize(("method", "path"), [("PUT", "/runs/u"), ("DELETE", "/runs/u"), ("GET", "/runs")])
def test_runs_of_objects_are_the_operators_alone(method: str, path: str) -> None:
    door = believing()

    assert door.refusal(method, path, None, NOW) is not None
    assert door.refusal(method, path, shown(), NOW) is None
    assert Door(Writer.NOBODY).refusal(method, path, shown(), NOW) is not None
