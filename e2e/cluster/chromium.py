"""Debian's headless Chromium: the machine's own where it is installed, else unpacked into the cache."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from cluster.debian import unpacked
from cluster.errors import Unsuitable
from cluster.locks import exclusive

_PACKAGE: Final = "chromium-headless-shell"
_PROGRAM: Final = Path("usr/lib/chromium/chromium-headless-shell")
_MOST_ROUNDS: Final = 8  # libraries of libraries; five are needed
_NAMED_OTHERWISE: Final = {"libvorbis.so.0": "libvorbis0a"}


def program() -> Path:
    """The browser without a window. Raises Unsuitable, CommandFailed."""
    installed = Path("/") / _PROGRAM
    if installed.exists():
        return installed
    found = unpacked(_PACKAGE) / _PROGRAM
    if not found.exists():
        raise Unsuitable(f"there is no {_PACKAGE}: install it (Debian's name) and try again")
    # Its data comes in a package of its own, and is looked for beside the program.
    with exclusive(unpacked(_PACKAGE).with_name("chromium.lock"), "Chromium's data"):
        for file in (unpacked("chromium-common") / "usr/lib/chromium").iterdir():
            if not (beside := found.parent / file.name).exists():
                beside.symlink_to(file)
    return found


def environment() -> dict[str, str]:
    """What it needs in its environment: libraries that lie beside it. Raises Unsuitable, CommandFailed."""
    path, packages, folders = program(), set[str](), list[str]()
    for _ in range(_MOST_ROUNDS):
        environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)} if folders else dict(os.environ)
        missing = _missing(path, environment)
        if not missing:
            return environment
        wanted = {_package_of(name) for name in missing} - packages
        if not wanted or shutil.which("apt-get") is None:
            break
        packages |= wanted
        for package in sorted(wanted):
            folders += sorted({str(one.parent) for one in unpacked(package).glob("usr/lib/**/*.so*")})
    raise Unsuitable(f"Chromium lacks {', '.join(missing)}: install {_PACKAGE} (Debian's name) and try again")


def _missing(path: Path, environment: dict[str, str]) -> list[str]:
    told = subprocess.run(
        ["ldd", str(path)], capture_output=True, text=True, check=True, timeout=60, env=environment
    ).stdout
    return re.findall(r"^\s*(\S+) => not found", told, re.MULTILINE)


def _package_of(library: str) -> str:
    """Debian's name for the package of a library: https://www.debian.org/doc/debian-policy/ch-sharedlibs.html"""
    if library in _NAMED_OTHERWISE:
        return _NAMED_OTHERWISE[library]
    name, _, version = library.lower().partition(".so.")
    major = version.partition(".")[0]
    return f"{name}-{major}" if name[-1:].isdigit() else f"{name}{major}"
