"""Whether this machine can hold the cluster, said before anything is built."""

import os
import platform
import re
import shutil
from pathlib import Path

from cluster import debian
from cluster.console import capture
from cluster.errors import CommandFailed, Unsuitable
from cluster.paths import cache_dir

_DISK_BYTES_COLD = 25 * 2**30
_DISK_BYTES_WARM = 4 * 2**30
_MEMORY_BYTES = 6 * 2**30
_WAY_OUT = "Or use a cluster that you have: make demo CONTEXT=name IMAGES=registry/prefix"


def check() -> None:
    """Raises Unsuitable with everything that is lacking, and the way out."""
    lacking = problems()
    if lacking:
        raise Unsuitable(
            "this machine cannot hold the cluster:\n"
            + "\n".join(f"  - {one}" for one in lacking)
            + f"\n{_WAY_OUT}"
        )


def problems() -> list[str]:
    """What is lacking, one sentence each, with the remedy."""
    if platform.system() != "Linux":
        return [f"it runs {platform.system()}; the cluster is made of Linux namespaces"]
    found = [_root(), _debian(), _go(), _disk(), _memory()]
    found.append(_namespaces() if os.geteuid() == 0 else None)
    return [problem for problem in found if problem is not None]


def _root() -> str | None:
    if os.geteuid() != 0:
        return "you are not root: network namespaces, mounts and control groups need it (try sudo)"
    return None


def _debian() -> str | None:
    missing = debian.missing({**debian.NETWORK_AND_NODES, **debian.IMAGES})
    if missing and shutil.which("apt-get") is None:
        return f"there is no apt-get to install {', '.join(missing)}; install them by other means"
    try:
        system = Path("/etc/os-release").read_text()
    except OSError:
        system = ""
    if "ID=debian" not in system:
        return "it is not Debian: the images are made from Debian's packages of this machine's release"
    return None


def _go() -> str | None:
    if shutil.which("go") is None:
        return "Go is not on PATH: install Go 1.21 or newer, Kubernetes is built from source"
    # From 1.21 on it fetches the release that a module asks for.
    told = capture(["go", "version"])
    found = re.search(r"go(\d+)\.(\d+)", told)
    if found is not None and (int(found[1]), int(found[2])) < (1, 21):
        return f"its Go is {found[0].removeprefix('go')}: put Go 1.21 or newer first on PATH (https://go.dev/dl)"
    return None


def existing_parent(path: Path) -> Path:
    """The nearest folder at or above a path that exists."""
    return path if path.exists() else existing_parent(path.parent)


def _disk() -> str | None:
    cold = not (cache_dir() / "engine").exists()
    needed = _DISK_BYTES_COLD if cold else _DISK_BYTES_WARM
    folder = existing_parent(cache_dir())
    free = shutil.disk_usage(folder).free
    if free < needed:
        return (
            f"{free / 2**30:.0f} GiB are free at {folder} and {needed / 2**30:.0f} GiB are needed: "
            "make room, or set XDG_CACHE_HOME to a larger disk"
        )
    return None


def _memory() -> str | None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if total < _MEMORY_BYTES:
        needed = f"two engines and the cluster need {_MEMORY_BYTES / 2**30:.0f}"
        return f"it has {total / 2**30:.0f} GiB of memory; {needed}"
    return None


def _namespaces() -> str | None:
    command = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "true"]
    try:
        capture(command)
    except CommandFailed as error:
        return f"namespaces cannot be made here: {error} (a container needs --privileged)"
    return None
