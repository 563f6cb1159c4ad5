"""The fenced blocks of README.md, CONTRIBUTING.md and docs/, and the commands in those of a shell."""

import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCE: Final = re.compile(r"^ *(```+)(.*)$")
_INFO: Final = re.compile(r'^(?P<language>[a-z]+)?(?: title="(?P<title>[^"]+)")?$')
_FENCED: Final = re.compile(r"^ *```.*?^ *```", re.M | re.S)
_PROMPT: Final = "$ "
_OPERATORS: Final = "|&<>;"
# Languages whose blocks are commands.
SHELLS: Final = frozenset({"sh", "console"})


@dataclass(frozen=True, slots=True)
class Block:
    """One block: where it begins, its language, the title that marks what it needs, and its text."""

    page: str
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def first(self) -> str:
        """Its first line."""
        return self.text.partition("\n")[0].strip()


@dataclass(frozen=True, slots=True)
class Command:
    """One command, as a shell would run it; `into`: the file it prints to, `said`: what the page shows.

    `line` is that of the page where it begins.
    """

    words: tuple[str, ...]
    environment: tuple[str, ...] = ()
    stdin: str = ""
    background: bool = False
    said: str = ""
    into: str = ""
    line: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return shlex.join(self.words)

    @property
    def program(self) -> str:
        """The first word."""
        return self.words[0]


@cache
def blocks() -> tuple[Block, ...]:
    """All blocks of all pages."""
    return tuple(block for page in PAGES for block in read(page.read_text(), str(page.relative_to(ROOT))))


def read(text: str, page: str) -> Iterator[Block]:
    """Raises ValueError for a fence that is not closed, or whose first line says what nobody knows."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        fence = _FENCE.match(line)
        if fence is None:
            continue
        info = _INFO.match(fence[2].strip())
        if info is None:
            raise ValueError(f"{page}:{number}: {fence[2]}: write a language, and what it needs as a title")
        inside = []
        for _, each in lines:
            if each.strip() == fence[1]:
                break
            inside.append(each)
        else:
            raise ValueError(f"{page}:{number}: the block does not end")
        yield Block(page, number, info["language"] or "", info["title"] or "", "\n".join(inside))


def commands(block: Block) -> list[Command]:
    """The commands of a block. In `console` they stand after `$ `, and what they say follows."""
    found: list[Command] = []
    lines = _lines(block)
    for number, line in lines:
        prompted = line.startswith(_PROMPT)
        if block.language == "console" and not prompted:
            found[-1] = _saying(found[-1], line)
            continue
        command = _command(line.removeprefix(_PROMPT))
        if command is not None:
            here = re.search(r"<<(\w+)", line)
            stdin = "" if here is None else "".join(f"{each}\n" for each in _until(lines, here[1]))
            found.append(replace(command, stdin=stdin, line=number))
    return found


def typed(programs: Collection[str]) -> list[tuple[Block, Command]]:
    """The commands of these programs in all pages, each with its block."""
    shells = [block for block in blocks() if block.language in SHELLS]
    return [(block, each) for block in shells for each in commands(block) if each.program in programs]


def prose(text: str) -> str:
    """A page without its blocks, in as many lines."""
    return _FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)


def section_of(block: Block) -> str:
    """The text around a block, from the last heading before it to the next one after it."""
    lines = prose((ROOT / block.page).read_text()).splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("#")]
    begin = max((start for start in starts if start < block.line), default=0)
    end = min((start for start in starts if start > block.line), default=len(lines))
    return "\n".join(lines[begin:end])


def _lines(block: Block) -> Iterator[tuple[int, str]]:
    """Lines of a block by their numbers in the page; after a backslash a line goes on."""
    number = block.line + 1
    for line in block.text.replace("\\\n", "\0").split("\n"):
        yield number, line.replace("\0", " ")
        number += 1 + line.count("\0")


def _until(lines: Iterator[tuple[int, str]], end: str) -> Iterator[str]:
    for _, line in lines:
        if line == end:
            return
        yield line
    raise ValueError(f"no {end} ends what the command reads")


def _saying(command: Command, line: str) -> Command:
    return replace(command, said=f"{command.said}{line}\n")


def _command(line: str) -> Command | None:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    words: list[str] = []
    background, into = False, ""
    tokens = iter(lexer)
    for token in tokens:
        if not set(token) <= set(_OPERATORS):
            words.append(token)
        elif token == ">":
            into = next(tokens)
        elif token == "<<":
            next(tokens)
        elif token == "&":
            background = True
        else:
            raise ValueError(f"{line}: write one command a line, without {token}")
    given = 0
    while given < len(words) and re.match(r"^[A-Z_]+=", words[given]):
        given += 1
    if len(words) == given:
        return None
    return Command(tuple(words[given:]), tuple(words[:given]), background=background, into=into)
