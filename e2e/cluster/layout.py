"""Names, addresses and folders of the two-node cluster. Pure, but for the name that the environment may give."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.paths import cluster_name

_NAME = cluster_name()
PLANE = f"{_NAME}-plane"
NODES = (f"{_NAME}-node-1", f"{_NAME}-node-2")
# The machine's own end of its cable into the cluster; the one thing that is seen outside.
UPLINK = f"{_NAME}0"
GPUS_PER_NODE = 4

API_PORT = 6443
PROMETHEUS_PORT = 9090


@dataclass(frozen=True)
class Layout:
    """Everything is derived from the state folder and the second octet of three adjacent networks."""

    state: Path
    octet: int

    @property
    def machine_range(self) -> str:
        """The network that connects the control plane, the nodes and this machine."""
        return f"10.{self.octet}.0.0/24"

    @property
    def pod_range(self) -> str:
        """All pods; each node has a /24 of it."""
        return f"10.{self.octet + 1}.0.0/16"

    @property
    def service_range(self) -> str:
        """ClusterIPs."""
        return f"10.{self.octet + 2}.0.0/16"

    @property
    def plane_address(self) -> str:
        """The API server, the DNS server and Prometheus listen here."""
        return f"10.{self.octet}.0.1"

    @property
    def uplink_address(self) -> str:
        """This machine, as pods see it."""
        return f"10.{self.octet}.0.254"

    @property
    def kubernetes_service_address(self) -> str:
        """The first ClusterIP, which Kubernetes gives to itself."""
        return f"10.{self.octet + 2}.0.1"

    def node_address(self, node: str) -> str:
        """A node's InternalIP."""
        return f"10.{self.octet}.0.{11 + NODES.index(node)}"

    def node_pods(self, node: str) -> str:
        """The pod network of one node."""
        return f"10.{self.octet + 1}.{1 + NODES.index(node)}.0/24"

    def routes(self, machine: str) -> list[tuple[str, str]]:
        """(destination, gateway) pairs that a machine needs to reach all pods and ClusterIPs.

        The empty name is this machine itself. A node handles ClusterIPs itself;
        the others send them by way of the first node, where kube-proxy rewrites
        and masquerades them.
        """
        pairs = [(self.node_pods(node), self.node_address(node)) for node in NODES if node != machine]
        if machine in NODES:
            return pairs
        return [*pairs, (self.service_range, self.node_address(NODES[0]))]

    @property
    def api_url(self) -> str:
        """The API server, reachable from this machine, nodes and pods."""
        return f"https://{self.plane_address}:{API_PORT}"

    @property
    def prometheus_url(self) -> str:
        """Prometheus, reachable from this machine and from pods."""
        return f"http://{self.plane_address}:{PROMETHEUS_PORT}"

    @property
    def plane_folder(self) -> Path:
        """Data, keys and logs of the control plane."""
        return self.state / PLANE

    def node_folder(self, node: str) -> Path:
        """Data and logs of one node; nodes see their own as NODE_ROOT."""
        return self.state / node


def choose_octet(taken: Iterable[str]) -> int:
    """The second octet of the first three adjacent 10.x networks that no existing route overlaps.

    `taken` are destinations in CIDR notation. Raises ValueError when nothing is free.
    """
    networks = [ipaddress.ip_network(text, strict=False) for text in taken]
    for octet in range(211, 250, 3):
        ours = [ipaddress.ip_network(f"10.{octet + offset}.0.0/16") for offset in range(3)]
        if not any(mine.overlaps(other) for mine in ours for other in networks if other.version == 4):
            return octet
    raise ValueError("no free address range between 10.211.0.0/16 and 10.249.0.0/16: remove some routes")


def route_destinations(ip_route: str) -> list[str]:
    """Destinations from the output of `ip -4 route`, the default route left out."""
    words = (line.split()[0] for line in ip_route.splitlines() if line.strip())
    return [word if "/" in word else f"{word}/32" for word in words if word[0].isdigit()]
