"""Lines that guard public reports, and the proof: without its line a report's test is red."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.so")


@dataclass(frozen=True)
class Guard:
    """`line` stands once in `file`; with `broken` in its place `test` (under tests) fails."""

    report: int
    what: str
    test: str
    file: str
    line: str
    broken: str

    def apply(self, text: str) -> str:
        """The file's text without the guard."""
        if text.count(self.line) != 1:
            raise LookupError(f"report {self.report}: {self.file} has {text.count(self.line)} times {self.line!r}")
        return text.replace(self.line, self.broken)


def red_without(guard: Guard, parts: Sequence[str], options: Sequence[str], seconds: float) -> bool:
    """Whether the test fails once the guard is gone from a copy of `parts`; `options` are pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in parts:
            shutil.copytree(ROOT / part, copy / part, ignore=_LEFT_OUT)
        path = copy / guard.file
        path.write_text(guard.apply(path.read_text()))
        module, _, name = guard.test.partition("::")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options]
        # Not two names that begin alike: a test is named by its beginning, for parameters follow.
        command += [str(TESTS / module), "-k", name]
        paths = os.pathsep.join(str(one) for one in (*(copy / part for part in parts), TESTS))
        environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, timeout=seconds, check=False
        )
    if done.returncode not in (0, 1):
        print(done.stdout.decode()[-2000:])
    return done.returncode == 1


def prove(
    guards: Sequence[Guard], wanted: Sequence[str], parts: Sequence[str], options: Sequence[str], seconds: float
) -> int:
    """Each guard of the reports `wanted`, or of all, a line; 0 when every one is one."""
    green = []
    for guard in guards:
        if wanted and str(guard.report) not in wanted:
            continue
        red = red_without(guard, parts, options, seconds)
        print(
            f"report {guard.report:>2}  {'red' if red else 'STILL GREEN'}  {guard.what}  {guard.test}", flush=True
        )
        if not red:
            green.append(guard)
    return 1 if green else 0
