"""`tidepool route`, sent to a gateway before a sidecar before the engine double."""

import asyncio
import json
from pathlib import Path

import pytest

from fakes.engine import EngineDouble
from scripted.routers import StartRouter
from tidepool_cli import __main__ as program

pytestmark = pytest.mark.traffic


@pytest.mark.parametrize("explains", [True, False])
async def test_it_tells_which_pod_got_the_prompt_and_why(
    explains: bool, sidecar: StartRouter, gateway: StartRouter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Why do tides rise twice a day?")
    async with EngineDouble() as engine:
        pod = await sidecar(engine.url, pod="pod-7")
        front = await gateway(f"http://127.0.0.1:{pod.port}")
        front.state.pools["default/pool"].explains = explains
        words = ["route", "--model", "tiny", "--prompt-file", str(file), "--url", f"http://127.0.0.1:{front.port}"]

        assert await asyncio.to_thread(program.main, words) == 0
        told = capsys.readouterr().out
        assert await asyncio.to_thread(program.main, [*words, "-o", "json"]) == 0
        plain = json.loads(capsys.readouterr().out)

    assert told.splitlines()[0] == "pod: pod-7"
    assert ("harm=" in told) is explains
    assert ("--debug-scores" in told) is not explains  # what to do for more
    assert (plain["pod"], plain["usage"]["completion_tokens"]) == ("pod-7", 1)
    assert bool(plain["scores"]) is explains
