"""ModelPools that the scenarios apply on the project's own cluster."""

import copy
from pathlib import Path

from scenarios import programs
from scenarios.kube import Object

NAMESPACE = "demo"
ENGINE_IMAGE = "localhost/tidepool-engine-base:local"

# Four at a time: a handful of clients makes requests wait. Blocks of 128 tokens for eighty thousand: a few slow
# streams leave the KV cache nearly empty, so that a pool of two may shrink while they run.
ENGINE_ARGS = [
    "--enforce-eager",
    "--max-num-seqs=4",
    "--num-gpu-blocks-override=640",
]

# The engine and its model come on a read-only claim (`python -m cluster engine-volume`).
ENGINE_FOLDER = "/opt/engine"
POD_TEMPLATE: Object = {
    "spec": {
        "containers": [
            {
                "name": "engine",
                "command": [f"{ENGINE_FOLDER}/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server"],
                "env": [
                    {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
                    {"name": "HF_HUB_OFFLINE", "value": "1"},
                ],
                "volumeMounts": [{"name": "tidepool-engine", "mountPath": ENGINE_FOLDER, "readOnly": True}],
            }
        ],
        "volumes": [
            {
                "name": "tidepool-engine",
                "persistentVolumeClaim": {"claimName": "tidepool-engine", "readOnly": True},
            }
        ],
    }
}


def cpu_pool(name: str = "tiny", namespace: str = NAMESPACE, **spec: object) -> Object:
    """A pool of real vLLM on the CPU; `spec` replaces top-level fields of the spec."""
    return {
        "apiVersion": "tidepool.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {
                "uri": f"file://{ENGINE_FOLDER}/model",
                "name": f"{name}-llama",
                "aliases": [f"{name}-chat"],
            },
            "engine": {
                "image": ENGINE_IMAGE,
                "maxModelLen": 16384,
                "args": ENGINE_ARGS,
                "env": [
                    {"name": "VLLM_CPU_KVCACHE_SPACE", "value": "1"},
                    {"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"},
                    {"name": "OMP_NUM_THREADS", "value": "1"},
                ],
            },
            "accelerator": {"resource": "nvidia.com/gpu", "count": 1},
            "scaling": {
                "minReplicas": 0,
                "maxReplicas": 2,
                "idleAfter": "20s",
                "behavior": {"scaleDown": {"stabilizationWindow": "15s"}},
                # A life in minutes: what was a moment ago is not expected again.
                "prediction": {"enabled": False},
            },
            "rollout": {"drainTimeout": "240s"},
            "podTemplate": copy.deepcopy(POD_TEMPLATE),
            **spec,
        },
    }


def with_engine(pool: Object, **engine: object) -> Object:
    """The pool with fields of spec.engine replaced."""
    changed = copy.deepcopy(pool)
    changed["spec"]["engine"].update(engine)
    return changed


# The engine double in place of vLLM, by the engine's own Python, from a ConfigMap of its source.
DOUBLE = "engine-double"
_FAKES = Path(__file__).resolve().parents[2] / "tests" / "fakes"
DOUBLE_FILES = {
    "engine_double.py": Path(__file__).with_name("engine_double.py"),
    **{
        f"fakes/{path.name}": path
        for path in sorted(_FAKES.glob("*.py"))
        if path.stem not in ("collector", "controlplane", "postgres", "prometheus", "readings", "stores")
        and not path.stem.startswith("test_")
    },
}


def double_pool(
    name: str, speed: dict[str, float], flags: tuple[str, ...] = (), namespace: str = NAMESPACE, **spec: object
) -> Object:
    """A pool of engine doubles; `speed` is their environment, `flags` are vLLM's. Needs `double_source`."""
    pool = cpu_pool(name, namespace, **spec)
    pool["spec"]["engine"]["args"] = list(flags)
    pool["spec"]["engine"]["env"] = [{"name": key, "value": str(value)} for key, value in speed.items()]
    container = pool["spec"]["podTemplate"]["spec"]["containers"][0]
    container["command"] = [f"{ENGINE_FOLDER}/venv/bin/python", f"{programs.FOLDER}/engine_double.py"]
    container["env"] = [
        {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
        {"name": "PYTHONPATH", "value": programs.FOLDER},
    ]
    container["volumeMounts"].append({"name": DOUBLE, "mountPath": programs.FOLDER, "readOnly": True})
    pool["spec"]["podTemplate"]["spec"]["volumes"].append(programs.volume(DOUBLE, DOUBLE_FILES))
    return pool


def double_source(namespace: str = NAMESPACE) -> Object:
    """What `double_pool` mounts."""
    return programs.source(DOUBLE, namespace, DOUBLE_FILES)
