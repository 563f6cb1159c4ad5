"""The commands of kubectl and helm in the pages, page by page, as a reader types them, on a real API server.

There are no nodes and no operator: what a command waits for is written into the status beforehand, and one that
wants a pod must fail for that alone.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.programs import NAMESPACE, ROOT, Program, served
from cluster import tools
from cluster.apiserver import ControlPlane
from documents.blocks import Command, typed
from documents.programs import run_by

# What needs no server is said in every run: values of the chart, files that are named (tests/documents).
pytestmark = [pytest.mark.apiserver]

# The last of these removes the definitions.
LAST = "docs/operations.md"
FOUND = [(block.page, command) for block, command in typed(run_by(__file__))]
PAGES = sorted({page for page, _ in FOUND}, key=lambda page: (page == LAST, page))
# What stands for a name of the reader's.
NAMES = {"NAME": "llama-8b"}
# The Prometheus Operator's, which the chart makes objects of where it is asked for.
MONITORING = [("podmonitors", "PodMonitor"), ("prometheusrules", "PrometheusRule")]


def _definition(plural: str, kind: str) -> dict[str, Any]:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": free}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    group = "monitoring.coreos.com"
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"}, "spec": spec}  # fmt: skip


class Terminal:
    """A shell in the repository's root, as far as these commands need one."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self._folder = folder
        self._environment = {
            **os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(folder),
            "PATH": f"{tools.tool_path('kubectl').parent}:{tools.tool_path('helm').parent}:{os.environ['PATH']}",
        }  # fmt: skip
        self._everything = Program(tools.tool_path("kubectl"), (f"--kubeconfig={kubeconfig}",))
        self._installed = False
        self._created = ""

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, input=stdin, cwd=self._folder, env=self._environment, text=True,
                              capture_output=True, timeout=120, check=False)  # fmt: skip

    def must(self, *words: str, stdin: str = "") -> str:
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def begin(self) -> None:
        """What a page takes for granted: the chart, and a pool of the usual name."""
        self.have_chart()
        self.must("kubectl", "apply", "-f", "examples/modelpool-gpu.yaml")

    def have_chart(self, *, there: bool = True) -> None:
        if there and not self._installed:
            self.must("helm", "install", "tidepool", "charts/tidepool", "-n", NAMESPACE, "--create-namespace")
            served(self._everything)
        if not there and self._installed:
            self.must("helm", "uninstall", "tidepool", "-n", NAMESPACE)
        self._installed = there

    def type(self, command: Command) -> None:
        """One command of a page."""
        words = [NAMES.get(word, word) for word in command.words]
        if self._created:
            words = [word.replace("digest-x7k2p", self._created) for word in words]
        said = (self._helm if command.program == "helm" else self._kubectl)(words, command)
        if command.into:
            (self._folder / command.into).write_text(said)

    def _helm(self, words: list[str], command: Command) -> str:
        del command
        verb = words[1]
        self.have_chart(there=verb != "install")
        if verb == "test":
            words += ["--filter", "name=none"]  # its pod would wait for a node
        # Nothing becomes ready here.
        said = self.must(*(word for word in words if word not in {"--wait", "--timeout", "5m"}))
        self._installed = verb != "uninstall"
        return said

    def _kubectl(self, words: list[str], command: Command) -> str:
        if "port-forward" in words:
            done = self.run(*words, "--pod-running-timeout=1ms")
            assert "timed out waiting for the condition" in done.stderr, done.stderr
            return ""
        if "wait" in words:
            self._come_true(words)
        if "rollout" in words:
            self._roll(words)
        if command.said:
            self._tell_of_adapters(words, command.said)
        said = self.must(*(word for word in words if word != "--watch"), stdin=command.stdin)
        if "create" in words:
            self._created = said.split()[0].rpartition("/")[2]
        if command.said:
            assert _columns(said) == _columns(command.said)
        return said

    def _status(self, name: str, status: dict[str, Any], *flags: str) -> None:
        patch = json.dumps({"status": status})
        self.must("kubectl", "patch", *flags, name, "--subresource=status", "--type=merge", "-p", patch)

    def _come_true(self, words: list[str]) -> None:
        """What is waited for, as the operator would write it."""
        name = words[words.index("wait") + 1]
        (wanted,) = [word.removeprefix("--for=") for word in words if word.startswith("--for=")]
        if wanted.startswith("condition="):
            condition = {"type": wanted.removeprefix("condition="), "status": "True", "reason": "Serving",
                         "message": "as it should be", "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
            self._status(name, {"conditions": [condition]})
        else:
            assert wanted.startswith("jsonpath={.status.phase}=")
            self._status(name, {"phase": wanted.rpartition("=")[2]})

    def _roll(self, words: list[str]) -> None:
        """All pods of a Deployment."""
        name = words[words.index("status") + 1]
        found = json.loads(self.must("kubectl", "get", "-n", NAMESPACE, name, "-o", "json"))
        count = found["spec"]["replicas"]
        pods = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), count)
        self._status(name, {"observedGeneration": found["metadata"]["generation"], **pods}, "-n", NAMESPACE)

    def _tell_of_adapters(self, words: list[str], said: str) -> None:
        """So much of the status as the page shows."""
        adapters = []
        for line in said.splitlines():
            name, state, replicas, *reason = line.split()
            told = {"name": name, "state": state, "loadedReplicas": int(replicas)}
            adapters.append({**told, "reason": reason[0]} if reason else told)
        self._status(f"{words[2]}/{words[3]}", {"adapters": adapters})


def _columns(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    folder = tmp_path_factory.mktemp("root")
    for name in ("examples", "charts"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "keys.yaml").write_text("keys: []\n")
    with ControlPlane() as plane:
        terminal = Terminal(folder, plane.kubeconfig)
        stubs = yaml.safe_dump_all([_definition(*each) for each in MONITORING])
        terminal.must("kubectl", "apply", "-f", "-", stdin=stubs)
        terminal.must("kubectl", "create", "namespace", "demo")
        yield terminal


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_does_what_it_should(terminal: Terminal, page: str) -> None:
    terminal.begin()

    for command in (command for where, command in FOUND if where == page):
        terminal.type(command)


def test_a_command_that_kubectl_does_not_know_is_found(terminal: Terminal) -> None:
    nowhere = ("kubectl", "-n", NAMESPACE, "port-forward", "service/none", "8080:80")
    for line in (("kubectl", "get", "mp", "--colour"), nowhere):
        with pytest.raises(AssertionError):
            terminal.type(Command(line))
