"""Programs that the benchmark needs, in the user's cache: the peer, vegeta, the project's stub and driver."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from cluster.paths import cache_dir

PEER = "vllm-router==0.1.17"
VEGETA = "github.com/tsenart/vegeta/v12@v12.13.0"
NATIVE = Path(__file__).resolve().parent / "native"


class BenchError(Exception):
    """The benchmark cannot run, or a figure would mean nothing; the message says what to do."""


@dataclass(frozen=True)
class Programs:
    """Paths of what was installed, and the versions that were found."""

    peer: Path
    router: Path
    vegeta: Path
    stub: Path
    drive: Path
    versions: dict[str, str]


def install() -> Programs:
    """Install what is missing; raises BenchError."""
    root = cache_dir() / "bench"
    root.mkdir(parents=True, exist_ok=True)
    router = Path(sys.executable).parent / "tidepool-router"
    if not router.exists():
        raise BenchError(f"{router} is missing: run `make setup` first")
    return Programs(
        peer=_peer(root),
        router=router,
        vegeta=_vegeta(root),
        stub=_native(root, "stub"),
        drive=_native(root, "drive"),
        versions={
            "tidepool": version("tidepool"),
            "vllm-router": PEER.partition("==")[2],
            "vegeta": VEGETA.partition("@")[2],
            "uvloop": version("uvloop"),
            "httptools": version("httptools"),
        },
    )


def _peer(root: Path) -> Path:
    home = root / PEER.replace("==", "-")
    program = home / "bin" / "vllm-router"
    if not (home / "installed").exists():
        print(f"installing {PEER} from PyPI", flush=True)
        uv = str(Path(sys.executable).parent / "uv")
        _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(home)])
        _run([uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), PEER])
        (home / "installed").touch()
    return program


def _vegeta(root: Path) -> Path:
    folder = root / f"vegeta-{VEGETA.partition('@')[2]}"
    if not (folder / "vegeta").exists():
        print(f"building {VEGETA}", flush=True)
        go = shutil.which("go")
        if go is None:
            raise BenchError("vegeta is built with Go and no `go` is on the PATH: install Go 1.22 or newer")
        _run([go, "install", VEGETA], env=os.environ | {"GOBIN": str(folder), "CGO_ENABLED": "0"})
    return folder / "vegeta"


def _native(root: Path, name: str) -> Path:
    source = NATIVE / f"{name}.c"
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
