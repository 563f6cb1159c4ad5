"""The control plane as processes of its machine: etcd, API server, controllers, scheduler, DNS, GPUs."""

import json
import secrets
import sys
from pathlib import Path
from typing import Any

from cluster import apiserver, certificates, configs, control, tools
from cluster.console import wait_until
from cluster.control import Plane
from cluster.kubernetes import Kubectl
from cluster.layout import API_PORT, NODES, PROMETHEUS_PORT, Layout
from cluster.machine import Machine
from cluster.paths import REPOSITORY

_COMPONENTS = {
    "admin": control.ADMIN,
    "kube-controller-manager": control.CONTROLLER_MANAGER,
    "kube-scheduler": control.SCHEDULER,
    "kube-proxy": control.PROXY,
    "coredns": control.DNS,
    "prometheus": control.PROMETHEUS,
    **{node: control.node_user(node) for node in NODES},
}


def describe(layout: Layout) -> Plane:
    """Ports and paths of the control plane."""
    folder = layout.plane_folder
    return Plane(
        folder=folder,
        address=layout.plane_address,
        api_port=API_PORT,
        etcd_client_port=2379,
        etcd_peer_port=2380,
        service_range=layout.service_range,
        pod_range=layout.pod_range,
        certificates=certificates.Certificates(folder / "pki"),
    )


def prepare(layout: Layout) -> Plane:
    """Keys, tokens and access files; made once, and again if a killed command left only a part."""
    plane = describe(layout)
    complete = plane.folder / "prepared"
    if not complete.exists():
        addresses = [layout.plane_address, layout.kubernetes_service_address, "127.0.0.1"]
        certificates.make(plane.folder / "pki", addresses)
        tokens = {component: secrets.token_urlsafe(24) for component in _COMPONENTS}
        users = {tokens[component]: user for component, user in _COMPONENTS.items()}
        apiserver.write_private(plane.token_file, control.token_csv(users))
        authority = plane.certificates.authority
        for component, token in tokens.items():
            text = control.kubeconfig(layout.api_url, authority, token)
            apiserver.write_private(plane.kubeconfig_of(component), text)
        apiserver.write_private(plane.folder / "prometheus.token", tokens["prometheus"])
        complete.touch()
    return plane


def start(layout: Layout, plane: Plane, machine: Machine) -> Kubectl:
    """See that everything runs, and wait for the API server. Raises TimedOut."""
    programs = tools.build()
    machine.ensure([str(programs / "etcd"), *control.etcd_arguments(plane)])
    machine.ensure([str(programs / "kube-apiserver"), *control.apiserver_arguments(plane)])
    kubectl = Kubectl(plane.admin_kubeconfig)
    wait_until("API server", lambda: is_ready(plane), timeout_seconds=90)
    machine.ensure(
        [str(programs / "kube-controller-manager"), *control.controller_manager_arguments(plane)],
    )
    machine.ensure([str(programs / "kube-scheduler"), *control.scheduler_arguments(plane)])
    kubectl.apply(base_objects(layout))
    corefile = plane.folder / "Corefile"
    corefile.write_text(configs.corefile(layout, plane.kubeconfig_of("coredns")))
    machine.ensure([str(programs / "coredns"), f"-conf={corefile}"])
    machine.ensure(
        [sys.executable, "-m", "cluster.gpus", str(plane.admin_kubeconfig)],
        {"PYTHONPATH": str(REPOSITORY / "e2e")},
    )
    return kubectl


def is_ready(plane: Plane) -> bool:
    """Whether /readyz answers."""
    try:
        token = json.loads(plane.admin_kubeconfig.read_text())["users"][0]["user"]["token"]
        apiserver.call(f"{plane.url}/readyz", token, plane.certificates.authority)
    except (OSError, ValueError):
        return False
    return True


def base_objects(layout: Layout) -> list[dict[str, Any]]:
    """What the cluster's own helpers may read, and a Service name for Prometheus beside the cluster."""
    dns_rules = [
        _read([""], ["endpoints", "services", "pods", "namespaces"]),
        _read(["discovery.k8s.io"], ["endpointslices"]),
    ]
    return [
        *_role("system:coredns", control.DNS[0], dns_rules),
        *_role("system:prometheus", control.PROMETHEUS[0], [_read([""], ["pods"])]),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring"}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "prometheus", "namespace": "monitoring"},
            "spec": {"ports": [{"name": "http", "port": PROMETHEUS_PORT, "protocol": "TCP"}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "prometheus-beside",
                "namespace": "monitoring",
                "labels": {"kubernetes.io/service-name": "prometheus"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [layout.plane_address], "conditions": {"ready": True}}],
            "ports": [{"name": "http", "port": PROMETHEUS_PORT, "protocol": "TCP"}],
        },
    ]


def _read(groups: list[str], resources: list[str]) -> dict[str, list[str]]:
    return {"apiGroups": groups, "resources": resources, "verbs": ["get", "list", "watch"]}


def _role(name: str, user: str, rules: list[dict[str, list[str]]]) -> list[dict[str, Any]]:
    api = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": api, "kind": "User", "name": user}],
        },
    ]


def kubeconfig(layout: Layout) -> Path:
    """The access file for people and tests."""
    return describe(layout).admin_kubeconfig
