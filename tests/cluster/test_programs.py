"""What decides where built programs lie, and what they say of themselves."""

import os
import time
from pathlib import Path

import pytest

from cluster import tools
from cluster.errors import ToolsError
from cluster.paths import REPOSITORY

GO_MOD = """\
// a comment
module example

require (
	helm.sh/helm/v3 v3.22.0
	k8s.io/kubernetes v1.36.3
	golang.org/x/mod v0.30.0 // indirect
)

require github.com/prometheus/prometheus v0.316.0

replace (
	k8s.io/api => k8s.io/api v0.36.3
)
"""
FOLDER = Path("/modules")


def _tool(**changes: object) -> tools.Tool:
    values: dict[str, object] = {
        "name": "kubectl",
        "package": "k8s.io/kubernetes/cmd/kubectl",
        "module": "k8s.io/kubernetes",
        "stamps": ("version.gitVersion={version}",),
        "folder": FOLDER,
    }
    return tools.Tool(**(values | changes))  # type: ignore[arg-type]


def _key(go_mod: str = GO_MOD, go_sum: str = "sums", **changes: object) -> str:
    return tools.cache_key({FOLDER: (go_mod, go_sum)}, [_tool(**changes)])


def test_versions_are_read_from_every_form_of_require() -> None:
    assert tools.module_versions(GO_MOD) == {
        "helm.sh/helm/v3": "v3.22.0",
        "k8s.io/kubernetes": "v1.36.3",
        "golang.org/x/mod": "v0.30.0",
        "github.com/prometheus/prometheus": "v0.316.0",
    }


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (_key(GO_MOD.replace("v1.36.3", "v1.36.4")), "another version is another program"),
        (_key(go_sum="other sums"), "the same version with another content is another program"),
        (_key(stamps=("version.gitVersion=x{version}",)), "it would report something else"),
        (_key(tags=("remove_all_sd",)), "other tags compile other files"),
    ],
)
def test_what_changes_the_programs_changes_the_folder(key: str, why: str) -> None:
    assert key != _key(), why


def test_a_comment_does_not_make_everybody_build_again() -> None:
    assert _key(GO_MOD.replace("// a comment", "// another comment")) == _key()


def test_kubernetes_reports_its_release_or_clients_complain() -> None:
    flags = tools.ldflags(
        _tool(stamps=("v.gitVersion={version}", "v.gitMinor={minor}")), tools.module_versions(GO_MOD)
    )
    assert flags == "-s -w -X v.gitVersion=v1.36.3 -X v.gitMinor=36"


def test_prometheus_reports_its_release_and_not_its_module_version() -> None:
    tool = _tool(module="github.com/prometheus/prometheus", stamps=("v={prometheus}",))
    assert tools.ldflags(tool, tools.module_versions(GO_MOD)).endswith("-X v=3.16.0")


def test_every_tool_is_required_by_its_module() -> None:
    for tool in tools.TOOLS:
        go_mod = (tool.folder / "go.mod").read_text()
        assert f"\t{tool.package}\n" in go_mod, f"{tool.name} is missing from the tools of {tool.folder}"
        assert tools.ldflags(tool, tools.module_versions(go_mod))


def test_the_oldest_kubernetes_is_the_one_that_the_chart_allows_and_the_docs_name_both() -> None:
    versions = {
        name: tools.module_versions((folder / "go.mod").read_text())["k8s.io/kubernetes"].lstrip("v")
        for name, folder in tools.RELEASES.items()
    }
    chart = (REPOSITORY / "charts/tidepool/Chart.yaml").read_text()
    page = (REPOSITORY / "docs/support.md").read_text()

    assert f'kubeVersion: ">={versions["oldest"].rpartition(".")[0]}.0-0"' in chart
    assert all(f"({version})" in page for version in versions.values())


@pytest.mark.parametrize("release", ["newest", "oldest"])
def test_every_release_has_all_programs_of_kubernetes(release: str) -> None:
    go_mod = (tools.RELEASES[release] / "go.mod").read_text()
    for tool in tools.TOOLS:
        if tool.module == "k8s.io/kubernetes":
            assert f"\t{tool.package}\n" in go_mod


def test_a_release_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tools.RELEASE_VARIABLE, "1.12")
    with pytest.raises(ToolsError, match=r"TIDEPOOL_KUBERNETES=1\.12: there are newest, oldest"):
        tools.release()


def test_an_unknown_tool_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ToolsError, match="no such tool: kubectx; there are: etcd"):
        tools.build(["kubectx"])


def test_tools_of_other_locks_go_two_weeks_after_their_last_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tools, "cache_dir", lambda: tmp_path)
    sets = tmp_path / "tools"
    present = tools.bin_dir()
    present.mkdir(parents=True)
    (present / "helm").touch()
    day = 86_400
    for name, days in (("old", 15), ("recent", 13), (present.parent.name, 100)):
        (sets / name).mkdir(exist_ok=True)
        at = time.time() - days * day
        os.utime(sets / name, (at, at))

    assert tools.tool_path("helm") == present / "helm"

    assert {path.name for path in sets.iterdir()} == {"recent", present.parent.name}
    assert f"{sets / 'old'}, which nothing has used for 14 days" in capsys.readouterr().err
    assert time.time() - present.parent.stat().st_mtime < day  # it is marked as used, for other checkouts
