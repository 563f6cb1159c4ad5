"""`tidepool-router workflow graph NAME` and `trace RUN` draw what a gateway runs; `replay RUN` runs it again."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tidepool_router.errors import SettingsError
from tidepool_router.workflow import drawing

_SECONDS = 10.0
_KEY = "TIDEPOOL_API_KEY"
_LOOK_SECONDS = 0.2
# After a run's deadline: its exit step.
_EXIT_SECONDS = 60.0


def run(arguments: Sequence[str]) -> int:
    """Exit status: 0 drawn, or replayed to the same result; 1 replayed to another one; 2 where that cannot be."""
    parser = argparse.ArgumentParser(prog="tidepool-router workflow", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("graph", "a workflow's name"), ("trace", "a run's id, as runs and chats tell it")):
        command = commands.add_parser(name, help=f"draw {'the steps' if name == 'graph' else 'a run in time'}")
        command.add_argument("name", help=what)
        command.add_argument("--svg", type=Path, metavar="FILE", help="write an SVG there")
        command.add_argument("--html", type=Path, metavar="FILE", help="write a page there")
    command = commands.add_parser("replay", help="run one again on what its tools answered, and compare")
    command.add_argument("name", help="a run's id")
    for command in commands.choices.values():
        command.add_argument(
            "-o", "--output", choices=("text", "json"), default="text", help="json is for machines"
        )
        command.add_argument("--url", default="http://127.0.0.1:8080", help="the gateway (default %(default)s)")
    given = parser.parse_args(arguments)
    key = os.environ.get(_KEY)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        with httpx.Client(base_url=given.url, headers=headers, timeout=_SECONDS, trust_env=False) as client:
            if given.command == "replay":
                return _replay(client, given.name, given.output)
            drawn = _graph(client, given.name) if given.command == "graph" else _trace(client, given.name)
    except SettingsError as error:
        print(f"tidepool-router: {error}", file=sys.stderr)
        return 2
    if given.svg is not None:
        given.svg.write_text(drawn.svg)
    if given.html is not None:
        given.html.write_text(drawing.page(given.name, drawn.svg))
    print(drawn.text if given.output == "text" else json.dumps(drawn.plain, indent=2))
    return 0


class Drawn(NamedTuple):
    """The same for people, for browsers and for machines."""

    text: str
    svg: str
    plain: Mapping[str, Any]


def _graph(client: httpx.Client, name: str) -> Drawn:
    workflow = json.loads(_got(client, f"/v1/workflows/{name}"))
    return Drawn(drawing.graph_text(workflow), drawing.graph_svg(workflow), workflow)


def _trace(client: httpx.Client, run: str) -> Drawn:
    run = run.removeprefix("chatcmpl-")
    for workflow in json.loads(_got(client, "/v1/workflows"))["data"]:
        name = str(workflow["name"]).rpartition("/")[2]
        answer = client.get(f"/v1/workflows/{name}/runs/{run}/events")
        if answer.status_code == httpx.codes.OK:
            bars = drawing.bars_of(_events(answer.text))
            if not bars:
                raise SettingsError(f"the gateway does not remember what happened in {run}; ask for a newer run")
            title = f"{name} {run}"
            plain = {"run": run, "workflow": name, "bars": [asdict(bar) for bar in bars]}
            return Drawn(drawing.gantt_text(title, bars), drawing.gantt_svg(title, bars), plain)
    raise SettingsError(f"no workflow of this gateway has a run {run}; runs are kept for a day")


def _replay(client: httpx.Client, run: str, output: str) -> int:
    run = run.removeprefix("chatcmpl-")
    path = next((path for path in _paths(client, run) if client.get(path).status_code == httpx.codes.OK), None)
    if path is None:
        raise SettingsError(f"no workflow of this gateway has a run {run}; runs are kept for a day")
    begun = client.post(f"{path}/replay")
    if begun.status_code != httpx.codes.ACCEPTED:
        raise SettingsError(f"{run} cannot be replayed: {begun.status_code}: {begun.text[:300]}")
    again = str(begun.json()["id"])
    first, second = json.loads(_got(client, path)), _ended(client, f"{path.rpartition('/')[0]}/{again}")
    differs = list(second.get("differs") or ())
    same = not differs and (first["phase"], first["output"]) == (second["phase"], second["output"])
    if output == "json":
        told = {"run": run, "again": again, "phase": second["phase"], "reason": second["reason"], "same": same}
        print(json.dumps({**told, "differs": differs}, indent=2))
        return 0 if same else 1
    what = "the same result" if same else f"another result: {', '.join(differs[:20]) or 'its output'} differ"
    seed = "" if first.get("seed") is not None else "; it has no seed, so models answer anew"
    print(f"{run} replayed as {again}: {second['phase']} {second['reason']}".rstrip() + f"; {what}{seed}")
    return 0 if same else 1


def _ended(client: httpx.Client, path: str) -> dict[str, Any]:
    """A run's state, when it is over. Raises SettingsError."""
    while True:
        state: dict[str, Any] = json.loads(_got(client, path))
        if state["ended"] is not None:
            return state
        if time.time() > state["deadline"] + _EXIT_SECONDS:
            raise SettingsError(f"{path} does not end; look at it there")
        time.sleep(_LOOK_SECONDS)


def _paths(client: httpx.Client, run: str) -> Iterator[str]:
    """Where a run may be, one for each workflow."""
    for workflow in json.loads(_got(client, "/v1/workflows"))["data"]:
        yield f"/v1/workflows/{str(workflow['name']).rpartition('/')[2]}/runs/{run}"


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
