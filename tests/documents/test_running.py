"""Every command of our own programs in the pages is run as it stands there, and does what the page says.

Of a cluster there is a real API server with the chart on it; what the operator would write is written by the test.
Gateways have a double of an engine behind them.
"""

import asyncio
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from documents import supplies
from documents.blocks import Command, typed
from documents.desk import KEPT, POOL, Desk, Said
from documents.ours import Line, Wants, lines
from documents.programs import CLOSED, GATEWAY
from documents.serving import address, serving
from documents.spans import Spoken, spoken
from documents.stage import READY, Stage, staged
from fakes.collector import Collector
from fakes.engine import EngineDouble
from fakes.prometheus import Pages, Prometheus
from fakes.settings import EngineSettings
from scripted.programs import Program, run_program

ALL = lines()
_SIDECAR = "http://127.0.0.1:8090"


def _those(wants: Wants) -> list[Any]:
    return [pytest.param(each, id=str(each)) for each in ALL if each.wants is wants]


def _judge(each: Line, said: Said) -> None:
    """It ended well, said what it should, and what the page shows of that."""
    told = said.out + said.err
    assert said.status == 0, f"{each.command}\n{told}"
    assert re.search(each.prints, told, re.M), f"{each.command}\n{told}"
    # Ids and what has an ellipsis are new each time.
    shown = re.escape(each.command.said).replace("x3kq7n2d", r"\w+").replace(r"\.\.\.", r"\w+")
    assert not shown or re.fullmatch(shown, said.out), f"{each.command}\n{said.out}"


def _look_at_files(desk: Desk, words: list[str]) -> None:
    """What it was told to write is what the name says."""
    begins = {"--html": b"<!doctype html>", "--plot": b"\x89PNG"}
    for flag, file in pairwise(words):
        if flag in begins:
            assert (desk.folder / file).read_bytes().startswith(begins[flag])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("desk")
    supplies.lay(made)
    return made


@pytest.fixture
async def desk(folder: Path, tmp_path: Path) -> Desk:
    """With a store that has usage, as a gateway's container knows it."""
    store = f"sqlite:///{tmp_path}/usage.db"
    await supplies.count_usage(store)
    return Desk(folder, {"TIDEPOOL_USAGE_STORE": store}, meant={"URL": store})


@pytest.mark.traffic
@pytest.mark.parametrize("each", _those(Wants.FILES))
async def test_what_needs_files_alone(each: Line, desk: Desk) -> None:
    (desk.folder / "pool.yaml").write_bytes((desk.folder / "examples/modelpool-gpu.yaml").read_bytes())

    _judge(each, await desk.run(*desk.words(each.command)))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("home")) as made:
        yield made


@pytest.mark.apiserver
@pytest.mark.parametrize("each", _those(Wants.CLUSTER))
async def test_what_asks_a_cluster(each: Line, desk: Desk, stage: Stage) -> None:
    asking = replace(desk, environment={**desk.environment, **stage.environment}, programs=(stage.programs,))
    beside = partial(_have_run_end, stage) if "run" in each.command.words else None

    _judge(each, await asking.run(*asking.words(each.command), beside=beside))


async def _have_run_end(stage: Stage, process: asyncio.subprocess.Process) -> str:
    """Write what the operator would when the run has ended that the command names first."""
    assert process.stderr is not None
    begun = (await process.stderr.readline()).decode()
    if begun.startswith("run "):
        stage.tell(f"awr/{begun.split()[1]}", {"phase": "Succeeded", "output": "Twice a day."})
    return begun


# All look at the same objects.
_CHANGING = frozenset({"delete", "scale"})


def _looks() -> list[Any]:
    """What running text has kubectl do, each once; without an object it is a name of what kubectl can do."""
    asked = [each for each in spoken({"kubectl"}) if len(each.command.words) > 2]
    whole = [each for each in asked if not each.command.words[2].startswith("-")]
    once = {each.text: each for each in reversed(whole) if each.command.words[1] != "tidepool"}
    return [pytest.param(each, id=str(each)) for each in once.values()]


@pytest.mark.apiserver
@pytest.mark.parametrize("each", _looks())
async def test_what_running_text_has_kubectl_do(each: Spoken, desk: Desk, stage: Stage) -> None:
    asking = replace(desk, environment=stage.environment, programs=(stage.programs,))
    dry = " --dry-run=server" if each.command.words[1] in _CHANGING else ""
    said = await asking.run("sh", "-c", each.text.replace("NAME", READY) + dry)

    assert said.status == 0, f"{each.text}\n{said.err}"


@pytest.mark.traffic
@pytest.mark.parametrize("each", _those(Wants.GATEWAY))
async def test_what_asks_a_gateway(each: Line, desk: Desk, tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        body = {"model": "workflow/digest", "seed": 7, "messages": [{"role": "user", "content": "Tides rise."}]}
        run = (await place.client.post("/v1/chat/completions", json=body)).json()["id"]
        asking = replace(desk, meant={GATEWAY: address(place), "RUN": run})
        words = asking.words(each.command)
        forwarded = [] if "--url" in words else ["--url", address(place)]

        _judge(each, await asking.run(*words, *forwarded))
        _look_at_files(desk, words)


@pytest.mark.prometheus
@pytest.mark.apiserver
@pytest.mark.parametrize("each", _those(Wants.PROMETHEUS))
async def test_what_asks_prometheus(each: Line, desk: Desk, stage: Stage, tmp_path: Path) -> None:
    (desk.folder / "pool.yaml").write_text(stage.kubectl("get", "mp", POOL, "-o", "yaml"))
    pages = Pages()
    server = Prometheus(tmp_path / "prometheus", pages.port, {}, interval="1h")
    server.fill(supplies.samples("default", POOL))
    server.start()
    try:
        await asyncio.to_thread(server.until, "vector(1)", 1)
        asking = replace(desk, meant={"http://prometheus:9090": server.url})
        words = asking.words(each.command)

        _judge(each, await asking.run(*words))
        _look_at_files(desk, words)
    finally:
        server.stop()
        pages.close()


def _servers() -> list[Any]:
    """Programs that serve, those of one block together."""
    places: dict[str, list[Line]] = {}
    for each in ALL:
        if each.wants is Wants.SIGNAL:
            places.setdefault(each.block or each.where, []).append(each)
    return [pytest.param(together, id=together[0].where) for together in places.values()]


@pytest.mark.traffic
@pytest.mark.parametrize("together", _servers())
async def test_what_serves(together: list[Line], desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a block stand one before the other, answer what the block asks, and end when they are told to."""
    monkeypatch.chdir(desk.folder)
    async with (
        EngineDouble(EngineSettings(model=POOL)) as engine,
        Collector() as collector,
        AsyncExitStack() as stack,
    ):
        meant = {"http://127.0.0.1:8000": engine.url, "...": f"--engine={engine.url}", _SIDECAR: CLOSED,
                 "http://collector:4318": collector.url}  # fmt: skip
        running: list[Program] = []
        for each in together:
            (desk.folder / "fleet.yaml").write_text(supplies.fleet().replace(_SIDECAR, meant[_SIDECAR]))
            words = replace(desk, meant=meant).words(each.command)
            ready = "/healthz" if words[1] == "gateway" else "/engine/ready"
            running.append(await stack.enter_async_context(run_program(*words[1:], ready=ready, environment=KEPT)))
            meant[_listens(words)] = running[-1].url()
        for command in _asked(together[0].block):
            said = await replace(desk, meant=meant).run(*replace(desk, meant=meant).words(command), "-sS")
            assert said.status == 0, said
            assert said.out.endswith("data: [DONE]\n\n"), said
        assert [(await program.stop())[0] for program in reversed(running)] == [0] * len(running)


def _listens(words: list[str]) -> str:
    """Where the page says that a router listens."""
    port = words[words.index("--port") + 1] if "--port" in words else "8080"
    return f"http://127.0.0.1:{port}"


def _asked(where: str) -> list[Command]:
    """What a block asks by curl."""
    return [command for block, command in typed({"curl"}) if str(block) == where]
