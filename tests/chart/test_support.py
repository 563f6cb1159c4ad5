"""docs/support.md names the releases that the tests really run on."""

import re
from pathlib import Path

import pytest

from chart.programs import ROOT
from cluster import engine_install, tools
from tidepool_operator.pool import engine_flags

PAGE = " ".join((ROOT / "docs" / "support.md").read_text().split())


def required(folder: Path, module: str) -> str:
    """A module's version by a folder's go.mod, without the v."""
    return tools.module_versions((folder / "go.mod").read_text())[module].lstrip("v")


def prometheus() -> str:
    """Its module v0.316.0 is release 3.16.0."""
    _, minor, patch = required(tools.PROMETHEUS, "github.com/prometheus/prometheus").split(".")
    return f"{minor[0]}.{int(minor[1:])}.{patch}"


@pytest.mark.parametrize(
    ("said", "runs"),
    [
        (r"Helm (\S+) is tested", required(tools.KUBERNETES, "helm.sh/helm/v3")),
        (r"Prometheus \S+ and (\S+) are tested", prometheus()),
        (
            r"containerd (\S+) is tested",
            required(tools.KUBERNETES / "containerd", "github.com/containerd/containerd/v2"),
        ),
        (r"\| ([\d.]+) \| everything: its own server on the CPU", engine_install.VLLM.partition("==")[2]),
        (r"held against the table of ([\d.]+) to warn", engine_flags.VERSION),
    ],
)
def test_a_release_that_is_said_to_be_tested_is_the_one_that_the_tests_run(said: str, runs: str) -> None:
    found = re.search(said, PAGE)

    assert found is not None
    assert f"{runs}.".startswith(f"{found[1]}.")


def test_the_engine_whose_flags_are_known_is_the_one_that_is_run() -> None:
    assert engine_install.VLLM.partition("==")[2].startswith(f"{engine_flags.VERSION}.")
