"""Operators of other releases: what they make around an engine, and of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tidepool_operator.pool.model import Object
from tidepool_operator.pool.pod import pod_template

# Of a pod template, before podTemplate is merged in; it is changed in place.
Change = Callable[[Object], None]


@contextmanager
def made_by(change: Change) -> Iterator[None]:
    """In this block the operator is of a release whose pods are changed so."""

    def changed(*given: Any, **named: Any) -> Object:
        made = pod_template(*given, **named)
        change(made)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidepool_operator.pool.render.pod_template", changed)
        yield


def named(entries: list[Any], name: str) -> Any:
    """The entry of a list with this name; one that nobody has where there is none."""
    return next((entry for entry in entries if entry["name"] == name), {})


def _router(template: Object) -> Object:
    found: Object = named(template["spec"]["initContainers"], "router")
    return found


def _engine(template: Object) -> Object:
    found: Object = named(template["spec"]["containers"], "engine")
    return found


def an_argument(template: Object) -> None:
    _router(template)["args"].append("--of-a-release-to-come")


def a_volume(template: Object) -> None:
    template["spec"]["volumes"].append({"name": "spool", "emptyDir": {}})
    _router(template)["volumeMounts"].append({"name": "spool", "mountPath": "/spool"})


def a_volume_less(template: Object) -> None:
    spec, router = template["spec"], _router(template)
    spec["volumes"] = [one for one in spec["volumes"] if one["name"] != "bodies"]
    router["volumeMounts"] = [one for one in router["volumeMounts"] if one["name"] != "bodies"]


def a_mount_less(template: Object) -> None:
    """The volume is still there, and nobody mounts it."""
    router = _router(template)
    router["volumeMounts"] = [one for one in router["volumeMounts"] if one["name"] != "bodies"]


def a_mount_of_the_engines(template: Object) -> None:
    _router(template)["volumeMounts"].append({"name": "tmp", "mountPath": "/tmp"})


def a_larger_volume(template: Object) -> None:
    named(template["spec"]["volumes"], "bodies")["emptyDir"]["sizeLimit"] = "1Gi"


def a_probe(template: Object) -> None:
    _router(template)["livenessProbe"]["periodSeconds"] = 7
    _router(template)["readinessProbe"] = {"tcpSocket": {"port": 8080}}


def a_limit(template: Object) -> None:
    _router(template)["resources"]["limits"]["memory"] = "2Gi"


def an_image(template: Object) -> None:
    for container in template["spec"]["initContainers"]:
        container["image"] = "tidepool-router:next"


def a_variable_and_a_port(template: Object) -> None:
    _router(template)["env"].append({"name": "LOG_LEVEL", "value": "info"})
    _router(template)["ports"].append({"name": "more", "containerPort": 8090})


def another_loader(template: Object) -> None:
    loader = named(template["spec"]["initContainers"], "loader")
    loader |= {"args": ["fetch", "--all"], "resources": {}, "env": [{"name": "THREADS", "value": "8"}]}
    loader.setdefault("volumeMounts", []).append({"name": "parts", "mountPath": "/parts"})
    template["spec"]["volumes"].append({"name": "parts", "emptyDir": {}})


def another_scrape(template: Object) -> None:
    template["metadata"]["annotations"]["prometheus.io/port"] = "9090"


# What a release may change, and no engine is restarted for it.
AROUND_THE_ENGINE: Final[dict[str, Change]] = {
    change.__name__: change
    for change in (
        an_argument,
        a_volume,
        a_volume_less,
        a_mount_less,
        a_mount_of_the_engines,
        a_larger_volume,
        a_probe,
        a_limit,
        an_image,
        a_variable_and_a_port,
        another_loader,
        another_scrape,
    )
}

# What no release should change without a word in CHANGELOG.md: every engine is restarted for it, with care.
OF_THE_ENGINE: Final[dict[str, Change]] = {
    "an argument": lambda made: _engine(made)["args"].append("--new"),
    "a variable": lambda made: _engine(made)["env"].append({"name": "NEW", "value": "1"}),
    "a probe": lambda made: _engine(made)["startupProbe"].update(periodSeconds=9),
    "a mount": lambda made: _engine(made)["volumeMounts"].append({"name": "proof", "mountPath": "/proof"}),
    "a volume that it mounts": lambda made: named(made["spec"]["volumes"], "shm").update(emptyDir={}),
    "a label": lambda made: made["metadata"]["labels"].update(new="1"),
    "a container of another name": lambda made: made["spec"]["initContainers"].append({"name": "new"}),
    "how long it may take to go": lambda made: made["spec"].update(terminationGracePeriodSeconds=60),
}
