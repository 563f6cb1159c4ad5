"""`tidepool run WORKFLOW`: begins a run by an AgentWorkflowRun and waits for its end, with progress."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tidepool_cli.errors import CliError
from tidepool_cli.kubectl import Cluster, Object
from tidepool_cli.tables import plain

RESOURCE: Final = "agentworkflowruns.tidepool.dev"
_ENDED: Final = frozenset(("Succeeded", "Failed", "Cancelled"))
_POLL_SECONDS: Final = 1.0


def parsed_input(text: str | None, file: Path | None) -> dict[str, Any]:
    """The run's input. Raises CliError for what is no JSON object."""
    try:
        raw = file.read_text() if file is not None else text
        found = json.loads(raw) if raw else {}
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise CliError(
            f'the input cannot be read: {error}; write a JSON object, such as {{"text": "..."}}'
        ) from error
    if not isinstance(found, dict):
        raise CliError('the input is no JSON object; write one, such as {"text": "..."}')
    return found


def order(workflow: str, given: dict[str, Any]) -> Object:
    """The object that begins the run."""
    spec: Object = {"workflow": workflow} | ({"input": given} if given else {})
    return {
        "apiVersion": "tidepool.dev/v1alpha1",
        "kind": "AgentWorkflowRun",
        "metadata": {"generateName": f"{workflow}-"},
        "spec": spec,
    }


def wait(cluster: Cluster, name: str, timeout_seconds: float, tell: Callable[[str], None]) -> Object:
    """The run when it is over; each change is told. Raises CliError after `timeout_seconds`."""
    until = time.monotonic() + timeout_seconds
    began, said = time.monotonic(), ""
    while True:
        run = cluster.get(RESOURCE, name)
        status = run.get("status") or {}
        phase = status.get("phase", "Pending")
        now = f"{phase}, {status.get('steps', 0)} steps, {status.get('tokens', 0)} tokens"
        if now != said:
            reason = f": {plain(status['reason'])}" if status.get("reason") else ""
            tell(f"[{time.monotonic() - began:4.0f} s] {now}{reason}")
            said = now
        if phase in _ENDED:
            return run
        if time.monotonic() > until:
            raise CliError(
                f"run {name} is {phase} after {timeout_seconds:.0f} s and goes on; "
                f"look again with `kubectl get awr {name}`"
            )
        time.sleep(_POLL_SECONDS)
