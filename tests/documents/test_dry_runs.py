"""Commands of the pages that would build, install or take hours, run without doing it and without a network.

make says what it would do, a resolver what pip would install, pytest what it would run.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from documents.blocks import ROOT, Command, typed
from documents.desk import Desk
from documents.programs import run_by
from documents.spans import spoken

pytestmark = pytest.mark.traffic

_PYTHON = ("python", ".venv/bin/python")


def _those(*programs: str) -> list[Any]:
    """Commands of these programs, in blocks and running text; the same one once."""
    assert run_by(__file__) | set(_PYTHON) >= set(programs)
    blocks = [(f"{block.page}:{command.line}", command) for block, command in typed(programs)]
    found = [*blocks, *((str(each), each.command) for each in spoken(programs))]
    once = {(command.environment, command.words): (where, command) for where, command in reversed(found)}
    return [pytest.param(command, id=where) for where, command in once.values()]


async def _run(command: Command, words: Sequence[str]) -> str:
    environment = dict(each.split("=", 1) for each in command.environment)
    said = await Desk(ROOT, environment).run(*words)
    assert said.status == 0, f"{command}\n{said.out}{said.err}"
    return said.out + said.err


@pytest.mark.parametrize("command", _those("make"))
async def test_make_knows_what_to_do(command: Command) -> None:
    assert await _run(command, (*command.words, "--dry-run"))


@pytest.mark.parametrize("command", _those("pip"))
async def test_pip_finds_all_that_it_is_to_install(command: Command) -> None:
    """By uv, which this environment has whatever made it. Of what it installs all but the clone is there."""
    arguments = ("--dry-run", "--offline", "--no-cache", "--python", sys.executable)
    said = await _run(command, ("uv", *command.words, *arguments))

    assert "Would install 1 package" in said
    assert "does not have an extra" not in said


@pytest.mark.parametrize("command", _those(".venv/bin/pytest"))
async def test_pytest_finds_tests(command: Command) -> None:
    assert "::test_" in await _run(command, (sys.executable, "-m", "pytest", *command.words[1:], "--co", "-q"))


@pytest.mark.parametrize("command", _those(*_PYTHON))
async def test_python_finds_what_it_is_to_run(command: Command) -> None:
    """The module or file, and the options that are named; what has no options is compiled alone."""
    words = command.words[1:]
    roots = [ROOT / "tests", ROOT / "e2e"]
    name = words[1].replace(".", "/") if words[0] == "-m" else words[0]
    places = [place / f"{name}{end}" for place in roots for end in (".py", "/__main__.py")] + [ROOT / name]
    (file,) = [place for place in places if place.is_file()]
    options = [word for word in words[1:] if word.startswith("--")]
    if not options:
        compile(file.read_text(), file, "exec")
        return
    path = ":".join([*map(str, roots), os.environ.get("PYTHONPATH", "")])
    said = await _run(
        replace(command, environment=(f"PYTHONPATH={path}",)), (sys.executable, *words[:2], "--help")
    )
    assert [option for option in options if option not in said] == []
