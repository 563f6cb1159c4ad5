"""Workflows and runs, drawn."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from scripted.upstreams import Seen
from tidepool_router import workflow_command
from tidepool_router.workflow import drawing
from workflows.examples import spec_of
from workflows.rooms import Place, http

Start = Callable[..., Awaitable[Place]]


def step(name: str, *needs: str, **more: Any) -> dict[str, Any]:
    plain = {"kind": "llm", "role": "step", "soft": False, "items": False, "pools": ["p"]}
    return {"name": name, "needs": list(needs), **plain, **more}


DIAMOND = {"name": "w", "steps": [step("end", "b", "c"), step("b", "a"), step("a"), step("c", "a", soft=True)]}
EVENTS = [
    {"type": "step", "step": "a", "item": None, "phase": "Running", "at": 100.0},
    {"type": "step", "step": "b", "item": 1, "phase": "Running", "at": 100.5},
    {"type": "step", "step": "a", "item": None, "phase": "Waiting", "at": 101.0, "reason": "answered <503>"},
    {"type": "step", "step": "a", "item": None, "phase": "Running", "at": 102.0},
    {"type": "step", "step": "a", "item": None, "phase": "Succeeded", "at": 104.0},
    {"type": "run", "phase": "Cancelled", "at": 104.0},
]


def test_steps_stand_after_what_they_wait_for() -> None:
    lines = drawing.graph_text(DIAMOND).splitlines()

    assert [line.split()[0] for line in lines] == ["w", "a", "b", "c", "end"]
    assert lines[-1].endswith("after b, c")
    assert "Soft" in lines[3]


def test_an_arrow_leads_from_each_need() -> None:
    svg = ET.fromstring(drawing.graph_svg(DIAMOND))

    assert len(svg.findall("{http://www.w3.org/2000/svg}path")) == 4
    assert len(svg.findall("{http://www.w3.org/2000/svg}rect")) == 4


def test_each_try_is_a_bar_and_what_has_not_ended_goes_to_the_end() -> None:
    bars = drawing.bars_of(EVENTS)

    assert [(bar.name, bar.began, bar.ended, bar.phase) for bar in bars] == [
        ("a", 0.0, 1.0, "Waiting"),
        ("b[1]", 0.5, 4.0, "Running"),
        ("a", 2.0, 4.0, "Succeeded"),
    ]
    text = drawing.gantt_text("run", bars, columns=8)
    assert "a    |    ████|" in text
    assert "answered <503>" in text
    ET.fromstring(drawing.gantt_svg("run <1>", bars))  # what people wrote breaks no markup


@pytest.mark.traffic
async def test_a_gateway_draws_runs_that_another_one_drove(place: Start, tmp_path: Path) -> None:
    async def tool(seen: Seen) -> None:
        await asyncio.sleep(0.05)
        await seen.answer(b"{}")

    store = f"sqlite:///{tmp_path}/runs.db"
    spec = {"steps": [http("a", "http://tool/"), http("b", "http://tool/", depends="a", withItems=[1, 2])]}
    here = await place(spec, tool=tool, store=store)
    run = (await here.client.post("/v1/workflows/research/runs", json={})).json()["id"]
    there = await place(spec, store=store, place=here)
    told = [await one.client.get(f"/v1/workflows/research/runs/{run}/events") for one in (here, there)]

    for one in told:
        bars = drawing.bars_of([json.loads(line[6:]) for line in one.text.splitlines() if line])
        assert [(bar.name, bar.phase) for bar in bars] == [(name, "Succeeded") for name in ("a", "b[0]", "b[1]")]
        first, *items = bars
        assert all(bar.ended - bar.began > 0.04 for bar in bars)  # the tool takes 0.05 s
        assert all(item.began >= first.ended - 0.002 for item in items)


def test_a_run_in_which_nothing_happened_is_drawn_empty() -> None:
    assert drawing.bars_of([]) == []
    assert drawing.gantt_text("run", []).startswith("run")


@pytest.mark.traffic
async def test_the_command_draws_what_a_gateway_runs(
    place: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = await place(spec_of("digest-workflow.yaml"))
    url = f"http://127.0.0.1:{here.router.port}"
    run = (await here.chat("why")).json()["id"]

    assert await asyncio.to_thread(workflow_command.run, ["graph", "research", "--url", url]) == 0
    assert "after summary" in capsys.readouterr().out
    html = tmp_path / "run.html"
    assert await asyncio.to_thread(workflow_command.run, ["trace", run, "--url", url, "--html", str(html)]) == 0
    out = capsys.readouterr().out
    assert "summary" in out
    assert "Succeeded" in out
    assert "<svg" in html.read_text()
    for words, told in (
        (["graph", "research"], lambda plain: [step["name"] for step in plain["steps"]] == ["summary", "check"]),
        (["trace", run], lambda plain: {bar["phase"] for bar in plain["bars"]} == {"Succeeded"}),
    ):
        assert await asyncio.to_thread(workflow_command.run, [*words, "--url", url, "-o", "json"]) == 0
        assert told(json.loads(capsys.readouterr().out))
    assert await asyncio.to_thread(workflow_command.run, ["trace", "run-0", "--url", url]) == 2
    assert "no workflow of this gateway has a run run-0" in capsys.readouterr().err
    assert json.loads((await here.client.get("/v1/workflows/research")).text)["steps"][0]["name"] == "summary"
