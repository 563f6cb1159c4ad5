"""Helm, the chart as it renders, and a real API server to hold it against."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from chart.programs import CHART, NAMESPACE, RELEASE, Program, Render, Rendered, sets
from cluster import tools
from cluster.apiserver import ControlPlane

# libyaml's, which is ten times as fast: the CRDs are long.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Program:
    home = tmp_path_factory.mktemp("helm")
    # Nothing of the user's own helm: no repositories, no plugins.
    flags = (f"--registry-config={home}/registry", f"--repository-config={home}/repositories")
    return Program(tools.tool_path("helm"), (*flags, f"--repository-cache={home}/cache"))


@pytest.fixture(scope="session")
def render(helm: Program) -> Render:
    """`render({"gateway.replicas": 3})`: the chart with these values, by their dotted names."""
    texts: dict[tuple[str, ...], str] = {}

    def rendered(values: dict[str, Any] | None = None, *, release: str = RELEASE) -> Rendered:
        key = (release, *sets(values or {}))
        if key not in texts:
            texts[key] = helm("template", release, str(CHART), "-n", NAMESPACE, *key[1:])
        return Rendered(tuple(item for item in yaml.load_all(texts[key], _Loader) if item))

    return rendered


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        yield plane


@pytest.fixture(scope="session")
def kubectl(control_plane: ControlPlane) -> Program:
    return Program(tools.tool_path("kubectl"), (f"--kubeconfig={control_plane.kubeconfig}",))
