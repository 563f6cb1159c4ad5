"""Configuration files and command lines of the nodes, the DNS server and Prometheus. Pure."""

import json
from pathlib import Path
from typing import Any

from cluster.layout import API_PORT, GPUS_PER_NODE, PROMETHEUS_PORT, Layout

# Where a node sees its own data, the programs and the engine: short, because paths of Unix
# sockets have a limit, and the same for every user, because pods' volumes name them.
NODE_ROOT = Path("/run/node")
TOOLS_ROOT = Path("/run/tools")
ENGINE_ROOT = Path("/run/engine")
CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")
CNI_PLUGINS = Path("/usr/lib/cni")
GPU_RESOURCE = "nvidia.com/gpu"
DOMAIN = "cluster.local"
# From this release on kubelet has a word for old control groups, and kube-proxy's nftables need no gate.
_SINCE = (1, 31)


def containerd_toml(pause_image: str) -> str:
    """containerd's configuration, version 3."""
    disabled = ("blockfile.v1", "btrfs.v1", "devmapper.v1", "erofs.v1", "zfs.v1", "native.v1")
    plugins = [*(f"io.containerd.snapshotter.v1.{name[:-3]}" for name in disabled), "io.containerd.nri.v1.nri"]
    return f"""\
version = 3
root = "{NODE_ROOT}/containerd"
state = "/run/containerd/state"
disabled_plugins = {json.dumps(plugins)}

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{pause_image}"

[plugins.'io.containerd.cri.v1.runtime']
  # Lowering oom_score_adj needs CAP_SYS_RESOURCE, which a machine may lack even as root.
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{CNI_PLUGINS}"]
    conf_dir = "{NODE_ROOT}/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def cni_conflist(layout: Layout, node: str) -> str:
    """Point-to-point links, not a bridge.

    On a bridge the answer of a pod to its neighbour behind a ClusterIP would
    cross the bridge directly and never see the address translation undone;
    point to point, everything is routed by the node.
    """
    return _json(
        {
            "cniVersion": "1.0.0",
            "name": "tidepool",
            "plugins": [
                {
                    "type": "ptp",
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": "/run/cni",
                        "ranges": [[{"subnet": layout.node_pods(node)}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
    )


def kubelet_config(layout: Layout, node: str, authority: Path, version: tuple[int, int]) -> str:
    """KubeletConfiguration for a release of Kubernetes; JSON is YAML."""
    return _json(
        {
            **({"failCgroupV1": False} if version >= _SINCE else {}),
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{node}",
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "clusterDNS": [layout.plane_address],
            "clusterDomain": DOMAIN,
            "resolvConf": str(NODE_ROOT / "resolv.conf"),
            "podLogsDir": str(NODE_ROOT / "pod-logs"),
            "volumePluginDir": str(NODE_ROOT / "volume-plugins"),
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"nodefs.available": "2%", "imagefs.available": "2%", "memory.available": "100Mi"},
            "maxPods": 110,
            "shutdownGracePeriod": "0s",
            # Several engines start together; the default of 5 a second makes them wait for events.
            "registryPullQPS": 0,
            "eventRecordQPS": 50,
        }
    )


def kubelet_command(layout: Layout, node: str) -> list[str]:
    """kubelet, as seen from inside its node."""
    return [
        str(TOOLS_ROOT / "kubelet"),
        f"--config={NODE_ROOT / 'kubelet.json'}",
        f"--kubeconfig={NODE_ROOT / 'kubelet.kubeconfig'}",
        f"--root-dir={NODE_ROOT / 'kubelet'}",
        f"--hostname-override={node}",
        f"--node-ip={layout.node_address(node)}",
        f"--cert-dir={NODE_ROOT / 'pki'}",
        f"--node-labels=tidepool.dev/test-node={node}",
    ]


def containerd_command() -> list[str]:
    """containerd, as seen from inside its node."""
    return [str(TOOLS_ROOT / "containerd"), f"--config={NODE_ROOT / 'containerd.toml'}"]


def ctr_command(*arguments: str) -> list[str]:
    """containerd's own client, in the namespace that kubelet uses."""
    return [str(TOOLS_ROOT / "ctr"), f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io", *arguments]


def kube_proxy_command(layout: Layout, node: str, version: tuple[int, int]) -> list[str]:
    """kube-proxy in nftables mode; the sysctls of conntrack are the machine's, not ours to set."""
    return [
        str(TOOLS_ROOT / "kube-proxy"),
        f"--kubeconfig={NODE_ROOT / 'kube-proxy.kubeconfig'}",
        "--proxy-mode=nftables",
        *([] if version >= _SINCE else ["--feature-gates=NFTablesProxyMode=true"]),
        f"--cluster-cidr={layout.pod_range}",
        f"--hostname-override={node}",
        "--conntrack-max-per-core=0",
        "--conntrack-min=0",
        f"--metrics-bind-address={layout.node_address(node)}:10249",
        f"--healthz-bind-address={layout.node_address(node)}:10256",
    ]


def gpu_patch() -> str:
    """The status patch by which a node offers GPUs; `~1` is a slash in a JSON pointer."""
    pointer = f"/status/capacity/{GPU_RESOURCE.replace('/', '~1')}"
    return json.dumps([{"op": "add", "path": pointer, "value": str(GPUS_PER_NODE)}])


def corefile(layout: Layout, kubeconfig: Path) -> str:
    """Names of the cluster and nothing else: pods have no way out, so nothing is forwarded."""
    return f"""\
{DOMAIN}:53 in-addr.arpa:53 ip6.arpa:53 {{
    bind {layout.plane_address}
    errors
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        ttl 2
    }}
}}
.:53 {{
    bind {layout.plane_address}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def prometheus_yaml(layout: Layout, token_file: Path, authority: Path, rules: str | None) -> str:
    """Scrapes annotated pods every 2 s; labels them with namespace, pod and pool. JSON is YAML."""
    annotation = "__meta_kubernetes_pod_annotation_prometheus_io_"

    def copy(source: str, target: str) -> dict[str, Any]:
        return {"source_labels": [source], "target_label": target}

    config: dict[str, Any] = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
        "scrape_configs": [
            {
                "job_name": "pods",
                "kubernetes_sd_configs": [
                    {
                        "role": "pod",
                        "api_server": f"https://{layout.plane_address}:{API_PORT}",
                        "authorization": {"credentials_file": str(token_file)},
                        "tls_config": {"ca_file": str(authority)},
                    }
                ],
                "relabel_configs": [
                    {"source_labels": [f"{annotation}scrape"], "regex": "true", "action": "keep"},
                    {
                        "source_labels": ["__meta_kubernetes_pod_phase"],
                        "regex": "Pending|Succeeded|Failed|Completed",
                        "action": "drop",
                    },
                    {
                        # One target a pod, whatever number of ports its containers declare.
                        "source_labels": ["__meta_kubernetes_pod_ip", f"{annotation}port"],
                        "regex": "(.+);(.+)",
                        "replacement": "$1:$2",
                        "target_label": "__address__",
                    },
                    {
                        "source_labels": [f"{annotation}path"],
                        "regex": "(.+)",
                        "target_label": "__metrics_path__",
                    },
                    copy("__meta_kubernetes_namespace", "namespace"),
                    copy("__meta_kubernetes_pod_name", "pod"),
                    copy("__meta_kubernetes_pod_node_name", "node"),
                    copy("__meta_kubernetes_pod_label_tidepool_dev_pool", "pool"),
                    copy("__meta_kubernetes_pod_label_tidepool_dev_role", "role"),
                ],
            }
        ],
    }
    if rules is not None:
        config["rule_files"] = [rules]
    return _json(config)


def prometheus_command(layout: Layout, program: Path, folder: Path) -> list[str]:
    """Prometheus in the control plane's network."""
    return [
        str(program),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=2d",
        f"--web.listen-address={layout.plane_address}:{PROMETHEUS_PORT}",
        "--web.enable-lifecycle",
        "--log.level=warn",
    ]


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
