"""Routers and operators of other releases: what they write is read here, and what is written here they can read.

`golden/*.before.*` was written by the release before, `*.now.*` has what this release promises, `*.after.*` what a
later one may add: fields, a health and a policy that are not known here. A promise is not taken back: fields may
be added to `now`, and none changed or removed before two releases have gone by.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pools.gateway import READY, first, make_pool
from tidepool_api.kube import Document
from tidepool_api.load import GatewayReport, Health, LoadReport
from tidepool_api.routing import Policy, SidecarSettings
from tidepool_api.trust import TrustedCallers
from tidepool_api.workflow_run import OpenRuns, RunList, RunOrder, RunPhase, RunReport, RunStory
from tidepool_router.fleet.document import FleetError, read_fleet
from tidepool_router.fleet.loadheader import read_load_header, write_load_header
from tidepool_router.fleet.pod import PodState

GOLDEN = Path(__file__).with_name("golden")


def text_of(name: str) -> str:
    return (GOLDEN / name).read_text()


def dumped(document: Document) -> str:
    return document.model_dump_json(by_alias=True)


# Kind of document: how it is read, and how it is written.
Read, Write = Callable[[str], Any], Callable[[Any], bytes | str]
KINDS: dict[str, tuple[Read, Write]] = {
    "load-report": (LoadReport.decode, LoadReport.encode),
    "gateway-report": (GatewayReport.decode, GatewayReport.encode),
    "fleet": (lambda text: read_fleet(text).fleet, dumped),
    "settings": (SidecarSettings.model_validate_json, dumped),
    "trust": (TrustedCallers.model_validate_json, dumped),
    "run-order": (RunOrder.model_validate_json, dumped),
    "run-report": (RunReport.model_validate_json, dumped),
    "open-runs": (OpenRuns.model_validate_json, dumped),
    "run-list": (RunList.model_validate_json, dumped),
    "run-story": (RunStory.model_validate_json, dumped),
}


def known_to(reader: Any, written: Any) -> Any:
    """What of a document remains for one who ignores every key that is not in its own."""
    if isinstance(reader, dict) and isinstance(written, dict):
        return {key: known_to(reader[key], value) for key, value in written.items() if key in reader}
    if isinstance(reader, list) and isinstance(written, list):
        return [known_to(one, other) for one, other in zip(reader, written, strict=True)]
    return written


@pytest.mark.parametrize("release", ["before", "now"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_is_written_again_as_that_release_wrote_it(kind: str, release: str) -> None:
    read, write = KINDS[kind]
    text = text_of(f"{kind}.{release}.json")

    written = json.loads(write(read(text)))

    assert known_to(json.loads(text), written) == json.loads(text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_release_is_understood_as_far_as_it_is_known_here(kind: str) -> None:
    read, write = KINDS[kind]
    now, after = (json.loads(text_of(f"{kind}.{release}.json")) for release in ("now", "after"))

    understood = known_to(now, json.loads(write(read(json.dumps(after)))))

    for unknown in (now, understood):  # the two values that have a test of their own
        unknown.pop("health", None)
        for part in (unknown, *(unknown.get("pools") or [] if kind == "fleet" else [])):
            part.get("routing", {}).pop("policy", None)
    assert understood == now


def test_a_pod_with_a_health_of_a_later_release_takes_nothing_and_is_not_lost() -> None:
    report = LoadReport.decode(text_of("load-report.after.json"))
    pool = make_pool(lambda: 1000.0, 1, ready=False)
    pool.pod_heard(first(pool), report)

    assert report.health is Health.DOWN
    assert first(pool).state(1000.0) is PodState.DOWN


@pytest.mark.parametrize("kind", ["fleet", "settings"])
def test_a_policy_of_a_later_release_is_the_default_one_here(kind: str) -> None:
    document = KINDS[kind][0](text_of(f"{kind}.after.json"))
    routing = document.pools[0].routing if kind == "fleet" else document.routing

    assert routing.policy is Policy.PREDICTED
    assert routing.retries == 1  # and nothing else is lost with it


@pytest.mark.parametrize(
    ("ended", "phase"), [(None, RunPhase.RUNNING), (1796000060.0, RunPhase.FAILED)], ids=["goes on", "is over"]
)
def test_a_phase_of_a_later_release_says_whether_the_run_goes_on(ended: float | None, phase: RunPhase) -> None:
    document = json.loads(text_of("run-report.after.json")) | {"phase": "Suspended", "ended": ended}

    assert RunReport.model_validate_json(json.dumps(document)).phase is phase


def test_a_persons_fleet_with_a_policy_that_is_not_known_is_refused_all_the_same() -> None:
    document = json.loads(text_of("fleet.after.json"))
    del document["issuedAt"]

    with pytest.raises(FleetError, match="policy"):
        read_fleet(json.dumps(document, indent=1))


@pytest.mark.parametrize("release", ["before", "after"])
def test_load_headers_are_read_from_releases_with_fewer_and_with_more_figures(release: str) -> None:
    last = LoadReport(boot="5f1d3c2a", seq=118, health=Health.READY)

    read = read_load_header(text_of(f"load-header.{release}.txt").strip(), last)

    assert read is not None
    assert (read.seq, read.running, read.queued_tokens, read.closed_total) == (119, 8, 100, 4032)
    assert (read.held, read.limit, read.held_direct) == ((17, 64, 3) if release == "after" else (0, None, 0))
    assert write_load_header(read).split(";")[:9] == text_of("load-header.before.txt").strip().split(";")


def test_nothing_that_was_promised_is_missing_from_a_report() -> None:
    """By hand, so that a field that is renamed here and in the golden file alike is noticed."""
    promised = {
        "pod", "pool", "model", "boot", "seq", "health", "running", "waiting", "queued_tokens", "held_tokens",
        "expected_tokens", "kv_capacity_tokens", "kv_usage", "opened_total", "closed_total", "settings",
    }  # fmt: skip

    assert promised <= json.loads(READY.encode()).keys()
