"""The operator as a program beside an API server, under the account that the chart gives it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from chart.programs import NAMESPACE, Program
from cluster.apiserver import ControlPlane
from cluster.ports import free_ports


@dataclass
class Cluster:
    """An API server with controllers and the operator; `log` is what the operator wrote."""

    kubectl: Program
    health_url: str
    log: Path

    def get(self, *what: str) -> Any:
        """What kubectl gets, as JSON; None where there is no such thing."""
        done = self.kubectl.run("get", *what, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def wait(self, what: str, question: Callable[[], Any]) -> Any:
        """The first answer that is true; else fails with the end of the operator's log."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if answer := question():
                return answer
            time.sleep(0.2)
        raise AssertionError(f"{what} did not come about; the operator wrote:\n{self.log.read_text()[-4000:]}")

    def conditions(self, *what: str) -> dict[str, str]:
        """Status by type."""
        status = (self.get(*what) or {}).get("status") or {}
        return {one["type"]: one["status"] for one in status.get("conditions") or []}


@contextmanager
def running(
    kubectl: Program, plane: ControlPlane, folder: Path, namespaces: list[str], *, nodes: bool
) -> Iterator[Cluster]:
    """The operator as a program, by the account that the chart has made for it, until the block ends."""
    token = kubectl("create", "token", "demo-tidepool-operator", "-n", NAMESPACE).strip()
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    command = [
        sys.executable,
        "-m",
        "tidepool_operator",
        "run",
        "--health-host=127.0.0.1",
        f"--health-port={port}",
    ]
    env = {
        "KUBECONFIG": str(folder / "kubeconfig"),
        "POD_NAMESPACE": NAMESPACE,
        "TIDEPOOL_WATCH_NAMESPACES": ",".join(namespaces),
        "TIDEPOOL_TRUST": "true",
        "POD_SERVICE_ACCOUNT": "demo-tidepool-operator",
        "TIDEPOOL_GATEWAY_SERVICE_ACCOUNT": "demo-tidepool-gateway",
        "TIDEPOOL_READ_NODES": str(nodes or not namespaces).lower(),
    }
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **env}) as process,
    ):
        try:
            yield Cluster(kubectl, f"http://127.0.0.1:{port}/healthz", folder / "log")
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
