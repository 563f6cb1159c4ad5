"""`tidepool-router workflow graph NAME` and `... trace RUN`: what a gateway runs, drawn."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tidepool_router.errors import SettingsError
from tidepool_router.workflow import drawing

_SECONDS = 10.0
_KEY = "TIDEPOOL_API_KEY"


def run(arguments: Sequence[str]) -> int:
    """Exit status: 0 drawn, 2 where the gateway does not answer, or not with what was asked for."""
    parser = argparse.ArgumentParser(prog="tidepool-router workflow", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("graph", "a workflow's name"), ("trace", "a run's id, as runs and chats tell it")):
        command = commands.add_parser(name, help=f"draw {'the steps' if name == 'graph' else 'a run in time'}")
        command.add_argument("name", help=what)
        command.add_argument("--url", default="http://127.0.0.1:8080", help="the gateway (default %(default)s)")
        command.add_argument("--svg", type=Path, metavar="FILE", help="write an SVG there")
        command.add_argument("--html", type=Path, metavar="FILE", help="write a page there")
    given = parser.parse_args(arguments)
    key = os.environ.get(_KEY)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        with httpx.Client(base_url=given.url, headers=headers, timeout=_SECONDS, trust_env=False) as client:
            text, svg = _graph(client, given.name) if given.command == "graph" else _trace(client, given.name)
    except SettingsError as error:
        print(f"tidepool-router: {error}", file=sys.stderr)
        return 2
    if given.svg is not None:
        given.svg.write_text(svg)
    if given.html is not None:
        given.html.write_text(drawing.page(given.name, svg))
    print(text)
    return 0


def _graph(client: httpx.Client, name: str) -> tuple[str, str]:
    workflow = json.loads(_got(client, f"/v1/workflows/{name}"))
    return drawing.graph_text(workflow), drawing.graph_svg(workflow)


def _trace(client: httpx.Client, run: str) -> tuple[str, str]:
    run = run.removeprefix("chatcmpl-")
    for workflow in json.loads(_got(client, "/v1/workflows"))["data"]:
        name = str(workflow["name"]).rpartition("/")[2]
        answer = client.get(f"/v1/workflows/{name}/runs/{run}/events")
        if answer.status_code == httpx.codes.OK:
            bars = drawing.bars_of(_events(answer.text))
            if not bars:
                raise SettingsError(f"the gateway does not remember what happened in {run}; ask for a newer run")
            title = f"{name} {run}"
            return drawing.gantt_text(title, bars), drawing.gantt_svg(title, bars)
    raise SettingsError(f"no workflow of this gateway has a run {run}; runs are kept for a day")


def _events(text: str) -> list[Mapping[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def _got(client: httpx.Client, path: str) -> str:
    """Raises SettingsError with the gateway's own words."""
    try:
        answer = client.get(path)
    except httpx.HTTPError as error:
        raise SettingsError(f"{client.base_url} does not answer ({type(error).__name__}); give --url") from error
    if answer.status_code != httpx.codes.OK:
        raise SettingsError(f"{path} answered {answer.status_code}: {answer.text[:300]}; with keys, set {_KEY}")
    return answer.text
