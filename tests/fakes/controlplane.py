"""A real etcd and kube-apiserver with Tidepool's resources, and kubectl, as fixtures.

Import the fixtures into a conftest: `from fakes.controlplane import control_plane, kubectl`.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster import tools
from cluster.apiserver import ControlPlane

ROOT = Path(__file__).parent.parent.parent
CRDS = ROOT / "crds" / "manifests"


@dataclass(frozen=True)
class Answer:
    """What kubectl printed."""

    code: int
    out: str
    errors: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.errors
        return json.loads(self.out)


@dataclass(frozen=True)
class Kubectl:
    """kubectl against one API server, with a cache of its own."""

    program: Path
    kubeconfig: Path
    cache: Path

    def __call__(self, *arguments: str, documents: list[dict[str, Any]] | None = None) -> Answer:
        """Runs kubectl; `documents` go to its standard input, for `-f -`."""
        command = [self.program, f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.cache}", *arguments]
        done = subprocess.run(
            command,
            # JSON, since kubectl and PyYAML do not agree on words such as n.
            input="\n".join(map(json.dumps, documents)) if documents is not None else None,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def done(self, *arguments: str, documents: list[dict[str, Any]] | None = None) -> Answer:
        """As a call, for what must succeed."""
        answer = self(*arguments, documents=documents)
        assert answer.code == 0, answer.errors
        return answer


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """An API server that knows Tidepool's resources."""
    with ControlPlane() as plane:
        yield plane


@pytest.fixture(scope="session")
def kubectl(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """kubectl as the cluster's administrator, the resources installed."""
    run = Kubectl(tools.tool_path("kubectl"), control_plane.kubeconfig, tmp_path_factory.mktemp("kubectl"))
    run.done("apply", "--server-side", "-f", str(CRDS))
    run.done("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
    return run
