"""Which programs the pages have people run, and what a test can see of each command without a cluster."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from documents.blocks import ROOT, Command, blocks, commands
from tidepool_api.engine import DEFAULT_IMAGE

CHART: Final = ROOT / "charts" / "tidepool"
# What stands for the reader's own address, and what stands for that where nobody must answer.
GATEWAY: Final = "http://GATEWAY"
CLOSED: Final = "http://127.0.0.1:9"


def known_value(name: str) -> bool:
    """Whether the schema of the chart knows a value by its dotted name."""
    here: Any = _SCHEMA
    for part in name.split("."):
        while "$ref" in here:
            here = _SCHEMA["definitions"][here["$ref"].rsplit("/", 1)[1]]
        for alternative in here.get("allOf", []):
            if "$ref" in alternative:
                here = {**_SCHEMA["definitions"][alternative["$ref"].rsplit("/", 1)[1]], **here}
        here = here.get("properties", {}).get(part)
        if here is None:
            return False
    return True


_SCHEMA: Final[dict[str, Any]] = json.loads((CHART / "values.schema.json").read_text())


def _make(command: Command) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in command.words[1:]:
        name, given, _ = word.partition("=")
        assert re.search(rf"\$\({name}\)" if given else rf"^{name}:", makefile, re.M), word


def _helm(command: Command) -> None:
    """The chart's values; tests/chart/test_commands.py runs it on an API server."""
    for flag, value in zip(command.words, command.words[1:], strict=False):
        if flag == "--set":
            assert known_value(value.partition("=")[0]), value


def _router(command: Command) -> None:
    from tidepool_router import settings, workflow_command
    from tidepool_router.keys_command import run as keys

    arguments = [word.replace(GATEWAY, CLOSED) for word in command.words[1:]]
    if arguments[0] == "workflow":
        assert workflow_command.run(arguments[1:]) == 2  # nobody answers there; what cannot be read raises
    elif arguments[0] == "keys":
        assert keys(arguments[1:]) == 0
    else:
        settings.parse(arguments, {})


def _operator(command: Command) -> None:
    from tidepool_operator.backtest import command as backtest

    assert command.words[1] == "backtest"
    backtest._parser().parse_args(command.words[2:])


def _tidepool(command: Command) -> None:
    from tidepool_cli import options
    from tidepool_cli.__main__ import main

    if command.words[1] == "validate":
        files = [str(path) for pattern in command.words[2:] for path in sorted(ROOT.glob(pattern))]
        assert files
        assert main(["validate", *files]) == 0
    else:
        options.parser("tidepool").parse_args(command.words[1:])


def _docker(command: Command) -> None:
    if command.words[1] == "build":
        file = command.words[command.words.index("--file") + 1]
        assert (ROOT / file).is_file() or file.startswith("vllm/"), file  # vLLM's source is cloned on that page
    for word in command.words:
        if "/tidepool-" in word and ":" in word:
            assert word.rsplit(":", 1)[1] == _version(), word


def _kind(command: Command) -> None:
    _docker(command)


def _git(command: Command) -> None:
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"].values()
    assert {"https://github.com/vllm-project/vllm", *ours} & set(command.words), "from where?"
    assert command.words[command.words.index("--branch") + 1] == DEFAULT_IMAGE.rsplit(":", 1)[1]


def _pip(command: Command) -> None:
    assert not command.words[-1].startswith("tidepool"), "on PyPI that is another project: install the clone, ."
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {extra for extra in re.findall(r"\[(\w+)\]", command.words[-1]) if extra not in extras} == set()


def _pytest(command: Command) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert command.words[command.words.index("-m") + 1] in {one.partition(":")[0] for one in settings["markers"]}
    assert (ROOT / command.words[-1]).exists()


def _kubectl(command: Command) -> None:
    """Its files are there, or a command of the pages makes them; tests/chart/test_commands.py runs it."""
    named = [file for flag, file in zip(command.words, command.words[1:], strict=False) if flag == "-f"]
    made = {each.into for block in blocks() if block.language == "sh" for each in commands(block)}
    assert [file for file in named if file not in {"-", *made} and not (ROOT / file).is_file()] == []
    assert bool(command.stdin) == ("-" in named)


def _curl(command: Command) -> None:
    """tests/documents/test_asking.py sends it to a gateway."""
    assert any(word.startswith((GATEWAY, "http://127.0.0.1:8080/")) for word in command.words)


def _version() -> str:
    return str(yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"])


PROGRAMS: Final[Mapping[str, Callable[[Command], None]]] = {
    "make": _make,
    "helm": _helm,
    "kubectl": _kubectl,
    "curl": _curl,
    "tidepool": _tidepool,
    "tidepool-router": _router,
    "tidepool-operator": _operator,
    "docker": _docker,
    "kind": _kind,
    "git": _git,
    "pip": _pip,
    ".venv/bin/pytest": _pytest,
}
# The test that runs the commands of a program; what has no line here must be marked by its block's title.
RUN_BY: Final[Mapping[str, str]] = {
    "kubectl": "tests/chart/test_commands.py",
    "helm": "tests/chart/test_commands.py",
    "curl": "tests/documents/test_asking.py",
    "tidepool": "tests/documents/test_running.py",
    "tidepool-router": "tests/documents/test_running.py",
    "tidepool-operator": "tests/documents/test_running.py",
    "make": "tests/documents/test_dry_runs.py",
    "pip": "tests/documents/test_dry_runs.py",
    ".venv/bin/pytest": "tests/documents/test_dry_runs.py",
}
# Programs that no test runs, and what the block's title says of them.
_TITLES: Final = {"docker": "Docker", "kind": "kind", "git": "Docker"}
_ROOTS: Final = frozenset({"demo", "test"})


def run_by(file: str) -> frozenset[str]:
    """Programs whose commands the test in this file runs."""
    here = Path(file).resolve()
    return frozenset(program for program, test in RUN_BY.items() if ROOT / test == here)


def needed_for(command: Command) -> set[str]:
    """What a block with this command must be marked with."""
    if command.program in _TITLES:
        return {_TITLES[command.program]}
    if command.program == "make" and "CONTEXT=my-cluster" not in command.words and _ROOTS & set(command.words):
        return {"root"}
    return {"GPUs"} if _applied_gpus(command) else set()


def _applied_gpus(command: Command) -> bool:
    files = [ROOT / word for word in command.words if word.startswith("examples/") and "*" not in word]
    on_a_cluster = command.words[:2] == ("kubectl", "apply")
    return on_a_cluster and any("nvidia.com/gpu" in file.read_text() for file in files)
