"""What the machine says: CPU time of process trees and of cores, and the facts that belong beside a figure."""

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def tree(pid: int) -> list[int]:
    """A process and all its descendants that live."""
    found, unseen = [], [pid]
    while unseen:
        current = unseen.pop()
        found.append(current)
        for children in _PROC.glob(f"{current}/task/*/children"):
            try:
                unseen += map(int, children.read_text().split())
            except OSError:  # the thread ended between the two looks
                continue
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process tree, with children that have been waited for; 10 ms resolution."""
    ticks = 0
    for one in tree(pid):
        try:
            fields = (_PROC / str(one) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS_PER_SECOND


def scheduled_seconds(pid: int) -> float:
    """Time that a process's live threads ran, of itself alone; for shares too small for ticks of 10 ms."""
    nanoseconds = 0
    for file in _PROC.glob(f"{pid}/task/*/schedstat"):
        try:
            nanoseconds += int(file.read_text().split()[0])
        except OSError:  # the thread ended between the two looks
            continue
    return nanoseconds / 1e9


def resident_bytes(pid: int) -> int:
    """Resident memory of a process tree."""
    pages = 0
    for one in tree(pid):
        try:
            pages += int((_PROC / str(one) / "statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def busy_seconds(core: int) -> float:
    """Time since boot that a core was not idle: user, nice, system, interrupts and stolen by the host."""
    for line in (_PROC / "stat").read_text().splitlines():
        fields = line.split()
        if fields[0] == f"cpu{core}":
            return sum(int(fields[i]) for i in (1, 2, 3, 6, 7, 8)) / TICKS_PER_SECOND
    raise LookupError(f"this machine has no core {core}")


@dataclass
class Patience:
    """Waits for a calm machine, `seconds` in all: a machine that is never calm must not hold the run for ever."""

    seconds: float
    calm_share: float = 0.06

    def wait(self, cores: Sequence[int]) -> bool:
        """Wait for a second in which the cores were idle but for `calm_share` each; False when there was none."""
        while True:
            before = sum(map(busy_seconds, cores))
            time.sleep(1.0)
            if sum(map(busy_seconds, cores)) - before <= self.calm_share * len(cores):
                return True
            self.seconds -= 1.0
            if self.seconds <= 0:
                return False


def facts() -> dict[str, str | int | float]:
    """The machine in words and numbers."""
    cpu = (_PROC / "cpuinfo").read_text()
    model = next(
        (line.partition(": ")[2] for line in cpu.splitlines() if line.startswith("model name")), "unknown"
    )
    return {
        "cpu": model,
        "cores": os.cpu_count() or 0,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }
