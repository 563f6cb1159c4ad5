"""Debian's PostgreSQL: the machine's own where it is installed, else unpacked into the cache."""

import os
import re
import subprocess
from pathlib import Path

from cluster.console import run_logged
from cluster.debian import unpacked
from cluster.errors import Unsuitable

_INSTALLED = Path("/usr/lib/postgresql")


def programs() -> Path:
    """Folder of `initdb`, `postgres` and `pg_ctl`. Raises Unsuitable, CommandFailed."""
    found = _newest(_INSTALLED)
    if found is None:
        found = _newest(unpacked(_package()) / "usr/lib/postgresql")
    if found is None:
        raise Unsuitable("there is no PostgreSQL: install postgresql (Debian's name) and try again")
    return found


def environment() -> dict[str, str]:
    """What the programs need in their environment: libraries that are unpacked beside them."""
    folder = programs()
    if folder.is_relative_to(_INSTALLED):
        return dict(os.environ)
    told = subprocess.run(["ldd", str(folder / "postgres")], capture_output=True, text=True, check=True).stdout
    if "not found" not in told:
        return dict(os.environ)
    folders = {
        str(library.parent)
        for package in _libraries(_package())
        for library in unpacked(package).glob("usr/lib/**/lib*.so*")
    }
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(sorted(folders))}


def _newest(folder: Path) -> Path | None:
    versions = [found for found in folder.glob("*/bin") if (found / "initdb").exists()]
    return max(versions, key=lambda found: float(found.parent.name), default=None)


def _package() -> str:
    """The server's package: `postgresql` is a name for the newest."""
    if not list(Path("/var/lib/apt/lists").glob("*_Packages*")):
        run_logged("apt-get update", ["apt-get", "update"], timeout_seconds=600)
    found = re.search(r"Depends: (postgresql-\d+)$", _depends("postgresql"), re.MULTILINE)
    if found is None:
        raise Unsuitable("apt knows no postgresql; the tests of the store need Debian's")
    return found[1]


def _libraries(package: str) -> list[str]:
    # LLVM only serves the just-in-time compiler, which the tests do not ask for.
    return [
        name
        for name in re.findall(r"Depends: (lib\S+)$", _depends(package), re.MULTILINE)
        if not name.startswith(("libllvm", "libc6", "libgcc", "libstdc++"))
    ]


def _depends(package: str) -> str:
    return subprocess.run(
        ["apt-cache", "depends", package], capture_output=True, text=True, check=True, timeout=60
    ).stdout
