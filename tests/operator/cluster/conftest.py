"""One real API server with the controllers that make pods and collect garbage, for all tests of this folder."""

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from cluster.apiserver import ControlPlane
from pools.live import NAMESPACE, Live, install_crds
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.client import Client

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane(controllers=True) as made:
        yield made


@pytest.fixture
async def live(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    async with _living(plane, monkeypatch) as made:
        yield made


@pytest.fixture
async def live_alone(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    """On an API server of its own, for a test after which no other finds what it expects there."""
    with ControlPlane(controllers=True) as own:
        async with _living(own, monkeypatch) as made:
            yield made


@asynccontextmanager
async def _living(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    # kopf and the client both look there.
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    async with await Client.connect(str(plane.kubeconfig)) as client:
        await install_crds(client)
        api, name = Api(client), f"test-{next(_NUMBERS)}"
        await api.create(NAMESPACE, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield Live(client, api, str(plane.kubeconfig), name)
