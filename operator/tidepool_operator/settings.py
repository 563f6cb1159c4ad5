"""The operator's own settings: flags, or the environment that the chart sets."""

import argparse
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidepool_api import contract

LEASE_NAME: Final = "tidepool-operator"
DEFAULT_ROUTER_IMAGE: Final = "ghcr.io/tidepool-dev/tidepool-router:0.1.0"


@dataclass(frozen=True, slots=True)
class Settings:
    """What one operator process works by.

    `watch_namespaces` empty: all. `reads_nodes`: nodes and pods of the whole cluster may be listed, so that
    rollouts know where there is room. `prometheus_url` empty: no history, decisions rest on the gateways alone.
    """

    namespace: str
    identity: str
    router_image: str = DEFAULT_ROUTER_IMAGE
    prometheus_url: str = ""
    watch_namespaces: tuple[str, ...] = ()
    reads_nodes: bool = False
    health_host: str = "0.0.0.0"  # noqa: S104 - the kubelet's probes come from outside
    health_port: int = 8080
    # The page for people. On loopback only `kubectl port-forward` leads there. `console_hosts` empty: it answers
    # by any name, but on loopback by loopback's alone.
    console: bool = False
    console_host: str = "127.0.0.1"
    console_port: int = contract.CONSOLE_PORT
    console_hosts: tuple[str, ...] = ()
    kubeconfig: str | None = None
    workers: int = 8
    resync_seconds: float = 600.0
    scale_interval_seconds: float = 5.0
    # A watch that is silent for so long is begun anew (bookmarks come every 60 s); every kind is listed so often.
    watch_silence_seconds: float = 75.0
    sweep_seconds: float = 30.0
    log_level: str = "INFO"
    # Sidecars believe gateways, peers and this operator by their proofs; else they believe everybody.
    trust: bool = False
    service_account: str = ""
    gateway_service_account: str = ""
    proof_file: Path = Path(contract.PROOF_FILE)
    # Secret in each pool's namespace with which sidecars serve gateways over TLS; empty: plain HTTP.
    sidecar_tls_secret: str = ""
    sidecar_tls_server_name: str = ""


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings of a command line; what it does not say the environment says. Exits like argparse on a bad one."""
    parser = argparse.ArgumentParser(prog="tidepool-operator", description="Operator of ModelPools.")
    parser.add_argument("command", nargs="?", choices=["run"], default="run")
    parser.add_argument("--router-image", default=environment.get("TIDEPOOL_ROUTER_IMAGE", DEFAULT_ROUTER_IMAGE))
    parser.add_argument("--prometheus-url", default=environment.get("TIDEPOOL_PROMETHEUS_URL", ""))
    parser.add_argument("--namespace", default=environment.get("POD_NAMESPACE", "default"))
    parser.add_argument(
        "--watch-namespaces",
        default=environment.get("TIDEPOOL_WATCH_NAMESPACES", ""),
        help="comma-separated; empty: all",
    )
    parser.add_argument(
        "--read-nodes",
        choices=["auto", "true", "false"],
        default=environment.get("TIDEPOOL_READ_NODES", "auto"),
        help="whether nodes and pods of the whole cluster may be listed; auto: where all namespaces are watched",
    )
    parser.add_argument("--health-host", default="0.0.0.0")  # noqa: S104 - see above
    parser.add_argument("--health-port", type=int, default=int(environment.get("TIDEPOOL_HEALTH_PORT", "8080")))
    parser.add_argument(
        "--console",
        action=argparse.BooleanOptionalAction,
        default=environment.get("TIDEPOOL_CONSOLE", "false") == "true",
        help="serve the page for people",
    )
    parser.add_argument("--console-host", default=environment.get("TIDEPOOL_CONSOLE_HOST", "127.0.0.1"))
    parser.add_argument("--console-port", type=int, default=contract.CONSOLE_PORT)
    parser.add_argument(
        "--console-hosts",
        default=environment.get("TIDEPOOL_CONSOLE_HOSTS", ""),
        help="names by which the page may be asked for, comma-separated; empty: any, on loopback loopback's",
    )
    parser.add_argument("--scale-interval", type=float, default=5.0, help="seconds between decisions")
    parser.add_argument("--log-level", default=environment.get("TIDEPOOL_LOG_LEVEL", "INFO"))
    parser.add_argument(
        "--trust",
        action=argparse.BooleanOptionalAction,
        default=environment.get("TIDEPOOL_TRUST", "false") == "true",
        help="sidecars believe only who proves itself by a service account's token",
    )
    parser.add_argument("--service-account", default=environment.get("POD_SERVICE_ACCOUNT", ""))
    parser.add_argument(
        "--gateway-service-account", default=environment.get("TIDEPOOL_GATEWAY_SERVICE_ACCOUNT", "")
    )
    parser.add_argument("--proof-file", type=Path, default=Path(contract.PROOF_FILE), help="our own token for it")
    parser.add_argument(
        "--sidecar-tls-secret",
        default=environment.get("TIDEPOOL_SIDECAR_TLS_SECRET", ""),
        help="Secret in each pool's namespace with which sidecars serve gateways over TLS",
    )
    parser.add_argument(
        "--sidecar-tls-server-name", default=environment.get("TIDEPOOL_SIDECAR_TLS_SERVER_NAME", "")
    )
    parser.add_argument("--kubeconfig", default=None, help="default: $KUBECONFIG, or the pod's service account")
    given = parser.parse_args(arguments)
    names, hosts = (
        [one.strip() for one in text.split(",")] for text in (given.watch_namespaces, given.console_hosts)
    )
    return Settings(
        namespace=given.namespace,
        # Two processes of one pod name (a restarted container) are two candidates for the Lease.
        identity=f"{environment.get('POD_NAME', socket.gethostname())}-{secrets.token_hex(3)}",
        router_image=given.router_image,
        prometheus_url=given.prometheus_url,
        watch_namespaces=tuple(name for name in names if name),
        reads_nodes=given.read_nodes == "true" or (given.read_nodes == "auto" and not any(names)),
        health_host=given.health_host,
        health_port=given.health_port,
        console=given.console,
        console_host=given.console_host,
        console_port=given.console_port,
        console_hosts=tuple(host for host in hosts if host),
        kubeconfig=given.kubeconfig,
        scale_interval_seconds=given.scale_interval,
        log_level=given.log_level.upper(),
        trust=given.trust,
        service_account=given.service_account,
        gateway_service_account=given.gateway_service_account,
        proof_file=given.proof_file,
        sidecar_tls_secret=given.sidecar_tls_secret,
        sidecar_tls_server_name=given.sidecar_tls_server_name,
    )


def from_process(arguments: Sequence[str]) -> Settings:
    """Settings of this process."""
    return read(arguments, os.environ)
