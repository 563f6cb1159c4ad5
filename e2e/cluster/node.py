"""One node: a machine with containerd, kubelet and kube-proxy."""

from pathlib import Path

from cluster import cgroups, configs, engine_install, links, tools
from cluster.console import step, wait_until
from cluster.control import Plane
from cluster.errors import CommandFailed
from cluster.images import PAUSE
from cluster.layout import Layout
from cluster.machine import Machine


def create(layout: Layout, plane: Plane, plane_machine: Machine, node: Machine) -> bool:
    """See that the machine, its files and its cable are there; returns whether it was made anew."""
    anew = node.init is None
    folder = layout.node_folder(node.name)
    if anew:
        # Like a machine that lost its power: containers are gone, disks and images are not.
        node.destroy()
        cgroups.remove(node.name)
    (folder / "data").mkdir(parents=True, exist_ok=True)
    _write_files(layout, plane, node.name, folder / "data")
    cgroups.ensure(node.name)
    if anew:
        engine_install.engine_dir().mkdir(parents=True, exist_ok=True)
        node.create(
            {
                configs.NODE_ROOT.name: folder / "data",
                configs.TOOLS_ROOT.name: tools.bin_dir(),
                configs.ENGINE_ROOT.name: engine_install.engine_dir(),
            }
        )
    links.connect_node(layout, plane_machine, node)
    return anew


def _write_files(layout: Layout, plane: Plane, node: str, data: Path) -> None:
    (data / "cni").mkdir(exist_ok=True)
    authority = data / "ca.crt"
    authority.write_bytes(plane.certificates.authority.read_bytes())
    (data / "cni" / "10-tidepool.conflist").write_text(configs.cni_conflist(layout, node))
    (data / "containerd.toml").write_text(configs.containerd_toml(PAUSE))
    inside = configs.NODE_ROOT / authority.name
    (data / "kubelet.json").write_text(configs.kubelet_config(layout, node, inside, tools.kubernetes_version()))
    (data / "resolv.conf").write_text(f"nameserver {layout.plane_address}\n")
    for component, source in (("kubelet", node), ("kube-proxy", "kube-proxy")):
        text = plane.kubeconfig_of(source).read_text()
        text = text.replace(str(plane.certificates.authority), str(inside))
        target = data / f"{component}.kubeconfig"
        target.touch(mode=0o600)
        target.write_text(text)


def start_containerd(node: Machine) -> None:
    """See that containerd runs and answers. Raises TimedOut."""
    node.ensure(configs.containerd_command())
    wait_until(f"{node.name}: containerd", lambda: _answers(node), timeout_seconds=60)


def start_kubelet(layout: Layout, node: Machine) -> None:
    """See that kubelet and kube-proxy run; when the node is Ready is told by the API server."""
    node.ensure(configs.kubelet_command(layout, node.name))
    node.ensure(configs.kube_proxy_command(layout, node.name, tools.kubernetes_version()))


def _answers(node: Machine) -> bool:
    try:
        node.run(*configs.ctr_command("version"), timeout_seconds=10)
    except CommandFailed:
        return False
    return True


def image_names(node: Machine) -> set[str]:
    """References of all images on the node."""
    return set(node.run(*configs.ctr_command("images", "list", "--quiet")).split())


def import_image(node: Machine, name: str, archive: Path, alias: str | None = None) -> None:
    """Load an archive unless the node has an image of that name. Raises CommandFailed."""
    if name not in image_names(node):
        with step(f"{node.name}: import {name}"):
            node.run(*configs.ctr_command("images", "import", "-"), timeout_seconds=300, stdin_file=archive)
    if alias is not None:
        node.run(*configs.ctr_command("images", "tag", "--force", name, alias))
