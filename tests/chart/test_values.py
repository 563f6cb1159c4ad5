"""The schema of the values: complete, strict, and plain about what it refuses."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from chart.programs import CHART, Program, sets

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref") or next((one["$ref"] for one in schema.get("allOf", []) if "$ref" in one), "")
    return _resolved(SCHEMA["definitions"][reference.rsplit("/", 1)[1]]) if reference else schema


def _paths(values: dict[str, Any], schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """(dotted name, whether the schema knows it) of every value, down to objects of free form."""
    known = _resolved(schema).get("properties")
    for name, value in values.items() if known is not None else ():
        yield f"{prefix}{name}", name in known
        if isinstance(value, dict) and name in known:
            yield from _paths(value, known[name], f"{prefix}{name}.")


def _objects(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        if "properties" in schema:
            yield path, schema
        for name, inner in schema.items():
            yield from _objects(inner, f"{path}/{name}")


def test_every_value_of_the_chart_is_in_the_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    found = dict(_paths(values, SCHEMA))

    assert len(found) > 50
    assert [path for path, known in found.items() if not known] == []


def test_every_value_of_the_schema_is_in_the_chart() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def unknown(schema: dict[str, Any], here: Any, prefix: str) -> Iterator[str]:
        for name, inner in _resolved(schema).get("properties", {}).items():
            if name not in here:
                yield f"{prefix}{name}"
            elif isinstance(here[name], dict) and "additionalProperties" in _resolved(inner):
                yield from unknown(inner, here[name], f"{prefix}{name}.")

    # What helm itself adds, and what Kubernetes lets one leave out of resources.
    left_out = {path for path in unknown(SCHEMA, values, "") if not path.endswith((".claims", ".requests"))}
    assert left_out == {"global"}


def test_every_object_of_the_schema_refuses_names_that_it_does_not_know() -> None:
    free = {path for path, schema in _objects(SCHEMA) if schema.get("additionalProperties") is not False}

    # An environment variable is the container's, with all that Kubernetes allows there.
    assert free == {path for path in free if path.endswith("/extraEnv/items")}


@pytest.mark.apiserver  # helm is built first
@pytest.mark.parametrize(
    ("values", "words", "reason"),
    [
        ({"operator.replica": 2}, ["/operator", "'replica' not allowed"], "a misspelt value"),
        ({"gateways": {}}, ["'gateways' not allowed"], "a misspelt section"),
        ({"gateway.replicas": 0}, ["/gateway/replicas", "minimum"], "no gateway: that is gateway.enabled"),
        ({"gateway.replicas": "2"}, ["/gateway/replicas", "want integer"], "a number in quotes"),
        (
            {"prometheus.url": "prometheus:9090"},
            ["/prometheus/url", "does not match"],
            "an address without scheme",
        ),
        (
            {"gateway.service.type": "Cluster"},
            ["/gateway/service/type", "'LoadBalancer'"],
            "a type that does not exist",
        ),
        ({"router.image.repository": ""}, ["/router/image/repository"], "no image"),
        (
            {"router.image.repository": "Example/Router"},
            ["/router/image/repository"],
            "upper case in an image's name",
        ),
        ({"watchNamespaces": "team-a"}, ["/watchNamespaces", "want array"], "one namespace, not in a list"),
        (
            {"watchNamespaces": ["a", "a"]},
            ["/watchNamespaces", "equal"],
            "a namespace twice: two Roles of one name",
        ),
        ({"watchNamespaces": ["Team A"]}, ["/watchNamespaces/0"], "no name of a namespace"),
        ({"podMonitor.interval": "15"}, ["/podMonitor/interval"], "a duration without unit"),
        ({"router.image.pullPolicy": "always"}, ["/router/image/pullPolicy", "'Always'"], "lower case"),
        ({"test.timeoutSeconds": 0}, ["/test/timeoutSeconds", "minimum"], "a test that cannot pass"),
    ],
)
def test_refused_by_name(helm: Program, values: dict[str, Any], words: list[str], reason: str) -> None:
    done = helm.run("template", "demo", str(CHART), *sets(values))

    assert done.returncode != 0, reason
    assert [word for word in words if word not in done.stderr] == [], done.stderr
