"""One stage for all scenarios of a run; a failing test leaves what is needed to understand it under build/e2e."""

from collections.abc import Iterator
from typing import Any

import pytest

from scenarios import stage
from scenarios.dump import dump
from scenarios.evidence import BUILD, Evidence
from scenarios.world import SYSTEM_NAMESPACE, World

_REPORT = pytest.StashKey[dict[str, bool]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remember a failure, so that fixtures can look at the cluster before they tear it down."""
    report: Any = yield
    if report.failed:
        item.stash.setdefault(_REPORT, {})["failed"] = True
    return report


@pytest.fixture(scope="session")
def world() -> World:
    """The project's own cluster with the chart installed. Left up for whoever looks into a failure."""
    return stage.own_cluster(Evidence())


@pytest.fixture(autouse=True)
def _dump_on_failure(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if request.node.stash.get(_REPORT, {}).get("failed") and "world" in request.fixturenames:
        seen: World = request.getfixturevalue("world")
        folder = dump(
            seen.kube,
            BUILD / "failed" / request.node.name,
            (seen.namespace, "broken", "disk", "disk-nodes", SYSTEM_NAMESPACE),
        )
        seen.evidence.say(f"objects, events and logs are in {folder}")
