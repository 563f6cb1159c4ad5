"""TLS between gateways and sidecars, where the installation wants it: a port of its own beside the plain one.

The pool's Secret is mounted, never read here. A pod that has the port carries a label, by which a headless Service
of its own finds it: while a pool's pods are replaced, gateways speak TLS with those that can, and plain HTTP with
the others.
"""

from typing import Final

from tidepool_api import contract
from tidepool_operator.pool.model import Object, SidecarTLS

_KEYS: Final = ("tls.crt", "tls.key", "ca.crt")


def with_tls(template: Object, pool: str, namespace: str, tls: SidecarTLS) -> None:
    """Give the pod its port for TLS."""
    template["metadata"]["labels"][contract.TLS_LABEL] = "true"
    spec = template["spec"]
    secret = {"secretName": tls.secret_name, "items": [{"key": key, "path": key} for key in _KEYS]}
    spec["volumes"].append({"name": "tls", "secret": secret})
    (router,) = [each for each in spec["initContainers"] if each["name"] == contract.ROUTER_CONTAINER]
    router["volumeMounts"].append({"name": "tls", "mountPath": contract.TLS_FOLDER, "readOnly": True})
    router["ports"].append({"name": "https", "containerPort": contract.TLS_PORT})
    arguments = router["args"]
    arguments[arguments.index("--peers") + 1] = contract.tls_peers_url(pool, namespace)
    certificate, key, authorities = (f"{contract.TLS_FOLDER}/{name}" for name in _KEYS)
    arguments += ["--tls-port", str(contract.TLS_PORT), "--tls-cert", certificate, "--tls-key", key]
    arguments += ["--pod-ca", authorities, "--pod-server-name", tls.server_name]


def peers_spec(selected: dict[str, str]) -> Object:
    """Of the headless Service that names the pods with TLS, ready or not."""
    port = {"name": "https", "port": contract.TLS_PORT, "targetPort": contract.TLS_PORT, "protocol": "TCP"}
    return {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selected | {contract.TLS_LABEL: "true"},
        "ports": [port],
    }


def endpoints(pool: str, namespace: str, *, all_have_it: bool) -> tuple[str, ...]:
    """Where a gateway finds the pool's sidecars; one that the first source names is not taken from the second."""
    secure = contract.tls_peers_url(pool, namespace)
    return (secure,) if all_have_it else (secure, contract.peers_url(pool, namespace))


def prefill_endpoints(pool: str, namespace: str, *, all_have_it: bool) -> tuple[str, ...]:
    """As `endpoints`, for the pods that compute prompts."""
    secure = contract.tls_prefill_url(pool, namespace)
    return (secure,) if all_have_it else (secure, contract.prefill_url(pool, namespace))
