"""A sidecar and a real vLLM: adapters come and go while it serves, and what vLLM says of those it refuses."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cluster.engine import Engine
from fakes.lora import lora
from tidepool_api.load import LoadReport
from tidepool_api.routing import SidecarSettings, WantedAdapter
from tidepool_operator.pool.adapters import reason_of
from tidepool_operator.pool.reasons import Reason
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.sidecar import SidecarState

# An engine of its own, which takes a minute to start.
pytestmark = [pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    flags = ["--enable-lora", "--max-loras=2"]
    with Engine(extra_arguments=flags, environment={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}) as running:
        yield running


async def look(state: SidecarState) -> LoadReport:
    await state.look_at_engine()
    if state.adapters._task is not None:
        await state.adapters._task
    await state.look_at_engine()
    return state.report()


def want(state: SidecarState, **paths: Path | str) -> None:
    adapters = tuple(WantedAdapter(name=name, path=str(path)) for name, path in paths.items())
    state.apply(state.settings.model_copy(update={"adapters": adapters}))


async def said(engine: Engine, model: str) -> str:
    body = {"model": model, "prompt": "The import statement", "max_tokens": 8, "temperature": 0}
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{engine.url}/v1/completions", json=body)
    return str(answer.raise_for_status().json()["choices"][0]["text"])


async def test_adapters_come_and_go_while_the_engine_serves(engine: Engine, tmp_path: Path) -> None:
    settings = SidecarSettings(pool="p", namespace="ns", model="tiny", adapters=())
    endpoint = Endpoint.at("127.0.0.1", engine.port)
    state = SidecarState(endpoint, settings, pod="pod-0", boot="boot", now=time.monotonic)
    one, two = lora(tmp_path / "one", seed=1), lora(tmp_path / "two", seed=2)

    want(state, sql=one)
    assert (await look(state)).served_adapters == ("sql",)
    base, first = await asyncio.gather(said(engine, "tiny"), said(engine, "sql"))
    assert first != base

    want(state, sql=two, tax=one)
    assert sorted((await look(state)).served_adapters) == ["sql", "tax"]
    assert await said(engine, "sql") not in (base, first), "loaded from elsewhere, in place"
    assert await said(engine, "tax") == first

    wide = lora(tmp_path / "wide", rank=64)
    want(state, tax=one, sql=tmp_path / "nothing", law=wide)
    report = await look(state)
    reasons = {name: reason_of(words) for name, words in report.adapters_failed}
    assert reasons == {"sql": Reason.ADAPTER_NOT_FOUND, "law": Reason.ADAPTER_REFUSED}
    assert state.why_not_ready() is None
    assert await said(engine, "tiny") == base, "what was refused has done no harm"

    want(state)
    assert (await look(state)).served_adapters == ()
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        await said(engine, "tax")
