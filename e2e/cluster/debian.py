"""Debian packages that the cluster needs, installed when they are missing and root allows it."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cluster.console import run_logged
from cluster.errors import Unsuitable
from cluster.locks import exclusive
from cluster.paths import cache_dir

# A file of each package that proves it is installed.
NETWORK_AND_NODES: Mapping[str, str] = {
    "conntrack": "/usr/sbin/conntrack",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "ethtool": "/usr/sbin/ethtool",
    "iproute2": "/usr/sbin/ip",
    "iptables": "/usr/sbin/iptables",
    "nftables": "/usr/sbin/nft",
    "openssl": "/usr/bin/openssl",
    "runc": "/usr/sbin/runc",
    "socat": "/usr/bin/socat",
    "util-linux": "/usr/bin/nsenter",
}
IMAGES: Mapping[str, str] = {"buildah": "/usr/bin/buildah", "debootstrap": "/usr/sbin/debootstrap"}


_POLICY = Path("/usr/sbin/policy-rc.d")


def missing(packages: Mapping[str, str]) -> list[str]:
    """Names of the packages whose proof is absent."""
    return sorted(name for name, proof in packages.items() if not Path(proof).exists())


def install(packages: Mapping[str, str]) -> None:
    """Install what is missing without starting any service. Raises Unsuitable, CommandFailed."""
    names = missing(packages)
    if not names:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Unsuitable(f"missing programs: install {', '.join(names)} (Debian's names) and try again")
    logs = cache_dir() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]
    log = logs / "apt.log"
    run_logged("apt-get update", [*apt, "update"], env=environment, log=log, timeout_seconds=600)
    with _NoServices():
        run_logged(
            f"apt-get install {' '.join(names)}",
            [*apt, "install", "-y", "--no-install-recommends", *names],
            env=environment,
            log=log,
            timeout_seconds=1200,
        )


class _NoServices:
    """While packages are installed, tells Debian's tools to start none of their services.

    A policy that the machine already has is left alone: it is the owner's word.
    """

    def __enter__(self) -> None:
        self._ours = not _POLICY.exists()
        if self._ours:
            _POLICY.write_text("#!/bin/sh\nexit 101\n")
            _POLICY.chmod(0o755)

    def __exit__(self, *_: object) -> None:
        if self._ours:
            _POLICY.unlink(missing_ok=True)


def unpacked(package: str) -> Path:
    """The files of a package in a folder of the cache, without installing it. Raises CommandFailed.

    For programs that would bring a service or displace another package.
    """
    folder = cache_dir() / "packages" / package
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(folder.parent / "lock", f"the package {package}"):
            if not folder.exists():
                _unpack(package, folder)
    return folder


def _unpack(package: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        if not list(Path("/var/lib/apt/lists").glob("*_Packages*")):
            run_logged("apt-get update", ["apt-get", "update"], timeout_seconds=600)
        # As root itself: apt's own user may not write into this folder.
        download = ["apt-get", "-o", "APT::Sandbox::User=root", "download", package]
        run_logged(f"download {package}", download, cwd=Path(scratch), timeout_seconds=600)
        (archive,) = Path(scratch).glob("*.deb")
        partial = Path(scratch) / "files"
        run_logged(f"unpack {package}", ["dpkg-deb", "--extract", str(archive), str(partial)])
        partial.rename(folder)
