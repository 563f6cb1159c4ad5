"""Sets the stage: a cluster, images, Prometheus, the chart; our own cluster, or one that the user has."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from scenarios.evidence import BUILD, Evidence
from scenarios.kube import Kube, Object, wait_for
from scenarios.pools import cpu_pool
from scenarios.world import RELEASE, SYSTEM_NAMESPACE, World

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tidepool"
RULES = [CHART / "files" / "rules.yaml", CHART / "files" / "alerts.yaml"]
IMAGE_NAMES = ("tidepool-router", "tidepool-operator")
_CLUSTER_SECONDS = 3600.0


class StageError(RuntimeError):
    """The stage cannot be set; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Images:
    """Where the two images are: `prefix/tidepool-router:tag`; each may have a tag of its own."""

    prefix: str
    tags: Mapping[str, str]

    def values(self) -> list[str]:
        """Flags for helm."""
        flags = []
        for name in IMAGE_NAMES:
            part = name.removeprefix("tidepool-")
            flags += ["--set-string", f"{part}.image.repository={self.prefix}/{name}"]
            flags += ["--set-string", f"{part}.image.tag={self.tags[name]}"]
        return flags


def cluster(*words: str, timeout_seconds: float = _CLUSTER_SECONDS) -> str:
    """`python -m cluster ...`: its progress goes to the person, its answer is returned."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "e2e")}
    done = subprocess.run(
        [sys.executable, "-m", "cluster", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        timeout=timeout_seconds,
        check=False,
    )
    if done.returncode != 0:
        raise StageError(f"`python -m cluster {' '.join(words)}` failed; its output stands above")
    return done.stdout


def helm(kube: Kube, program: str, *words: str, timeout_seconds: float = 400) -> str:
    """helm against the same cluster. Raises StageError with helm's message."""
    flags = [*(("--kubeconfig", kube.kubeconfig) if kube.kubeconfig else ())]
    flags += [*(("--kube-context", kube.context) if kube.context else ())]
    done = subprocess.run(
        [program, *words, *flags], capture_output=True, text=True, timeout=timeout_seconds, check=False
    )
    if done.returncode != 0:
        raise StageError(f"helm {words[0]}: {done.stderr.strip()}")
    return done.stdout


def install(kube: Kube, program: str, images: Images, prometheus_url: str, extra: Sequence[str] = ()) -> str:
    """helm install, or upgrade when it is there; waits until operator and gateways are Ready."""
    return helm(
        kube,
        program,
        *("upgrade", "--install", RELEASE, str(CHART)),
        *("--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "300s"),
        *images.values(),
        *("--set-string", f"prometheus.url={prometheus_url}"),
        *extra,
    )


def rules() -> Path:
    """The chart's recording rules and alerts in one file, as Prometheus of the cluster takes it."""
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    BUILD.mkdir(parents=True, exist_ok=True)
    written = BUILD / "rules.yaml"
    written.write_text(yaml.safe_dump({"groups": groups}, sort_keys=False, width=1000))
    return written


@contextlib.contextmanager
def changed(world: World, *flags: str) -> Iterator[None]:
    """The chart with other values for a while: flags for helm beside those that it was installed with."""
    kept = ("--namespace", SYSTEM_NAMESPACE, "--wait", "--timeout", "300s")
    helm(world.kube, world.helm, "upgrade", RELEASE, str(CHART), "--reuse-values", *flags, *kept)
    try:
        yield
    finally:
        helm(world.kube, world.helm, "rollback", RELEASE, *kept)


def own_cluster(evidence: Evidence) -> World:
    """The project's two-node cluster, made when it is missing, with the chart installed from this tree."""
    status = cluster("up")
    kubeconfig = status.rpartition("export KUBECONFIG=")[2].strip()
    programs = Path(cluster("tools").strip())
    kube = Kube(kubeconfig=kubeconfig, kubectl=str(programs / "kubectl"))
    tags = dict(
        line.removeprefix("localhost/").split(":", 1)
        for line in cluster("images").split()
        if line.startswith("localhost/")
    )
    cluster("prometheus", "reload", "--rules", str(rules()))
    prometheus_url = next(
        word
        for line in status.splitlines()
        if line.startswith("Prometheus")
        for word in line.split()
        if "://" in word
    )
    evidence.say("cluster, images and Prometheus stand")
    pool = cpu_pool()
    # `helm test` then asks this model for a streamed answer.
    asked = ("--set-string", f"test.model={pool['spec']['model']['name']}")
    install(kube, str(programs / "helm"), Images("localhost", tags), prometheus_url, asked)
    evidence.say("chart installed by helm; operator and gateways are Ready")
    cluster("engine-volume", "--namespace", pool["metadata"]["namespace"])
    return World(
        kube=kube,
        pool=pool,
        gateway_url=f"http://{cluster_ip(kube, gateway_service(kube), SYSTEM_NAMESPACE)}",
        prometheus_url=prometheus_url,
        evidence=evidence,
        helm=str(programs / "helm"),
    )


def gateway_service(kube: Kube) -> str:
    """Name of the gateway's Service."""
    return kube.exists("services", SYSTEM_NAMESPACE, "tidepool.dev/component=gateway")[0]


def cluster_ip(kube: Kube, service: str, namespace: str) -> str:
    """The ClusterIP, which the machine itself reaches on the project's own cluster."""
    found = kube.get("service", service, namespace)
    assert found is not None, f"Service {namespace}/{service} does not exist"
    return str(found["spec"]["clusterIP"])


def default_pool(kube: Kube) -> Object:
    """The pool of the demo on a foreign cluster: the GPU example where a node offers GPUs."""
    if not nodes_offer(kube, "nvidia.com/gpu"):
        raise StageError("no node of this cluster offers nvidia.com/gpu; give POOL=manifest.yaml, see examples/")
    pool: Object = yaml.safe_load((ROOT / "examples" / "modelpool-gpu.yaml").read_text())
    return pool


def find_service(world: World) -> None:
    """Fill in the address of the pool's own Service, which the operator makes first of all."""
    wait_for(
        f"Service {world.name}",
        lambda: world.kube.get("service", world.name, world.namespace),
        timeout_seconds=60,
    )
    world.service_url = f"http://{cluster_ip(world.kube, world.name, world.namespace)}"


@contextlib.contextmanager
def forwarded(kube: Kube, namespace: str, name: str, port: int, kind: str = "svc") -> Iterator[str]:
    """`kubectl port-forward` to a Service, or what `kind` says; yields the base URL."""
    child = subprocess.Popen(
        kube.command("port-forward", "-n", namespace, f"{kind}/{name}", f":{port}", "--address", "127.0.0.1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()  # Forwarding from 127.0.0.1:40001 -> 8080
        if "Forwarding from" not in line:
            raise StageError(f"kubectl port-forward to {namespace}/{name}: {line.strip()}")
        yield f"http://{line.split()[2]}"
    finally:
        child.terminate()
        child.wait(timeout=10)
        if child.stdout is not None:
            child.stdout.close()


def nodes_offer(kube: Kube, resource: str) -> bool:
    """Whether any node has the resource."""
    nodes = json.loads(kube.run("get", "nodes", "-o", "json"))["items"]
    return any(int(node["status"]["allocatable"].get(resource, "0")) > 0 for node in nodes)
