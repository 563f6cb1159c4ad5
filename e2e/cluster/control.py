"""The control plane's command lines and access files. Pure: nothing here starts or writes anything."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.certificates import Certificates

# One user per component, with the groups that RBAC's built-in bindings and the Node authorizer expect.
ADMIN = ("admin", "system:masters")
CONTROLLER_MANAGER = ("system:kube-controller-manager", "")
SCHEDULER = ("system:kube-scheduler", "")
PROXY = ("system:kube-proxy", "")
DNS = ("system:coredns", "")
PROMETHEUS = ("system:prometheus", "")


@dataclass(frozen=True)
class Plane:
    """Where a control plane lives and what it listens on."""

    folder: Path
    address: str
    api_port: int
    etcd_client_port: int
    etcd_peer_port: int
    service_range: str
    pod_range: str
    certificates: Certificates

    @property
    def url(self) -> str:
        """The API server, as clients call it."""
        return f"https://{self.address}:{self.api_port}"

    @property
    def etcd_url(self) -> str:
        """etcd listens on loopback only, in the plane's own network."""
        return f"http://127.0.0.1:{self.etcd_client_port}"

    @property
    def token_file(self) -> Path:
        """The static tokens of all components."""
        return self.folder / "tokens.csv"

    @property
    def admin_kubeconfig(self) -> Path:
        """Full access, for people and tests."""
        return self.folder / "admin.kubeconfig"

    def kubeconfig_of(self, component: str) -> Path:
        """The access file of one component."""
        return self.folder / f"{component}.kubeconfig"


def node_user(node: str) -> tuple[str, str]:
    """The user and group by which the Node authorizer knows a kubelet."""
    return f"system:node:{node}", "system:nodes"


def token_csv(tokens: Mapping[str, tuple[str, str]]) -> str:
    """The API server's static token file: token to (user, group), one a line."""
    lines = []
    for token, (user, group) in tokens.items():
        lines.append(f'{token},{user},{user},"{group}"' if group else f"{token},{user},{user}")
    return "\n".join(lines) + "\n"


def kubeconfig(url: str, authority: Path, token: str) -> str:
    """An access file; JSON, which every reader of YAML reads. The authority is a path."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "tidepool", "cluster": {"server": url, "certificate-authority": str(authority)}}
            ],
            "users": [{"name": "tidepool", "user": {"token": token}}],
            "contexts": [{"name": "tidepool", "context": {"cluster": "tidepool", "user": "tidepool"}}],
            "current-context": "tidepool",
        },
        indent=2,
    )


def etcd_arguments(plane: Plane) -> list[str]:
    """etcd without fsync: a test cluster need not survive a power cut."""
    peer = f"http://127.0.0.1:{plane.etcd_peer_port}"
    return [
        "--name=tidepool",
        f"--data-dir={plane.folder / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={plane.etcd_url}",
        f"--advertise-client-urls={plane.etcd_url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=tidepool={peer}",
        "--log-level=warn",
    ]


def apiserver_arguments(plane: Plane) -> list[str]:
    """An API server with static tokens, RBAC and the Node authorizer."""
    keys = plane.certificates
    return [
        f"--etcd-servers={plane.etcd_url}",
        f"--bind-address={plane.address}",
        f"--advertise-address={plane.address}",
        f"--secure-port={plane.api_port}",
        f"--service-cluster-ip-range={plane.service_range}",
        f"--token-auth-file={plane.token_file}",
        "--anonymous-auth=false",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={keys.authority}",
        f"--tls-cert-file={keys.server}",
        f"--tls-private-key-file={keys.server_key}",
        f"--kubelet-client-certificate={keys.client}",
        f"--kubelet-client-key={keys.client_key}",
        # By address: a node's name resolves nowhere, and exec and logs would try it first.
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={keys.service_accounts}",
        f"--service-account-signing-key-file={keys.service_accounts}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--cert-dir={plane.folder / 'apiserver'}",
        "--endpoint-reconciler-type=lease",
        "--shutdown-delay-duration=0s",
    ]


def controller_manager_arguments(plane: Plane) -> list[str]:
    """All controllers, no election: there is one."""
    keys = plane.certificates
    return [
        f"--kubeconfig={plane.kubeconfig_of('kube-controller-manager')}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={keys.service_accounts}",
        f"--root-ca-file={keys.authority}",
        "--secure-port=0",
        # A killed node is noticed within seconds, or tests of it would last minutes.
        "--node-monitor-period=2s",
        "--node-monitor-grace-period=20s",
    ]


def scheduler_arguments(plane: Plane) -> list[str]:
    """The scheduler, no election: there is one."""
    return [
        f"--kubeconfig={plane.kubeconfig_of('kube-scheduler')}",
        "--leader-elect=false",
        "--secure-port=0",
    ]
