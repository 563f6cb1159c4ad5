"""Minimal Debians with Python in the cache: the base of all images that are made here, and one that compiles."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from cluster import debian
from cluster.console import capture, run_logged
from cluster.errors import CommandFailed, Unsuitable
from cluster.locks import exclusive
from cluster.paths import cache_dir

# libnuma1 is for vLLM: without it the engine dies late, with an error about '_OpNamespace'.
BASE = ("ca-certificates", "libnuma1", "python3", "python3-venv")
BUILDER = (*BASE, "gcc", "libc6-dev", "python3-dev")


def codename() -> str:
    """The release of this machine's Debian, such as bookworm. Raises Unsuitable on other systems."""
    fields = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    if fields.get("ID", "").strip('"') != "debian":
        raise Unsuitable("images are made from this machine's own Debian release, and this is not Debian")
    return fields["VERSION_CODENAME"].strip('"')


def base_key(release: str, packages: Sequence[str]) -> str:
    """Changes when the system would."""
    return hashlib.sha256(" ".join((release, *packages)).encode()).hexdigest()[:12]


def choose_mirror(index_targets: str, release: str) -> str | None:
    """The machine's own source of a release, from lines of "site release component"; None: debootstrap knows."""
    for line in index_targets.splitlines():
        site, _, rest = line.partition(" ")
        if rest.split() == [release, "main"]:
            return site
    return None


def _mirror(release: str) -> str | None:
    wanted = ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    try:
        return choose_mirror(capture(wanted), release)
    except CommandFailed:
        return None


def rootfs(packages: Sequence[str] = BASE) -> Path:
    """The folder of a system with these, made by debootstrap when missing. Raises Unsuitable, CommandFailed."""
    release = codename()
    folder = cache_dir() / "debian" / f"{release}-{base_key(release, packages)}"
    if folder.exists():
        return folder
    debian.install(debian.IMAGES)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.parent / "lock", "the base system"):
        if not folder.exists():
            _bootstrap(release, folder, packages)
    return folder


def _bootstrap(release: str, folder: Path, packages: Sequence[str]) -> None:
    partial = folder.with_name(f"{folder.name}.partial.{os.getpid()}")
    for left_by_a_killed_maker in folder.parent.glob(f"{folder.name}.partial.*"):
        shutil.rmtree(left_by_a_killed_maker)
    # In a mount namespace of its own: what debootstrap mounts goes with it, however it ends.
    command = ["unshare", "--mount", "--propagation", "private", "debootstrap"]
    command += ["--variant=minbase", f"--include={','.join(packages)}"]
    mirror = _mirror(release)
    command += [release, str(partial), *([mirror] if mirror else [])]
    try:
        run_logged(f"debootstrap {release}", command, log=folder.parent / "debootstrap.log", timeout_seconds=1800)
        for waste in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
            shutil.rmtree(partial / waste, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
