"""The cables between the machines: a bridge in the control plane, and one link from everybody into it."""

import subprocess

from cluster.console import capture
from cluster.layout import NODES, UPLINK, Layout
from cluster.machine import Machine

_BRIDGE = "machines"


def connect_plane(layout: Layout, plane: Machine) -> None:
    """The bridge, and this machine's link and routes. Idempotent."""
    if not _has_link(plane, _BRIDGE):
        plane.network("ip", "link", "add", _BRIDGE, "type", "bridge")
        plane.network("ip", "address", "add", f"{layout.plane_address}/24", "dev", _BRIDGE)
    plane.network("ip", "link", "set", _BRIDGE, "up")
    if not _exists_here(UPLINK):
        init = plane.init
        assert init is not None
        peer = ["type", "veth", "peer", "name", "uplink", "netns", str(init.pid)]
        capture(["ip", "link", "add", UPLINK, *peer])
    plane.network("ip", "link", "set", "uplink", "master", _BRIDGE, "up")
    capture(["ip", "address", "replace", f"{layout.uplink_address}/24", "dev", UPLINK])
    capture(["ip", "link", "set", UPLINK, "up"])


def connect_node(layout: Layout, plane: Machine, node: Machine) -> None:
    """The node's eth0 and its routes. Idempotent."""
    port = f"port-{1 + NODES.index(node.name)}"
    if not _has_link(node, "eth0"):
        init = node.init
        assert init is not None
        if _has_link(plane, port):
            plane.network("ip", "link", "delete", port)
        peer = ["type", "veth", "peer", "name", "eth0", "netns", str(init.pid)]
        plane.network("ip", "link", "add", port, *peer)
    plane.network("ip", "link", "set", port, "master", _BRIDGE, "up")
    node.network("ip", "address", "replace", f"{layout.node_address(node.name)}/24", "dev", "eth0")
    node.network("ip", "link", "set", "eth0", "up")


def connect_routes(layout: Layout, plane: Machine, nodes: list[Machine]) -> None:
    """Routes to pods and ClusterIPs, in every machine and here. Needs all links. Idempotent."""
    for machine in (plane, *nodes):
        for destination, gateway in layout.routes(machine.name):
            machine.network("ip", "route", "replace", destination, "via", gateway)
    for destination, gateway in layout.routes(""):
        capture(["ip", "route", "replace", destination, "via", gateway, "dev", UPLINK])


def uplink_exists() -> bool:
    """Whether this machine's link is still there."""
    return _exists_here(UPLINK)


def remove_uplink() -> None:
    """Take this machine's link away; its routes go with it."""
    subprocess.run(["ip", "link", "delete", UPLINK], capture_output=True, check=False)


def _exists_here(link: str) -> bool:
    return subprocess.run(["ip", "link", "show", link], capture_output=True, check=False).returncode == 0


def _has_link(machine: Machine, link: str) -> bool:
    names = [line.split(":")[1].strip().split("@")[0] for line in machine.network("ip", "-o", "link").splitlines()]
    return link in names
