"""A few calls of the cluster's API, by kubectl of the cluster's own version."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster import tools
from cluster.console import capture
from cluster.errors import CommandFailed

_LATE = "exceeded while awaiting headers"


class Kubectl:
    """kubectl with one access file."""

    def __init__(self, kubeconfig: Path) -> None:
        self._command = [str(tools.tool_path("kubectl")), f"--kubeconfig={kubeconfig}", "--request-timeout=20s"]

    def __call__(self, *arguments: str, timeout_seconds: float = 60) -> str:
        """Run and return stdout. Raises CommandFailed."""
        return capture([*self._command, *arguments], timeout_seconds=timeout_seconds)

    def succeeds(self, *arguments: str) -> bool:
        """Whether a call goes well."""
        command = [*self._command, *arguments]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """The items of a list. Raises CommandFailed."""
        found: list[dict[str, Any]] = json.loads(self("get", *arguments, "--output=json"))["items"]
        return found

    def apply(self, objects: Sequence[dict[str, Any]]) -> None:
        """Server-side apply. Raises CommandFailed."""
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        command = [*self._command, "apply", "--server-side", "--field-manager=tidepool-cluster"]
        for attempts_left in (2, 1, 0):
            try:
                capture([*command, "--force-conflicts", "--filename=-"], stdin=document)
            except CommandFailed as failed:
                # On a machine that is busy with a repair an answer may come too late; applying again does no harm.
                if not attempts_left or _LATE not in str(failed):
                    raise
            else:
                return


def node_is_ready(node: dict[str, Any]) -> bool:
    """Whether a Node object says Ready."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
