"""`make demo CONTEXT=...` on a cluster that was there before: ours, seen only through a kubeconfig's context."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from scenarios.stage import ROOT
from scenarios.world import SYSTEM_NAMESPACE, World

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(900)]


def test_the_demo_runs_on_a_cluster_that_the_user_has(world: World, tmp_path: Path) -> None:
    pool = tmp_path / "pool.yaml"
    pool.write_text(json.dumps(world.pool))
    images = world.kube.run(
        *("get", "deployments", "-n", SYSTEM_NAMESPACE, "-o", "jsonpath={..containers[*].image}")
    ).split()
    tags = {image.rpartition(":")[0].rpartition("/tidepool-")[2]: image.rpartition(":")[2] for image in images}
    context = world.kube.run("config", "current-context").strip()
    environment = {
        **os.environ,
        "KUBECONFIG": world.kube.kubeconfig or "",
        "KUBECTL": world.kube.kubectl,
        "HELM": world.helm,
    }

    done = subprocess.run(
        [
            *("make", "demo", f"CONTEXT={context}", "IMAGES=localhost", f"POOL={pool}"),
            f"TAG={','.join(f'{part}={tag}' for part, tag in tags.items())}",
            f"PROMETHEUS={world.prometheus_url}",
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "requests failed: 0" in done.stdout
    world.kube.run("delete", "modelpool", world.name, "-n", world.namespace, "--timeout=60s")
