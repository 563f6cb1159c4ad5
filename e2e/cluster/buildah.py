"""buildah with a storage of its own in the cache: images without a daemon and without a registry."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cluster import debian
from cluster.console import capture, run_logged
from cluster.paths import cache_dir

_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


def _options() -> list[str]:
    folder = cache_dir() / "buildah"
    return [
        f"--root={folder / 'storage'}",
        f"--runroot={folder / 'run'}",
        "--storage-driver=overlay",
        f"--registries-conf={_registries(folder)}",
    ]


def _registries(folder: Path) -> Path:
    # Bases are local or named in full; nothing is searched for anywhere.
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "registries.conf"
    path.write_text("unqualified-search-registries = []\n")
    return path


def _command(*arguments: str) -> list[str]:
    # A mount namespace of its own: what buildah mounts goes with it, however it ends.
    return ["unshare", "--mount", "--propagation", "private", "buildah", *_options(), *arguments]


def run(*arguments: str, timeout_seconds: float = 300) -> str:
    """A short buildah command; returns its output without the last newline. Raises CommandFailed."""
    debian.install(debian.IMAGES)
    return capture(_command(*arguments), timeout_seconds=timeout_seconds).strip()


def run_step(label: str, *arguments: str) -> None:
    """A long buildah command, with signs of life. Raises CommandFailed."""
    debian.install(debian.IMAGES)
    log = cache_dir() / "logs" / "buildah.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    run_logged(label, _command(*arguments), log=log, timeout_seconds=1800)


def has_image(name: str) -> bool:
    """Whether the storage holds an image of this name."""
    done = subprocess.run(_command("inspect", "--type=image", name), capture_output=True, check=False)
    return done.returncode == 0


def export(name: str, archive: Path) -> None:
    """Write an image as an archive of plain layers, quick to write and to import; whole or not at all."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_name(f"{archive.name}.partial.{os.getpid()}")
    try:
        target = f"docker-archive:{partial}:{name}"
        run_step(f"export {name}", "push", name, target)
        partial.rename(archive)
    finally:
        partial.unlink(missing_ok=True)


def build(name: str, containerfile: Path, context: Path, arguments: Mapping[str, str]) -> None:
    """Build a Containerfile on local bases. Layers are kept, so only what changed is made again.

    How this machine reaches its package index (pip's settings, the bundle of
    trusted authorities) is mounted while it builds and stays out of the image.
    """
    settings = cache_dir() / "buildah" / "pip.conf"
    settings.write_text(pip_conf(capture([sys.executable, "-m", "pip", "config", "list"])))
    mounts = [f"--volume={settings}:/etc/pip.conf:ro"]
    if _BUNDLE.exists():
        mounts.append(f"--volume={_BUNDLE}:{_BUNDLE}:ro")
    run_step(
        f"build {name}",
        *("build", "--isolation=chroot", "--layers", "--pull-never"),
        *(f"--build-arg={key}={value}" for key, value in arguments.items()),
        *mounts,
        *("--format=oci", f"--file={containerfile}", f"--tag={name}", str(context)),
    )


def pip_conf(listing: str) -> str:
    """pip's settings file from `pip config list`, which merges files and environment.

    Lines look like global.index-url='https://...'. Paths of this machine mean
    nothing inside a build, but for the certificate bundle, which is mounted.
    """
    settings = {}
    for line in listing.splitlines():
        name, found, value = line.partition("=")
        scope, _, key = name.rpartition(".")
        text = value.strip().strip("'\"")
        if found and scope in ("global", ":env:", "install") and not text.startswith("/"):
            settings[key] = text
    if _BUNDLE.exists():
        settings["cert"] = str(_BUNDLE)
    return "\n".join(["[global]", *(f"{key} = {value}" for key, value in settings.items())]) + "\n"
