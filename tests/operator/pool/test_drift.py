"""Which live objects must be applied again."""

from copy import deepcopy

import pytest

from tidepool_operator.pool.drift import differs, stamped
from tidepool_operator.pool.model import Object

DESIRED = stamped(
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "a", "labels": {"x": "1"}},
        "spec": {
            "replicas": 2,
            "paused": False,
            "template": {
                "spec": {
                    "containers": [
                        {"name": "engine", "args": ["a", "b"], "resources": {"limits": {"cpu": "1000m"}}}
                    ],
                    "nodeSelector": {},
                }
            },
        },
    }
)


def live(change: str = "", value: object = None) -> Object:
    made = deepcopy(DESIRED)
    made["metadata"] |= {"uid": "u", "resourceVersion": "5"}
    container = made["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["limits"]["cpu"] = "1"
    container["imagePullPolicy"] = "Always"
    del made["spec"]["template"]["spec"]["nodeSelector"]
    del made["spec"]["paused"]
    at: Object = {"root": made}
    *path, last = ["root", *change.split(".")] if change else ["root"]
    found: object = at
    for step in path:
        found = found[int(step)] if isinstance(found, list) else found[step]  # type: ignore[index]
    if change:
        if isinstance(found, list):
            found.append(value)
        else:
            found[last] = value  # type: ignore[index]
    return made


@pytest.mark.parametrize(
    ("change", "value", "expected", "why"),
    [
        ("", None, False, "defaults, other spellings and dropped empty fields are no drift"),
        ("spec.replicas", 7, False, "counts are scaled apart"),
        ("metadata.labels", {"x": "1", "y": "2"}, False, "foreign labels are left alone"),
        ("metadata.labels", {"x": "2"}, True, "an edited label is put back"),
        ("metadata.annotations", {}, True, "without our stamp, fields may be there that we no longer ask for"),
        ("spec.template.spec.containers.0.args", ["a"], True, "edited arguments are put back"),
        ("spec.template.spec.containers.+", {"name": "other"}, False, "a foreign container is left alone"),
        ("spec.template.spec.containers", [], True, "a removed container is put back"),
        ("spec.template.spec.containers.0.resources", {"limits": {"cpu": "2"}}, True, "another quantity"),
    ],
)
def test_differs(change: str, value: object, expected: bool, why: str) -> None:
    assert differs(DESIRED, live(change, value)) is expected, why


def test_what_is_missing_is_applied() -> None:
    assert differs(DESIRED, None)


def test_a_field_that_is_no_longer_asked_for_is_applied_away() -> None:
    less = deepcopy(DESIRED)
    del less["metadata"]["annotations"], less["metadata"]["labels"]

    assert differs(stamped(less), live())


@pytest.mark.parametrize(
    ("selector", "expected", "why"),
    [
        ({"pool": "llama"}, False, "as it was applied"),
        (
            {"pool": "llama", "mine": "1"},
            True,
            "one more entry selects other pods, or none: it is no foreign field",
        ),
        ({}, True, "without it the Service leads nowhere"),
    ],
)
def test_a_selector_is_one_whole(selector: Object, expected: bool, why: str) -> None:
    def service(selects: Object) -> Object:
        return {"kind": "Service", "metadata": {"name": "llama"}, "spec": {"selector": selects}}

    assert differs(service({"pool": "llama"}), service(selector)) is expected, why
