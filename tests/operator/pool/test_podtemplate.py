"""podTemplate: a strategic merge, by the rules that a pod's lists have."""

import pytest

from tidepool_operator.pool.model import Object
from tidepool_operator.pool.podtemplate import merge_template

BASE: Object = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "serviceAccountName": "llama",
        "tolerations": [{"key": "gpu"}],
        "initContainers": [{"name": "router", "image": "r", "resources": {"requests": {"cpu": "100m"}}}],
        "containers": [
            {
                "name": "engine",
                "image": "e",
                "args": ["--model=m"],
                "env": [{"name": "HOME", "value": "/tmp"}, {"name": "T", "valueFrom": {"x": 1}}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    },
}


@pytest.mark.parametrize(
    ("patch", "path", "expected", "why"),
    [
        ({"metadata": {"labels": {"b": "2"}}}, "metadata.labels", {"a": "1", "b": "2"}, "maps are merged"),
        ({"spec": {"serviceAccountName": None}}, "spec.serviceAccountName", None, "null takes away"),
        (
            {"spec": {"containers": [{"name": "engine", "command": ["x"]}]}},
            "spec.containers.0.image",
            "e",
            "a container is merged by its name",
        ),
        (
            {"spec": {"containers": [{"name": "log", "image": "l"}]}},
            "spec.containers.1",
            {"name": "log", "image": "l"},
            "a container with a name of its own is added",
        ),
        (
            {"spec": {"containers": [{"name": "engine", "args": ["--x"]}]}},
            "spec.containers.0.args",
            ["--x"],
            "plain lists are replaced",
        ),
        (
            {"spec": {"containers": [{"name": "engine", "env": [{"name": "T", "value": "t"}]}]}},
            "spec.containers.0.env.1",
            {"name": "T", "value": "t"},
            "a variable has one source: the earlier one goes",
        ),
        (
            {"spec": {"volumes": [{"name": "tmp", "hostPath": {"path": "/x"}}]}},
            "spec.volumes.0",
            {"name": "tmp", "hostPath": {"path": "/x"}},
            "a volume has one source: the earlier one goes",
        ),
        (
            {"spec": {"tolerations": [{"key": "own"}]}},
            "spec.tolerations",
            [{"key": "gpu"}, {"key": "own"}],
            "what the spec asks for stays",
        ),
        (
            {"spec": {"containers": [{"name": "router", "resources": {"limits": {"cpu": "1"}}}]}},
            "spec.initContainers.0.resources",
            {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}},
            "the router is found where people look for it",
        ),
        (
            {"spec": {"containers": [{"name": "engine", "volumeMounts": [{"mountPath": "/tmp", "name": "big"}]}]}},
            "spec.containers.0.volumeMounts",
            [{"name": "big", "mountPath": "/tmp"}],
            "mounts are told apart by their path",
        ),
        (
            {"spec": {"volumes": [{"name": "tmp", "$patch": "delete"}]}},
            "spec.volumes",
            [],
            "an entry can be taken away",
        ),
        (
            {"spec": {"containers": [{"name": "engine", "$patch": "replace", "image": "x"}]}},
            "spec.containers.0",
            {"name": "engine", "image": "x"},
            "an entry can be replaced",
        ),
    ],
)
def test_merge(patch: Object, path: str, expected: object, why: str) -> None:
    found: object = merge_template(BASE, patch)
    for step in path.split("."):
        if isinstance(found, list):
            found = found[int(step)]
        else:
            assert isinstance(found, dict)
            found = found.get(step)

    assert found == expected, why


def test_neither_argument_is_changed() -> None:
    patch = {"spec": {"containers": [{"name": "router", "image": "mine"}]}}
    merge_template(BASE, patch)

    assert BASE["spec"]["initContainers"][0]["image"] == "r"
    assert patch == {"spec": {"containers": [{"name": "router", "image": "mine"}]}}
