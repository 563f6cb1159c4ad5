"""Where a reader types commands: a folder, what a shell has there, and what stands for the reader's own words."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chart.programs import NAMESPACE, ROOT
from documents.blocks import Command

# Bytecode is kept, as it is for a reader: each start of a program would compile hundreds of modules anew.
KEPT: Final = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "pycache")}
_SECONDS: Final = 120.0
POOL: Final = "llama-8b"
# What the pages write for something of the reader's, and what the desk has of it.
_READERS: Final[Mapping[str, tuple[str, ...]]] = {
    "NAME": (POOL,),
    "NAMESPACE": (NAMESPACE,),
    "POOL": (POOL,),
    "M": (POOL,),
    "F": ("prompt.txt",),
    "FILE": ("picks.jsonl",),
    "FILE...": ("examples/digest-workflow.yaml", "examples/modelpool-gpu.yaml"),
    "WORKFLOW": ("digest",),
    "JSON": ('{"text": "tides"}',),
    "[-A]": ("-A",),
    "bash|zsh|fish": ("bash",),
}


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


# Answers what it has read of the program's errors.
Beside = Callable[[asyncio.subprocess.Process], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Desk:
    """`programs`: folders of more programs; `meant`: what words and addresses of the pages stand for here."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    programs: tuple[Path, ...] = ()
    meant: Mapping[str, str] = field(default_factory=dict)

    def words(self, command: Command) -> list[str]:
        """What a shell here would give to the program, and the program."""
        return [word for each in command.words for word in self._read(each)]

    def _read(self, word: str) -> Iterator[str]:
        for said, meant in self.meant.items():
            if "://" in said:
                word = word.replace(said, meant)
            elif word == said:
                word = meant
        if word in _READERS:
            yield from _READERS[word]
        elif "*" in word:
            yield from sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(word))
        else:
            yield word

    async def run(self, *words: str, beside: Beside | None = None) -> Said:
        """Run a program to its end; ours are those of this Python's environment. `beside` goes on meanwhile."""
        here = _surroundings()
        path = ":".join([*map(str, (*self.programs, Path(sys.executable).parent)), here["PATH"]])
        process = await asyncio.create_subprocess_exec(
            *words, cwd=self.folder, env={**here, **KEPT, **self.environment, "PATH": path},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_SECONDS):
                begun = "" if beside is None else await beside(process)
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return Said(process.returncode or 0, out.decode(), begun + err.decode())


def _surroundings() -> dict[str, str]:
    """Variables of this process, without those that our programs or make obey."""
    ours = ("TIDEPOOL_", "OTEL_", "MAKE", "MFLAGS")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
