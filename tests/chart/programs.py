"""Programs of the cluster as the tests call them, and the chart as it renders."""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "charts" / "tidepool"
RELEASE, NAMESPACE = "demo", "tidepool-system"

Object = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Program:
    """A program of the cluster; `run` answers what it printed, whether it succeeded or not."""

    path: Path
    flags: tuple[str, ...] = ()

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.path), *arguments, *self.flags],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"{self.path.name} {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


def until(what: str, question: Callable[[], T | None], seconds: float = 120.0) -> T:
    """The first answer that is true, of what an API server comes to in its own time. Fails with `what`."""
    deadline = time.monotonic() + seconds
    while not (answer := question()):
        assert time.monotonic() < deadline, f"{what} did not come about within {seconds:.0f} s"
        time.sleep(0.1)
    return answer


def served(kubectl: Program) -> None:
    """Wait until every definition is established, and its kind is told to clients, which comes after it."""
    kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
    for name in kubectl("get", "crd", "-o", "jsonpath={.items[*].metadata.name}").split():
        until(f"{name} is served", lambda name=name: kubectl.run("get", name, "-A").returncode == 0)


@dataclass(frozen=True)
class Rendered:
    """The objects of a rendered chart."""

    objects: tuple[Object, ...]

    def all(self, kind: str) -> list[Object]:
        return [item for item in self.objects if item["kind"] == kind]

    def one(self, kind: str, name: str) -> Object:
        found = [item for item in self.all(kind) if item["metadata"]["name"] == name]
        assert len(found) == 1, (
            f"{kind} {name}: {len(found)} of {[item['metadata']['name'] for item in self.all(kind)]}"
        )
        return found[0]

    def pods(self) -> dict[str, Object]:
        """Pod specs (and metadata) by component."""
        templates = {item["metadata"]["name"]: item["spec"]["template"] for item in self.all("Deployment")}
        return {**templates, **{item["metadata"]["name"]: item for item in self.all("Pod")}}


Render = Callable[..., Rendered]


def sets(values: dict[str, Any]) -> list[str]:
    """helm's flags for values by their dotted names."""
    return [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
