"""Small programs of the scenarios in pods, without an image of their own: their source is a ConfigMap."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from scenarios.kube import Kube, Object
from scenarios.world import SYSTEM_NAMESPACE

FOLDER = "/srv/program"
PYTHON_OF_ROUTER = "/opt/tidepool/bin/python"


def router_image(kube: Kube) -> str:
    """The router's image as it is installed."""
    return kube.run(
        *("get", "deployments", "-n", SYSTEM_NAMESPACE, "-l", "tidepool.dev/component=gateway"),
        *("-o", "jsonpath={.items[0].spec.template.spec.containers[0].image}"),
    ).strip()


def source(name: str, namespace: str, files: Mapping[str, Path]) -> Object:
    """A ConfigMap of files, by the path at which `volume` shows them."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": {path.replace("/", "__"): file.read_text() for path, file in files.items()},
    }


def volume(name: str, files: Mapping[str, Path]) -> Object:
    """A volume of that ConfigMap, for a mount at FOLDER."""
    items = [{"key": path.replace("/", "__"), "path": path} for path in files]
    return {"name": name, "configMap": {"name": name, "items": items}}


def namespace(name: str, **annotations: str) -> Object:
    """A namespace under the strictest standard."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def server(name: str, where: str, image: str, files: Mapping[str, Path], port: int) -> Sequence[Object]:
    """Objects of a server of one replica: the first of the files, run by the router's Python with the port."""
    program = f"{FOLDER}/{next(iter(files))}"
    container = {
        "name": "program",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [PYTHON_OF_ROUTER, program, str(port)],
        "ports": [{"containerPort": port}],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": name, "mountPath": FOLDER, "readOnly": True}],
    }
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [volume(name, files)],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": where},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        },
    }
    return [source(name, where, files), deployment]


def service(name: str, where: str, app: str, port: int) -> Object:
    """A Service on port 80 that leads to a server."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": where},
        "spec": {"selector": {"app": app}, "ports": [{"port": 80, "targetPort": port}]},
    }
