"""A real API server alone, for tests that need no nodes: etcd and kube-apiserver on loopback."""

import os
import secrets
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from cluster import certificates, control, processes, tools
from cluster.errors import ClusterError, TimedOut
from cluster.ports import free_ports

_READY_TIMEOUT_SECONDS = 60.0
_PREFIX = "tidepool-apiserver-"


class ControlPlaneError(ClusterError):
    """The API server did not start; the text carries the end of the failed program's log."""


def call(url: str, token: str, authority: Path, *, timeout_seconds: float = 5.0) -> str:
    """GET one path of an API server. Raises OSError (urllib's errors are of that kind)."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=str(authority))
    with urllib.request.urlopen(request, timeout=timeout_seconds, context=context) as answer:
        return str(answer.read().decode())


class ControlPlane:
    """etcd and kube-apiserver in a folder of their own; with `controllers`, kube-controller-manager too.

    `apiserver` and `manager` are more flags for these.

    A context manager, or `start()` and `stop()`. The programs are built first
    when they are missing. What an earlier owner left behind when it was killed
    is cleared away at the next start.
    """

    def __init__(
        self, *, controllers: bool = False, apiserver: Sequence[str] = (), manager: Sequence[str] = ()
    ) -> None:
        self._controllers = controllers
        self._apiserver = tuple(apiserver)
        self._manager = tuple(manager)
        self._children: list[subprocess.Popen[bytes]] = []
        self._plane: control.Plane | None = None
        self._folder: Path | None = None
        self.token = secrets.token_urlsafe(24)
        self.url = ""
        self.kubeconfig = Path()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Start and wait until /readyz answers. Raises ControlPlaneError."""
        names = ["etcd", "kube-apiserver"] + ["kube-controller-manager"] * self._controllers
        programs = tools.build(names)
        processes.clear_abandoned(Path(tempfile.gettempdir()), _PREFIX)
        for attempts_left in (2, 1, 0):
            try:
                self._start_once(programs)
                break
            except ControlPlaneError:
                self.stop()
                # A port may have been taken between the search and the start.
                if not attempts_left:
                    raise
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """End the processes that were started here and remove their folder."""
        for child in reversed(self._children):
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(timeout=20)
        self._children.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    @property
    def etcd_url(self) -> str:
        """Where etcd listens."""
        return self._described().etcd_url

    @property
    def folder(self) -> Path:
        """Where everything of the plane lies, as long as it runs."""
        assert self._folder is not None, "the plane does not run"
        return self._folder

    @property
    def authority(self) -> Path:
        """Who signed the API server's certificate."""
        return self._described().certificates.authority

    def run(self, program: Path, arguments: Sequence[str]) -> None:
        """Have one more program run as long as the plane; its log is in the folder."""
        self._spawn(program, list(arguments))

    def pid(self, name: str) -> int:
        """Process id of one of its programs."""
        return self._child(name).pid

    def end(self, name: str) -> None:
        """Have one of its programs end, as a crash would."""
        child = self._child(name)
        child.kill()
        child.wait(timeout=20)

    def begin(self, name: str) -> None:
        """Start a program again that was ended, at its old address and with its old data, and wait for all."""
        plane, child = self._described(), self._child(name)
        self._children.remove(child)
        self._spawn(Path(str(child.args[0])), list(child.args)[1:])  # type: ignore[call-overload]
        self._wait_ready(f"{plane.url}/readyz", plane.certificates.authority)

    def _child(self, name: str) -> subprocess.Popen[bytes]:
        return next(child for child in self._children if Path(str(child.args[0])).name == name)  # type: ignore[index]

    def _described(self) -> control.Plane:
        assert self._plane is not None, "the plane does not run"
        return self._plane

    def _start_once(self, programs: Path) -> None:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._folder = folder
        processes.claim(folder)
        api_port, client_port, peer_port = free_ports(3)
        plane = control.Plane(
            folder=folder,
            address="127.0.0.1",
            api_port=api_port,
            etcd_client_port=client_port,
            etcd_peer_port=peer_port,
            service_range="10.96.0.0/16",
            pod_range="10.97.0.0/16",
            certificates=certificates.make(folder / "pki", ["127.0.0.1", "10.96.0.1"]),
        )
        self._plane = plane
        manager_token = secrets.token_urlsafe(24)
        users = {self.token: control.ADMIN, manager_token: control.CONTROLLER_MANAGER}
        write_private(plane.token_file, control.token_csv(users))
        self.url = plane.url
        self.kubeconfig = plane.admin_kubeconfig
        authority = plane.certificates.authority
        write_private(self.kubeconfig, control.kubeconfig(plane.url, authority, self.token))
        write_private(
            plane.kubeconfig_of("kube-controller-manager"),
            control.kubeconfig(plane.url, authority, manager_token),
        )
        self._spawn(programs / "etcd", control.etcd_arguments(plane))
        self._spawn(programs / "kube-apiserver", [*control.apiserver_arguments(plane), *self._apiserver])
        self._wait_ready(f"{plane.url}/readyz", authority)
        if self._controllers:
            arguments = control.controller_manager_arguments(plane)
            # Tests wait for what an HPA does; the default is 15 s.
            arguments = [*arguments, "--horizontal-pod-autoscaler-sync-period=2s", *self._manager]
            self._spawn(programs / "kube-controller-manager", arguments)
        self._wait_ready(f"{plane.url}/api/v1/namespaces/default", authority)

    def _spawn(self, program: Path, arguments: list[str]) -> None:
        assert self._folder is not None
        environment = {**os.environ, processes.MARK: str(self._folder)}
        log = self._folder / f"{program.name}.log"
        self._children.append(processes.spawn([str(program), *arguments], log, env=environment))

    def _wait_ready(self, url: str, authority: Path) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_SECONDS
        while (refusal := self._refusal(url, authority)) is not None:
            self._raise_if_ended()
            if time.monotonic() > deadline:
                raise TimedOut(f"{url} not ready after {_READY_TIMEOUT_SECONDS:.0f} s: {refusal}") from refusal
            time.sleep(0.05)

    def _refusal(self, url: str, authority: Path) -> OSError | None:
        try:
            call(url, self.token, authority)
        except OSError as error:
            return error
        return None

    def _raise_if_ended(self) -> None:
        for child in self._children:
            if child.poll() is not None:
                name = Path(str(child.args[0])).name  # type: ignore[index]
                raise ControlPlaneError(f"{name} ended with {child.returncode}:\n{self._log_tail(name)}")

    def _log_tail(self, name: str) -> str:
        assert self._folder is not None
        lines = (self._folder / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-15:])


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, from the moment it exists."""
    path.touch(mode=0o600)
    path.write_text(text)
