"""`up`, `down` and `status`: level-triggered, so that every half-made cluster can be finished or removed."""

import dataclasses
import json
import shutil
import time
from pathlib import Path

from cluster import cgroups, debian, engine_install, images, links, node, plane, processes, prometheus, tools
from cluster.configs import TOOLS_ROOT
from cluster.console import capture, say, step, wait_until
from cluster.errors import ClusterError, CommandFailed, TimedOut
from cluster.kubernetes import Kubectl, node_is_ready
from cluster.layout import NODES, PLANE, UPLINK, Layout, choose_octet, route_destinations
from cluster.locks import exclusive
from cluster.machine import Machine, strays
from cluster.paths import cache_dir, cluster_name, state_dir

_NODE_READY_TIMEOUT_SECONDS = 120
_CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
_PLANE_PROGRAMS = ("etcd", "kube-apiserver", *_CONTROLLERS, "coredns", "prometheus")


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """What a running cluster was made from; another one means that it must be made anew."""

    octet: int
    programs: str
    engine: str
    boot_id: str
    revision: int = 1


@dataclasses.dataclass(frozen=True)
class Status:
    """What stands, for `status` and for tests; programs by "machine/name" with their process ids."""

    exists: bool
    api_ready: bool
    nodes_ready: tuple[str, ...]
    programs: dict[str, int | None]
    prometheus: bool
    kubeconfig: str
    api_url: str
    prometheus_url: str

    @property
    def healthy(self) -> bool:
        """All of it runs."""
        return (
            self.api_ready
            and len(self.nodes_ready) == len(NODES)
            and self.prometheus
            and None not in self.programs.values()
        )


def lock_path() -> Path:
    """Held by `up` and `down`; in the cache, because the state folder comes and goes."""
    return cache_dir() / f"{cluster_name()}.lock"


def _blueprint_path() -> Path:
    return state_dir() / "blueprint.json"


def read_blueprint() -> Blueprint | None:
    """What the cluster in the state folder was made from; None without a cluster."""
    try:
        return Blueprint(**json.loads(_blueprint_path().read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def layout_of(blueprint: Blueprint) -> Layout:
    """The addresses and folders of a cluster."""
    return Layout(state_dir(), blueprint.octet)


def machines(layout: Layout) -> tuple[Machine, list[Machine]]:
    """The control plane's machine, and the nodes'."""
    mark = str(layout.state)
    nodes = [Machine(name, layout.node_folder(name), mark) for name in NODES]
    return Machine(PLANE, layout.plane_folder, mark), nodes


def up() -> Status:
    """Make the cluster, repair it, or see that nothing is amiss. Raises ClusterError."""
    with exclusive(lock_path(), "the cluster"):
        debian.install(debian.NETWORK_AND_NODES)
        programs = tools.build()
        pause = images.pause_archive()
        base = images.base_archive()
        blueprint = _current(programs)
        layout = layout_of(blueprint)
        plane_machine, nodes = machines(layout)
        _end_strays(layout)
        if plane_machine.init is None:
            with step("control plane: machine"):
                plane_machine.destroy()
                plane_machine.create({})
        links.connect_plane(layout, plane_machine)
        described = plane.prepare(layout)
        kubectl = plane.start(layout, described, plane_machine)
        for machine in nodes:
            if node.create(layout, described, plane_machine, machine):
                say(f"{machine.name}: machine made")
        links.connect_routes(layout, plane_machine, nodes)
        for machine in nodes:
            node.start_containerd(machine)
            node.import_image(machine, *pause)
            node.start_kubelet(layout, machine)
        for machine in nodes:
            node.import_image(machine, *base, alias=images.ENGINE_BASE)
        _wait_nodes(kubectl)
        prometheus.ensure(layout, plane_machine)
        return status()


def _current(programs: Path) -> Blueprint:
    found = read_blueprint()
    if found is not None and _reusable(found, programs):
        return found
    if state_dir().exists():
        with step("remove a cluster that cannot be repaired; it is made anew"):
            _remove_all()
    octet = choose_octet(route_destinations(capture(["ip", "-4", "route"])))
    made = _wanted(octet, programs)
    state_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = _blueprint_path().with_suffix(".partial")
    partial.write_text(json.dumps(dataclasses.asdict(made)))
    partial.rename(_blueprint_path())
    return made


def _wanted(octet: int, programs: Path) -> Blueprint:
    return Blueprint(octet, str(programs), str(engine_install.engine_dir()), processes.boot_id())


def _reusable(found: Blueprint, programs: Path) -> bool:
    if found != _wanted(found.octet, programs):
        return False
    plane_machine, nodes = machines(layout_of(found))
    # Nodes without their control plane hang in the air: their cables went with its machine.
    return plane_machine.init is not None or not any(machine.init for machine in nodes)


def _end_strays(layout: Layout) -> None:
    plane_machine, nodes = machines(layout)
    left = strays(str(layout.state), [plane_machine, *nodes])
    if left:
        say(f"ending {len(left)} processes that a killed command left behind")
        processes.end(left, grace_seconds=0)


def _wait_nodes(kubectl: Kubectl) -> None:
    def ready() -> bool:
        try:
            found = kubectl.items("nodes")
        except CommandFailed:  # an API server that has too much to do at its start; it is asked again
            return False
        return sum(node_is_ready(one) for one in found) == len(NODES)

    wait_until("nodes Ready", ready, timeout_seconds=_NODE_READY_TIMEOUT_SECONDS, interval_seconds=0.5)


def down() -> None:
    """Remove every trace but the cache; says what it does. Raises TimedOut."""
    with exclusive(lock_path(), "the cluster"):
        if not _traces():
            say("there is no cluster")
            return
        with step("remove the cluster"):
            _remove_all()


def _traces() -> bool:
    removal = state_dir().with_name(f"{state_dir().name}.removed")
    return state_dir().exists() or removal.exists() or links.uplink_exists() or any(map(cgroups.left, NODES))


def _remove_all() -> None:
    """In this order: processes first (mounts and networks go with them), then what they held, then files."""
    layout = Layout(state_dir(), 0)
    plane_machine, nodes = machines(layout)
    for machine in (*nodes, plane_machine):
        machine.kill()
    for machine in (*nodes, plane_machine):
        machine.destroy()
    processes.end(strays(str(layout.state), []), grace_seconds=0)
    for name in NODES:
        cgroups.remove(name)
    _wait_uplink_gone()
    doomed = state_dir().with_name(f"{state_dir().name}.removed")
    if state_dir().exists():
        # Renamed first, so that a removal that is killed never looks like a cluster.
        shutil.rmtree(doomed, ignore_errors=True)
        state_dir().rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    if state_dir().parent.exists() and not any(state_dir().parent.iterdir()):
        state_dir().parent.rmdir()


def _wait_uplink_gone() -> None:
    # The kernel takes the link away together with the control plane's network, a moment later.
    deadline = time.monotonic() + 5
    while links.uplink_exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    links.remove_uplink()
    if links.uplink_exists():
        raise TimedOut(f"the link {UPLINK} cannot be removed: try `ip link delete {UPLINK}`")


def status() -> Status:
    """Look at everything, change nothing."""
    blueprint = read_blueprint()
    layout = layout_of(blueprint) if blueprint else Layout(state_dir(), 0)
    plane_machine, nodes = machines(layout)
    described = plane.describe(layout)
    api_ready = blueprint is not None and plane.is_ready(described)
    return Status(
        exists=blueprint is not None,
        api_ready=api_ready,
        nodes_ready=_ready_nodes(described.admin_kubeconfig) if api_ready else (),
        programs=_running(blueprint, plane_machine, nodes),
        prometheus=blueprint is not None and prometheus.is_ready(layout),
        kubeconfig=str(described.admin_kubeconfig),
        api_url=layout.api_url,
        prometheus_url=layout.prometheus_url,
    )


def _ready_nodes(kubeconfig: Path) -> tuple[str, ...]:
    try:
        found = Kubectl(kubeconfig).items("nodes")
    except ClusterError:
        return ()
    return tuple(one["metadata"]["name"] for one in found if node_is_ready(one))


def _running(blueprint: Blueprint | None, plane_machine: Machine, nodes: list[Machine]) -> dict[str, int | None]:
    if blueprint is None:
        return {}
    folder = Path(blueprint.programs)
    found = {f"{PLANE}/{name}": plane_machine.pid_of(str(folder / name)) for name in _PLANE_PROGRAMS}
    for machine in nodes:
        for name in ("containerd", "kubelet", "kube-proxy"):
            found[f"{machine.name}/{name}"] = machine.pid_of(str(TOOLS_ROOT / name))
    return found


def require() -> tuple[Layout, Machine, list[Machine]]:
    """The running cluster. Raises ClusterError without one."""
    blueprint = read_blueprint()
    if blueprint is None:
        raise ClusterError("there is no cluster: run `python3 -m cluster up`")
    layout = layout_of(blueprint)
    return (layout, *machines(layout))
