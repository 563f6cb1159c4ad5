"""A real vLLM on loopback, for tests that need the engine but no cluster."""

import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from cluster import engine_install, processes
from cluster.console import step
from cluster.errors import ClusterError, TimedOut
from cluster.ports import free_ports

_READY_TIMEOUT_SECONDS = 300.0
_PREFIX = "tidepool-engine-"

# Small on purpose: waiting requests and a filling KV cache must be seen with a handful of streams.
DEFAULT_ARGUMENTS = (
    "--enforce-eager",
    "--max-model-len=2048",
    "--scheduling-policy=priority",
    "--max-num-seqs=8",
    "--num-gpu-blocks-override=80",
)
ENVIRONMENT: Mapping[str, str] = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


class EngineError(ClusterError):
    """The engine ended before it was ready; the text carries the end of its log."""


def engine_command(python: Path, model: Path, name: str, port: int, extra: Sequence[str] = ()) -> list[str]:
    """vLLM's OpenAI server on loopback. Later arguments win over earlier ones."""
    return [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", name),
        *("--host", "127.0.0.1", "--port", str(port)),
        *DEFAULT_ARGUMENTS,
        *extra,
    ]


class Engine:
    """One vLLM process; a context manager, or `start()` and `stop()`.

    Environment and model are made first when they are missing (once, 6 GB). With `hands_over` it has NIXL.
    `start` returns when /health answers: 30 to 120 s on two cores.
    """

    def __init__(
        self,
        port: int = 0,
        model_name: str = "tiny",
        extra_arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        *,
        hands_over: bool = False,
    ) -> None:
        self.port = port or free_ports(1)[0]
        self.model_name = model_name
        self.url = f"http://127.0.0.1:{self.port}"
        self._extra = list(extra_arguments)
        self._environment = dict(environment or {})
        self._hands_over = hands_over
        self._child: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def log(self) -> Path:
        """What the engine has printed."""
        return self._folder / "engine.log"

    @property
    def pid(self) -> int:
        """The API server's process; its engine core is a child of it."""
        assert self._child is not None, "the engine has not been started"
        return self._child.pid

    def start(self, timeout_seconds: float = _READY_TIMEOUT_SECONDS) -> Self:
        """Start and wait until it answers. Raises EngineError when it ends, TimedOut when it does not."""
        engine_install.install()
        processes.clear_abandoned(Path(tempfile.gettempdir()), _PREFIX)
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        processes.claim(self._folder)
        python = engine_install.venv_python()
        environment = {**os.environ, **ENVIRONMENT, **self._environment, processes.MARK: str(self._folder)}
        environment["PATH"] = f"{python.parent}:{os.environ.get('PATH', '')}"
        # A test run's own settings would lead the engine's interpreter astray.
        environment.pop("PYTHONPATH", None)
        if self._hands_over:
            environment["PYTHONPATH"] = str(engine_install.install_nixl())
        command = engine_command(python, engine_install.model_dir(), self.model_name, self.port, self._extra)
        self._child = processes.spawn(command, self.log, env=environment, cwd=self._folder)
        try:
            with step(f"vLLM on port {self.port}", self._last_line):
                self._wait_ready(timeout_seconds)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the engine and its children, and remove its folder."""
        if self._child is None:
            return
        # The engine core is a process of its own; found by the mark that it inherited.
        processes.end(processes.marked(str(self._folder)), grace_seconds=10)
        self._child.wait(timeout=20)
        self._child = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_ready(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not self._answers():
            assert self._child is not None
            if self._child.poll() is not None:
                raise EngineError(f"vLLM ended with {self._child.returncode}:\n{self._tail(30)}")
            if time.monotonic() > deadline:
                raise TimedOut(f"vLLM not ready after {timeout_seconds:.0f} s:\n{self._tail(30)}")
            time.sleep(0.25)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _tail(self, lines: int) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _last_line(self) -> str:
        return self._tail(1)[-100:]
