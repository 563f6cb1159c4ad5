"""Commands of our own programs in the pages: what each wants of its surroundings, and what it must print."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from documents.blocks import Command, typed
from documents.programs import RUN_BY
from documents.spans import spoken

_TEST: Final = "tests/documents/test_running.py"


class Wants(Enum):
    """What a command must have to do its work."""

    FILES = "files"
    CLUSTER = "an API server"
    GATEWAY = "a gateway"
    PROMETHEUS = "a Prometheus"
    SIGNAL = "to be told to end"


# By the word after the program: what it wants, and what stands in what it prints.
_TIDEPOOL: Final[Mapping[str, tuple[Wants, str]]] = {
    "top": (Wants.CLUSTER, r"llama-8b +0/1"),
    "explain": (Wants.CLUSTER, r"Add nodes\."),
    "diagnose": (Wants.CLUSTER, r"wrote tidepool-llama-8b-\w+\.tar\.gz: \d+ files"),
    "run": (Wants.CLUSTER, r"^Twice a day\.$"),
    "usage": (Wants.CLUSTER, r"search\b.*\bllama-8b|x3kq7n2d,2026-11-15"),
    "route": (Wants.GATEWAY, r"^pod: pod-1$"),
    "trace": (Wants.GATEWAY, r"^ *summary \|.*█"),
    "graph": (Wants.GATEWAY, r"^ *summary "),
    "validate": (Wants.FILES, r"^\d+ objects: sound"),
    "completion": (Wants.FILES, r"complete .*tidepool"),
    "backtest": (Wants.FILES, r"^one that knows +\d"),
}
_ROUTER: Final[Mapping[str, tuple[Wants, str]]] = {
    "keys": (Wants.FILES, r"^tp-"),
    "replay": (Wants.FILES, r'"decisions": 1,'),
    "usage": (Wants.FILES, r"search\b.*\bllama-8b"),
    "workflow graph": (Wants.GATEWAY, r"^ *analyse .*search"),
    "workflow trace": (Wants.GATEWAY, r"^ *summary \|.*█"),
    "workflow replay": (Wants.GATEWAY, r"the same result$"),
    "gateway": (Wants.SIGNAL, ""),
    "sidecar": (Wants.SIGNAL, ""),
}
_VERBS: Final[Mapping[str, Mapping[str, tuple[Wants, str]]]] = {
    "tidepool": _TIDEPOOL,
    "tidepool-router": _ROUTER,
    "tidepool-operator": {"backtest": _TIDEPOOL["backtest"]},
}
# What running text names without what it wants: its help is asked for.
_NAMED: Final = frozenset({("tidepool", "route"), ("tidepool", "backtest")})


@dataclass(frozen=True, slots=True)
class Line:
    """One command of a page, and what must be found in what it prints; `where` it and its `block` begin."""

    where: str
    block: str
    command: Command
    wants: Wants
    prints: str

    def __str__(self) -> str:
        return self.where


def lines() -> list[Line]:
    """All of them, of blocks and of running text."""
    programs = {program for program, test in RUN_BY.items() if test == _TEST}
    blocks = [line(f"{block.page}:{command.line}", str(block), command) for block, command in typed(programs)]
    text = [each for each in spoken({*programs, "kubectl"}) if _ours(each.command)]
    return [*blocks, *(line(str(each), "", each.command) for each in text)]


def _ours(command: Command) -> bool:
    return command.program != "kubectl" or (command.words[1] == "tidepool" and len(command.words) > 2)


def line(where: str, block: str, command: Command) -> Line:
    """What nobody knows is run as well, and nothing that it prints will do."""
    words = command.words[1:] if command.words[:2] == ("kubectl", "tidepool") else command.words
    if words in _NAMED:
        return Line(where, block, Command((*words, "--help")), Wants.FILES, f"^usage: .*{words[1]}")
    known = _VERBS[words[0]]
    wants, prints = known.get(words[1]) or known.get(" ".join(words[1:3])) or (Wants.FILES, "(?!)")
    return Line(where, block, command, Wants.PROMETHEUS if "--prometheus" in words else wants, prints)
