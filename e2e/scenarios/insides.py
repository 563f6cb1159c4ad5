"""Inside a pod, from the machine that runs its node: its processes, and what its network lets through."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from scenarios.kube import Object, wait_for

# What is done to a pod's network lies in one table, which goes as a whole.
_TABLE = "inet tidepool_scenario"
# Conntrack's: for how long a connection that rests is known, and whether one is taken up in its middle.
_REST, _LOOSE = (f"/proc/sys/net/netfilter/nf_conntrack_tcp_{name}" for name in ("timeout_established", "loose"))


def kill_container(pod: Object, name: str = "engine") -> None:
    """SIGKILL to the first process of a container."""
    statuses = pod["status"]["containerStatuses"]
    container = next(one for one in statuses if one["name"] == name)["containerID"].rpartition("/")[2]
    os.kill(_first_process(pod, container), 9)


@contextlib.contextmanager
def deaf(pod: Object, *rules: str) -> Iterator[None]:
    """The pod does not hear what `rules` of nftables drop or refuse. They outlive its containers."""
    with _network(pod) as network, network.filtered(input=rules):
        yield


@contextlib.contextmanager
def vanished(pod: Object) -> Iterator[None]:
    """Nothing reaches the pod, and nothing comes from it: as when its node has lost its power."""
    with (
        _network(pod) as network,
        network.filtered(input=['iifname != "lo" drop'], output=['oifname != "lo" drop']),
    ):
        yield


@contextlib.contextmanager
def forgotten(pod: Object, port: int, rest_seconds: int) -> Iterator[None]:
    """Connections to that port that rest for so long are cut, and neither end is told: what comes over them
    afterwards is lost. So do firewalls and load balancers with a table of connections; new ones go through."""
    lost = f"tcp sport {port} ct state invalid drop"
    with _network(pod) as network, contextlib.ExitStack() as stack:
        for name in (_REST, _LOOSE):
            stack.callback(network.run, "tee", name, stdin=network.run("cat", name))
        network.run("tee", _REST, stdin=str(rest_seconds))
        stack.enter_context(network.filtered(input=[lost]))
        # Those in use are taken up in their middle; from then on none is.
        known = ("conntrack", "-L", "-p", "tcp", "--dport", str(port))
        wait_for("connections in use", lambda: network.run(*known).strip() or None, timeout_seconds=30)
        network.run("tee", _LOOSE, stdin="0")
        yield


class _Network:
    """A pod's network, by a handle that keeps it alive."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def run(self, *command: str, stdin: str = "") -> str:
        done = subprocess.run(
            ["nsenter", f"--net=/proc/self/fd/{self._handle}", *command],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            pass_fds=(self._handle,),
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
        return done.stdout

    @contextlib.contextmanager
    def filtered(self, **rules: Sequence[str]) -> Iterator[None]:
        """Rules of nftables, by the hook."""
        chains = [
            "\n".join([f"chain {hook} {{", f"type filter hook {hook} priority 0", *lines, "}"])
            for hook, lines in rules.items()
        ]
        self.run("nft", "-f", "-", stdin="\n".join([f"table {_TABLE} {{", *chains, "}\n"]))
        try:
            yield
        finally:
            self.run("nft", "delete", "table", *_TABLE.split())


@contextlib.contextmanager
def _network(pod: Object) -> Iterator[_Network]:
    # The oldest process of a pod is none of its containers', and lives as long as the pod.
    handle = os.open(f"/proc/{_first_process(pod)}/ns/net", os.O_RDONLY)
    try:
        yield _Network(handle)
    finally:
        os.close(handle)


def _first_process(pod: Object, container: str = "") -> int:
    """Of a container by its id, else of the pod."""
    uid = pod["metadata"]["uid"]
    inside = [
        path.parent
        for path in Path("/proc").glob("[0-9]*/cgroup")
        if container in _text(path) and uid.replace("-", "") in _text(path).replace("-", "").replace("_", "")
    ]
    assert inside, f"no process of {container or 'the pod'} found in pod {pod['metadata']['name']}"
    # By their age: after 32,768 processes the numbers begin anew, and the lowest is no longer the first.
    return int(min(inside, key=_started).name)


def _started(process: Path) -> int:
    """Clock ticks after the machine's start at which a process began; late for one that has just ended."""
    fields = _text(process / "stat").rpartition(")")[2].split()
    return int(fields[19]) if fields else sys.maxsize


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process ended meanwhile
        return ""
