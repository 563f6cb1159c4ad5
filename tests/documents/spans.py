"""Commands in the running text of pages: the code spans that begin with a program.

Records of decisions are left out: they tell of what was weighed and not taken too.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from documents.blocks import PAGES, ROOT, Command, prose

_SPAN: Final = re.compile(r"`([^`]+)`")
_ASSIGNED: Final = re.compile(r"^[A-Z_]+=")


@dataclass(frozen=True, slots=True)
class Spoken:
    """One span: where it stands, what it says on one line, and its words, without quotes."""

    page: str
    line: int
    text: str
    command: Command

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def spoken(programs: Collection[str]) -> list[Spoken]:
    """Spans that begin with one of these programs and say more than its name."""
    return [each for each in _all() if each.command.program in programs and len(each.command.words) > 1]


@cache
def _all() -> tuple[Spoken, ...]:
    pages = [page for page in PAGES if "decisions" not in page.parts]
    return tuple(each for page in pages for each in _of(page))


def _of(page: Path) -> Iterator[Spoken]:
    text = prose(page.read_text())
    for span in _SPAN.finditer(text):
        said = " ".join(span[1].replace("\\|", "|").split())  # in a cell of a table a bar has a backslash
        command = _command(said)
        if command is not None:
            yield Spoken(str(page.relative_to(ROOT)), text.count("\n", 0, span.start()) + 1, said, command)


def _command(text: str) -> Command | None:
    words = [word.strip("'\"") for word in text.split()]
    given = next((index for index, word in enumerate(words) if not _ASSIGNED.match(word)), len(words))
    return Command(tuple(words[given:]), tuple(words[:given])) if words[given:] else None
