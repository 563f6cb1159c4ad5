"""The cluster, asked by kubectl: whoever can use kubectl can use this, with the same access."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from tidepool_cli.errors import CliError, NoCluster, NoKubectl, NoSuchObject, NotAllowed, NotInstalled

_SECONDS: Final = 30.0
# Of what kubectl says on standard error; the first that fits. kubectl has no exit codes of its own for them.
_SAID: Final[tuple[tuple[str, type[CliError], str], ...]] = (
    (
        "the server doesn't have a resource type",
        NotInstalled,
        "this cluster has no Tidepool resources; install the chart first (helm install tidepool charts/tidepool)",
    ),
    ("no matches for kind", NotInstalled, "this cluster has no Tidepool resources; install the chart first"),
    ("(NotFound)", NoSuchObject, "look at `kubectl get` with the same namespace; -n chooses another"),
    ("(Forbidden)", NotAllowed, "ask for the chart's role tidepool-view or tidepool-edit"),
    ("Unauthorized", NoCluster, "the credentials are not accepted; log in again, or choose another --context"),
    ("was refused", NoCluster, "the API server does not answer; check --context and that the cluster is up"),
    ("Unable to connect", NoCluster, "the API server does not answer; check --context and the network"),
    ("context was not found", NoCluster, "`kubectl config get-contexts` lists those that there are"),
    ("does not exist", NoCluster, "`kubectl config get-contexts` lists the contexts that there are"),
)

Object = dict[str, Any]


class Cluster(Protocol):
    """What the commands need of a cluster. All raise CliError."""

    def get(self, resource: str, name: str) -> Object:
        """One object of the namespace."""

    def list(
        self, resource: str, *, selector: str = "", fields: str = "", everywhere: bool = False
    ) -> list[Object]:
        """Objects of the namespace, or of all."""

    def logs(self, pod: str, container: str, lines: int, *, previous: bool = False) -> str:
        """The end of a container's log."""

    def create(self, document: Mapping[str, Any]) -> Object:
        """Make an object of it."""

    def execute(self, target: str, command: Sequence[str]) -> str:
        """What a command prints in a container of `target`, such as deploy/tidepool-gateway."""


class Kubectl:
    """`options` are kubectl's own: --namespace, --context, --kubeconfig."""

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._options = list(options)

    def get(self, resource: str, name: str) -> Object:
        """One object of the namespace."""
        return self._object("get", resource, name, "--output=json")

    def list(
        self, resource: str, *, selector: str = "", fields: str = "", everywhere: bool = False
    ) -> list[Object]:
        """Objects of the namespace, or of all."""
        chosen = [f"--selector={selector}"] if selector else []
        chosen += [f"--field-selector={fields}"] if fields else []
        chosen += ["--all-namespaces"] if everywhere else []
        return list(self._object("get", resource, *chosen, "--output=json").get("items", []))

    def logs(self, pod: str, container: str, lines: int, *, previous: bool = False) -> str:
        """The end of a container's log."""
        before = ["--previous"] if previous else []
        return self._run(
            "logs", pod, f"--container={container}", f"--tail={lines}", "--limit-bytes=1000000", *before
        )

    def create(self, document: Mapping[str, Any]) -> Object:
        """Make an object of it."""
        made: Object = json.loads(self._run("create", "--filename=-", "--output=json", said=json.dumps(document)))
        return made

    def execute(self, target: str, command: Sequence[str]) -> str:
        """What a command prints in a container of `target`."""
        return self._run("exec", target, *self._options, "--", *command, options=False)

    def _object(self, *arguments: str) -> Object:
        found: Object = json.loads(self._run(*arguments))
        return found

    def _run(self, *arguments: str, said: str | None = None, options: bool = True) -> str:
        program = shutil.which("kubectl")
        if program is None:
            raise NoKubectl("kubectl is not on the PATH, and it is what asks the cluster; install it")
        command = [program, *arguments, *(self._options if options else ())]
        try:
            done = subprocess.run(  # noqa: S603 - kubectl, with arguments that no shell sees
                command,
                input=said,
                capture_output=True,
                text=True,
                errors="replace",  # logs are whatever a program wrote
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NoCluster(
                f"kubectl {arguments[0]} has not ended within {_SECONDS:.0f} s; check --context and the network"
            ) from None
        if done.returncode:
            raise _error(done.stderr)
        return done.stdout


def _error(said: str) -> CliError:
    told = [line for line in said.splitlines() if line.strip() and not line.startswith("command terminated")]
    line = told[-1] if told else "kubectl failed without a word"
    line = line.removeprefix("Error from server ").removeprefix("error: ").strip()
    for words, kind, remedy in _SAID:
        if words in said:
            return kind(f"{line}; {remedy}")
    return CliError(f"kubectl: {line}")
