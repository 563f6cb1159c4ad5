"""kubectl as a person would type it, with timeouts, and waits that report what they see."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Object = dict[str, Any]
T = TypeVar("T")


class KubectlError(RuntimeError):
    """kubectl failed; the text is what it printed for the user."""


@dataclass(frozen=True, slots=True)
class Kube:
    """One cluster: a kubeconfig path (None: the user's own) and a context (None: the current one)."""

    kubeconfig: str | None = None
    context: str | None = None
    kubectl: str = "kubectl"

    def command(self, *words: str) -> list[str]:
        """The full command line, kubeconfig and context included."""
        flags = [*(("--kubeconfig", self.kubeconfig) if self.kubeconfig else ())]
        flags += [*(("--context", self.context) if self.context else ())]
        return [self.kubectl, *flags, *words]

    def run(self, *words: str, stdin: str | None = None, timeout_seconds: float = 60) -> str:
        """What kubectl printed. Raises KubectlError with its message when it fails."""
        done = subprocess.run(
            self.command(*words), input=stdin, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
        if done.returncode != 0:
            raise KubectlError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def apply(self, *objects: Object, server_side: bool = False) -> str:
        """`kubectl apply` of the objects, as a user does it: strict about unknown fields."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        return self.run("apply", *(("--server-side",) if server_side else ()), "-f", "-", stdin=text)

    def get(self, kind: str, name: str, namespace: str) -> Object | None:
        """The object, or None when it does not exist."""
        text = self.run("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def items(self, kind: str, namespace: str, selector: str = "") -> list[Object]:
        """Objects of a kind, oldest first as kubectl gives them."""
        flags = ("-l", selector) if selector else ()
        return list(json.loads(self.run("get", kind, "-n", namespace, *flags, "-o", "json"))["items"])

    def patch(self, kind: str, name: str, namespace: str, patch: Object) -> None:
        """A merge patch."""
        self.run("patch", kind, name, "-n", namespace, "--type=merge", "-p", json.dumps(patch))

    def exists(self, kind: str, namespace: str, selector: str) -> list[str]:
        """Names of the objects of a kind that carry the labels."""
        return [item["metadata"]["name"] for item in self.items(kind, namespace, selector)]


class WaitTimeoutError(AssertionError):
    """What was waited for did not come; the text says what was seen last."""


def wait_for(what: str, look: Callable[[], T | None], *, timeout_seconds: float, every_seconds: float = 0.5) -> T:
    """Ask `look` until it answers something true. Raises WaitTimeoutError."""
    deadline = time.monotonic() + timeout_seconds
    error: Exception | None = None
    while time.monotonic() < deadline:
        try:
            found = look()
        except (KubectlError, subprocess.TimeoutExpired) as problem:  # an API server that restarts is no verdict
            error, found = problem, None
        if found:
            return found
        time.sleep(every_seconds)
    raise WaitTimeoutError(
        f"{what}: not seen within {timeout_seconds:.0f} s" + (f"; last error: {error}" if error else "")
    )


def condition(obj: Mapping[str, Any] | None, kind: str) -> Mapping[str, Any]:
    """The condition of that type, or an empty mapping."""
    found = (one for one in ((obj or {}).get("status") or {}).get("conditions", []) if one["type"] == kind)
    return next(found, {})


def is_ready(pod: Mapping[str, Any]) -> bool:
    """A pod that is Ready and not on its way out."""
    return condition(pod, "Ready").get("status") == "True" and not pod["metadata"].get("deletionTimestamp")


def rolled_out(resource: Object, replicas: int) -> bool:
    """Whether the status says that the spec as it is now is rolled out, with nothing left to do."""
    status = resource.get("status") or {}
    return bool(
        status.get("observedGeneration") == resource["metadata"]["generation"]
        and status.get("updatedReplicas") == replicas
        and condition(resource, "Ready").get("status") == "True"
        and condition(resource, "Progressing").get("reason") == "Complete"
    )
