"""The control group of each node, in every hierarchy of this machine."""

import contextlib
import time
from pathlib import Path

from cluster.errors import TimedOut

ROOT = Path("/sys/fs/cgroup")


def is_unified() -> bool:
    """Whether this machine has cgroup v2 alone."""
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """The roots of all hierarchies; links such as cpu -> cpu,cpuacct count once."""
    if is_unified():
        return [ROOT]
    return sorted({entry.resolve() for entry in ROOT.iterdir() if (entry / "cgroup.procs").exists()})


def ensure(node: str) -> None:
    """Make the node's group everywhere. kubelet refuses a cgroupRoot that is not there."""
    for hierarchy in hierarchies():
        if is_unified():
            _delegate(hierarchy)
        group = hierarchy / node
        group.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            # A v1 cpuset starts empty, and nothing can run in it until it is filled.
            if not is_unified() and (group / name).exists() and not (group / name).read_text().strip():
                (group / name).write_text((hierarchy / name).read_text())


def _delegate(root: Path) -> None:
    for controller in (root / "cgroup.controllers").read_text().split():
        # What cannot be handed on is not needed by kubelet, or kubelet names it.
        with contextlib.suppress(OSError):
            (root / "cgroup.subtree_control").write_text(f"+{controller}")


def left(node: str) -> list[Path]:
    """The node's groups that exist, outermost first."""
    return [group for hierarchy in hierarchies() if (group := hierarchy / node).exists()]


def remove(node: str, *, timeout_seconds: float = 20.0) -> None:
    """Remove the node's groups; its processes must be gone. Raises TimedOut."""
    deadline = time.monotonic() + timeout_seconds
    while left(node):
        for group in left(node):
            for folder in sorted(_tree(group), key=lambda path: -len(path.parts)):
                # Busy for a moment after its last process ended: the next round takes it.
                with contextlib.suppress(OSError):
                    folder.rmdir()
        if left(node) and time.monotonic() > deadline:
            raise TimedOut(f"control groups {[str(path) for path in left(node)]} are still in use")
        time.sleep(0.05)


def _tree(group: Path) -> list[Path]:
    return [group, *(path for path in group.rglob("*") if path.is_dir())]
