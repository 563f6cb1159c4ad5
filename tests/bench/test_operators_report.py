"""The operator's bench says what was held and what was not, and counts what the audit log tells."""

import json
from typing import Any

import pytest

from bench import audit, operators_report


def entry(agent: str, verb: str, resource: str, uri: str = "/x", **more: Any) -> str:
    about = {"resource": resource, "name": "n"} | more
    return json.dumps({"userAgent": agent, "verb": verb, "objectRef": about, "requestURI": uri})


def candidate(**changes: Any) -> dict[str, Any]:
    idle = {"seconds": 600.0, "writes": {"patch leases": 300}, "cpu_share": 0.02, "memory_bytes": 200_000_000}
    base: dict[str, Any] = {"idle": idle, "changes_seconds": [0.2] * 99 + [0.9], "burst_seconds": 9.0}
    base |= {"restart_seconds": 20.0, "restart_cpu_seconds": 9.0, "restart_writes": {}, "pods_touched": 0}
    return base | {"memory_bytes": {"now": 1, "peak": 2}} | changes


def results(**candidates: dict[str, Any]) -> dict[str, Any]:
    machine = {"cpu": "some", "cores": 2, "load_average": 0.1}
    return {"machine": machine, "pools": 500, "pods": 5000, "scaled": 50, "candidates": candidates}


def test_the_audit_log_is_counted_by_agent_and_a_dry_run_is_no_write() -> None:
    log = [
        entry("tidepool-operator", "patch", "modelpools", subresource="status"),
        entry("tidepool-operator", "patch", "deployments", "/x?dryRun=All"),
        entry("kwok/v0.8", "patch", "pods", subresource="status"),
    ]

    assert audit.by_kind(audit.writes(log), ["tidepool-operator"]) == {"patch modelpools/status": 1}


@pytest.mark.parametrize(
    ("writes", "expected", "why"),
    [
        ({"patch leases": 300}, 0, "the Lease is renewed"),
        ({"patch modelpools/status": 550}, 0, "fifty pools, once a minute, and once at the edge"),
        ({"patch modelpools/status": 560}, 10, "more often than once a minute"),
        ({"patch services": 1}, 1, "nothing else may be written at rest"),
    ],
)
def test_writes_at_rest(writes: dict[str, int], expected: int, why: str) -> None:
    assert operators_report.stray({"seconds": 600.0, "writes": writes}, 50) == expected, why


def test_what_is_missed_is_said() -> None:
    found = results(tidepool=candidate(burst_seconds=15.1), plain=candidate())
    held = {target.name: is_held for target, _, is_held in operators_report.judge(found)}

    assert [name for name, is_held in held.items() if not is_held] == ["100 changes at once, all applied"]
    assert operators_report.page(found).count("MISSED") == 1


def test_the_console_is_judged_where_it_was_looked_at_and_the_other_one_has_none() -> None:
    looked = {"cpu_share_nobody": 0.031, "cpu_share_one_page": 0.04, "cpu_share_gone": 0.02}
    looked |= {"ready_seconds": [0.2, 0.4, 0.3], "bytes": 112_000, "rows": 40}
    found = results(tidepool=candidate(console=looked), plain=candidate())
    judged = {
        target.name: (round(figure, 3), is_held) for target, figure, is_held in operators_report.judge(found)
    }
    page = " ".join(operators_report.page(found).split())

    assert judged["console that nobody looks at, more than without"] == (1.1, False)
    assert judged["the page of all pools, of use (worst visit)"] == (0.4, True)
    assert "| the page, all that it loads | 300 kB | 112 | none | held |" in page
    assert page.count("MISSED") == 1
    assert "console" not in operators_report.page(results(tidepool=candidate(), plain=candidate()))


def test_the_p99_of_a_hundred_is_the_second_largest() -> None:
    assert operators_report.quantile([float(number) for number in range(100)], 0.99) == 98.0
    assert operators_report.quantile([1.0], 0.99) == 1.0
