"""A real API server with the chart and the examples on it, for the commands that ask a cluster."""

import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from chart.programs import NAMESPACE, ROOT, Program
from cluster import tools
from cluster.apiserver import ControlPlane
from documents.desk import POOL

EXAMPLES: Final = ("modelpool-gpu.yaml", "modelpool-cpu.yaml", "digest-workflow.yaml")
READY: Final = "qwen-cpu"  # a pool that serves, beside POOL, which has no room
# There are no nodes. `exec` asks the API server for what owns the pod, and what a container of it would run is run
# here; all else is kubectl's own.
_KUBECTL: Final = """\
#!/bin/sh
set -e
if [ "$1" = exec ]; then
  target="$2" options=""
  shift 2
  while [ "$1" != -- ]; do options="$options $1"; shift; done
  shift
  "{kubectl}" get "$target" $options >/dev/null
  exec "$@"
fi
exec "{kubectl}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a shell needs to ask the API server: variables, a folder on the PATH; `kubectl` is as tests call it."""

    environment: dict[str, str]
    programs: Path
    kubectl: Program

    def tell(self, name: str, status: dict[str, Any]) -> None:
        """Write a status, as the operator would."""
        patch = json.dumps({"status": status})
        self.kubectl("patch", *name.split("/"), "--subresource=status", "--type=merge", "-p", patch)


@contextmanager
def staged(home: Path) -> Iterator[Stage]:
    """`home` is a folder for kubectl's own files."""
    kubectl = home / "kubectl"
    kubectl.write_text(_KUBECTL.format(kubectl=tools.tool_path("kubectl")))
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    with ControlPlane() as plane:
        chosen = (f"--kubeconfig={plane.kubeconfig}",)
        helm, asked = (Program(tools.tool_path(name), chosen) for name in ("helm", "kubectl"))
        helm("install", "tidepool", str(ROOT / "charts" / "tidepool"), "-n", NAMESPACE, "--create-namespace")
        asked("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
        for name in EXAMPLES:
            asked("apply", "-f", str(ROOT / "examples" / name))
        stage = Stage({"KUBECONFIG": str(plane.kubeconfig), "HOME": str(home)}, home, asked)
        stage.tell(f"mp/{POOL}", _status("False", "InsufficientAccelerators", "Add nodes."))
        stage.tell(f"mp/{READY}", _status("True", "Serving", "All pods serve."))
        yield stage


def _status(ready: str, reason: str, message: str) -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "reason": reason, "message": message}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    replicas = {"replicas": 1, "readyReplicas": int(ready == "True"), "desiredReplicas": 1}
    return {"observedGeneration": 1, **replicas, "conditions": [condition]}
