"""The images of the cluster: a pause program, a Debian base for engines, and the project's own."""

import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cluster import buildah, debian, engine_install, rootfs
from cluster.console import run_logged, say
from cluster.locks import exclusive
from cluster.paths import REPOSITORY, cache_dir

PAUSE = "localhost/tidepool-pause:1"
ENGINE_BASE = "localhost/tidepool-engine-base:local"

# What each image is made of; a change in any of them makes a new tag.
_COMMON = ("pyproject.toml", "hatch_build.py", "requirements.lock", "README.md", "LICENSE", "crds/tidepool_api")
PROJECT: Mapping[str, tuple[str, ...]] = {
    "tidepool-router": ("router/Containerfile", "router/tidepool_router", *_COMMON),
    "tidepool-operator": ("operator/Containerfile", "operator/tidepool_operator", *_COMMON),
}
# Made only when they are asked for by name.
TESTS: Mapping[str, tuple[str, ...]] = {
    "tidepool-engine-double": ("tests/fakes/Containerfile", "tests/fakes", "requirements.lock"),
}
_SOURCES: Mapping[str, tuple[str, ...]] = {**PROJECT, **TESTS}
# The engine's tiny model as an image of files.
MODEL = "tidepool-model"
ALL = (*_SOURCES, MODEL)


def source_key(root: Path, parts: Iterable[str], base: str) -> str:
    """A short hash of names and contents of all source files, and of the base they are built on."""
    digest = hashlib.sha256(base.encode())
    for path in sorted(file for part in parts for file in _files(root / part)):
        digest.update(str(path.relative_to(root)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def _archive(name: str) -> Path:
    return cache_dir() / "images" / f"{name.removeprefix('localhost/').replace(':', '-')}.tar"


def _lock(name: str) -> Path:
    """One an image: who makes another one need not wait."""
    return cache_dir() / "images" / f"lock-{name.removeprefix('localhost/').partition(':')[0]}"


def base_image(packages: Sequence[str] = rootfs.BASE) -> str:
    """A Debian with these packages in buildah's storage; made when missing."""
    folder = rootfs.rootfs(packages)
    name = f"localhost/tidepool-base:{folder.name}"
    with exclusive(_lock(name), "images"):
        if not buildah.has_image(name):
            tar = cache_dir() / "images" / "base.tar"
            run_logged("pack the base system", ["tar", "--numeric-owner", "-C", str(folder), "-cf", str(tar), "."])
            container = buildah.run("from", "scratch")
            try:
                buildah.run_step("unpack the base system", "add", container, str(tar), "/")
                places = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
                buildah.run("config", f"--env=PATH={places}", "--cmd=/bin/sh", container)
                buildah.run_step("commit the base image", "commit", "--format=oci", container, name)
            finally:
                buildah.run("rm", container)
                tar.unlink(missing_ok=True)
    return name


def base_archive() -> tuple[str, Path]:
    """(name, archive) of the engine's base image."""
    name = base_image()
    archive = _archive(name)
    with exclusive(_lock(name), "images"):
        if not archive.exists():
            buildah.export(name, archive)
    return name, archive


def pause_archive() -> tuple[str, Path]:
    """(name, archive) of the program that holds a pod's namespaces: busybox's sleep."""
    archive = _archive(PAUSE)
    with exclusive(_lock(PAUSE), "images"):
        if not archive.exists():
            busybox = debian.unpacked("busybox-static") / "bin" / "busybox"
            container = buildah.run("from", "scratch")
            try:
                buildah.run("copy", container, str(busybox), "/busybox")
                command = '["/busybox", "sleep", "2147483647"]'
                buildah.run("config", f"--entrypoint={command}", "--user=65535:65535", container)
                buildah.run("commit", "--format=oci", container, PAUSE)
            finally:
                buildah.run("rm", container)
            buildah.export(PAUSE, archive)
    return PAUSE, archive


def model_archive() -> tuple[str, Path]:
    """(reference, archive) of an image with the engine's model in /model and nothing else."""
    engine_install.install()
    name = f"localhost/{MODEL}:{engine_install.model_key()}"
    archive = _archive(name)
    with exclusive(_lock(name), "images"):
        if not archive.exists():
            container = buildah.run("from", "scratch")
            try:
                buildah.run("copy", container, str(engine_install.model_dir()), "/model")
                buildah.run("commit", "--format=oci", container, name)
            finally:
                buildah.run("rm", container)
            buildah.export(name, archive)
    return name, archive


def project_names() -> dict[str, str]:
    """Image name to full reference, as the sources are now: localhost/tidepool-router:HASH."""
    return {name: _reference(REPOSITORY, name) for name in PROJECT}


def _reference(root: Path, name: str) -> str:
    return f"localhost/{name}:{source_key(root, _SOURCES[name], rootfs.rootfs().name)}"


def project_archive(name: str) -> tuple[str, Path]:
    """(reference, archive) of one of the images in ALL; built when what it is made of changed."""
    if name == MODEL:
        return model_archive()
    reference = _reference(REPOSITORY, name)
    if _archive(reference).exists():
        return reference, _archive(reference)
    base, builder = base_image(), base_image(rootfs.BUILDER)
    with exclusive(_lock(name), "images"), tempfile.TemporaryDirectory(prefix="tidepool-build-") as scratch:
        # Built from a copy, and named after the copy: the sources may be edited meanwhile.
        context = Path(scratch)
        for part in _SOURCES[name]:
            _copy(REPOSITORY / part, context / part)
        reference = _reference(context, name)
        archive = _archive(reference)
        if not archive.exists():
            buildah.build(reference, context / _SOURCES[name][0], context, {"BASE": base, "BUILDER": builder})
            buildah.export(reference, archive)
            _forget_older(name, archive)
    return reference, archive


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def kept_references() -> list[str]:
    """References of the project's images that the cache still has."""
    folder = cache_dir() / "images"
    found = []
    for name in ALL:
        found += [
            f"localhost/{name}:{path.stem.removeprefix(f'{name}-')}" for path in folder.glob(f"{name}-*.tar")
        ]
    return found


def _forget_older(name: str, newest: Path) -> None:
    """Keep the three newest archives of an image; storage keeps the layers that they share."""
    archives = sorted(newest.parent.glob(f"{name}-*.tar"), key=lambda path: path.stat().st_mtime)
    for old in archives[:-3]:
        old.unlink()
        tag = old.stem.removeprefix(f"{name}-")
        if buildah.has_image(f"localhost/{name}:{tag}"):
            buildah.run("rmi", f"localhost/{name}:{tag}")
        say(f"forgot the older image {name}:{tag}")
