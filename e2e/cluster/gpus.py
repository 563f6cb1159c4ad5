"""Offers GPUs on nodes that have none: `python3 -m cluster.gpus KUBECONFIG` runs beside the control plane.

kubelet clears resources that it does not manage when it starts again, so the
capacity is looked at every second and written when it is not there.
"""

import json
import ssl
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from cluster.configs import GPU_RESOURCE, gpu_patch
from cluster.layout import GPUS_PER_NODE, NODES

_INTERVAL_SECONDS = 1.0


def lacking(nodes: list[dict[str, Any]]) -> list[str]:
    """Names of our nodes whose capacity does not show the GPUs."""
    wanted = str(GPUS_PER_NODE)
    return [
        node["metadata"]["name"]
        for node in nodes
        if node["metadata"]["name"] in NODES
        and node.get("status", {}).get("capacity", {}).get(GPU_RESOURCE) != wanted
    ]


def _request(access: dict[str, Any], path: str, body: str | None = None) -> Any:
    server = access["clusters"][0]["cluster"]
    request = urllib.request.Request(
        server["server"] + path,
        data=body.encode() if body else None,
        method="PATCH" if body else "GET",
        headers={
            "Authorization": f"Bearer {access['users'][0]['user']['token']}",
            "Content-Type": "application/json-patch+json",
        },
    )
    context = ssl.create_default_context(cafile=server["certificate-authority"])
    with urllib.request.urlopen(request, timeout=5, context=context) as answer:
        return json.load(answer)


def main(kubeconfig: Path) -> None:
    """Watch over the nodes until ended."""
    access = json.loads(kubeconfig.read_text())
    while True:
        try:
            for name in lacking(_request(access, "/api/v1/nodes")["items"]):
                _request(access, f"/api/v1/nodes/{name}/status", gpu_patch())
                print(f"{name}: {GPUS_PER_NODE} GPUs offered", flush=True)
        except OSError as error:
            # The API server may be starting again; the next round asks it anew.
            print(f"the API server does not answer: {error}", flush=True)
        time.sleep(_INTERVAL_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
