"""The programs of the cluster, built from the Go modules in go/ into the user's cache.

The cache folder's name is a hash of all that decides the result, so a second
clone finds what the first one built, and a changed version never meets an old
binary.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.console import run_logged, say
from cluster.errors import CommandFailed, ToolsError
from cluster.locks import exclusive
from cluster.paths import cache_dir

# Apart, because they need different versions of the same libraries.
KUBERNETES = Path(__file__).resolve().parent / "go"
CONTAINERD = KUBERNETES / "containerd"
PROMETHEUS = KUBERNETES / "prometheus"
KWOK = KUBERNETES / "kwok"
# Kubernetes itself is of the newest release that builds here, or of the oldest that is supported.
RELEASES = {"newest": KUBERNETES, "oldest": KUBERNETES / "oldest"}
RELEASE_VARIABLE = "TIDEPOOL_KUBERNETES"
# Sets of tools of other locks are kept so long after their last use.
_KEPT_DAYS = 14


@dataclass(frozen=True)
class Tool:
    """One program: its Go package, the module whose version it reports, the folder of the go.mod."""

    name: str
    package: str
    module: str
    stamps: tuple[str, ...] = ()
    folder: Path = KUBERNETES
    tags: tuple[str, ...] = ()


_KUBERNETES_STAMPS = tuple(
    f"{variable_package}.{field}"
    for variable_package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    for field in ("gitVersion={version}", "gitMajor={major}", "gitMinor={minor}", "gitTreeState=clean")
)


def release() -> str:
    """Which Kubernetes the environment asks for. Raises ToolsError on one that there is not."""
    name = os.environ.get(RELEASE_VARIABLE) or "newest"
    if name not in RELEASES:
        raise ToolsError(f"{RELEASE_VARIABLE}={name}: there are {', '.join(RELEASES)}")
    return name


def _kubernetes(name: str) -> Tool:
    folder = RELEASES[release()]
    return Tool(name, f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes", _KUBERNETES_STAMPS, folder)


def _containerd(name: str) -> Tool:
    module = "github.com/containerd/containerd/v2"
    stamps = (f"{module}/version.Version={{version}}",)
    return Tool(name, f"{module}/cmd/{name}", module, stamps, CONTAINERD)


def _prometheus(name: str) -> Tool:
    module = "github.com/prometheus/prometheus"
    stamps = ("github.com/prometheus/common/version.Version={prometheus}",)
    # Of some thirty ways to discover targets this one alone; the others bring every cloud's library.
    tags = ("remove_all_sd", "enable_kubernetes_sd")
    return Tool(name, f"{module}/cmd/{name}", module, stamps, PROMETHEUS, tags)


_KWOK_CONSTS = "sigs.k8s.io/kwok/pkg/consts"

# In the order in which others want them: a bare API server and helm before the nodes.
TOOLS: tuple[Tool, ...] = (
    Tool("etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
    _kubernetes("kube-apiserver"),
    Tool(
        "helm",
        "helm.sh/helm/v3/cmd/helm",
        "helm.sh/helm/v3",
        (
            "helm.sh/helm/v3/internal/version.version={version}",
            "helm.sh/helm/v3/internal/version.gitTreeState=clean",
            # What `helm template` takes for the cluster's version when it is not connected to one.
            "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor={kubernetes_major}",
            "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor={kubernetes_minor}",
            "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor={kubernetes_major}",
            "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor={kubernetes_minor}",
        ),
    ),
    _kubernetes("kubectl"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubelet"),
    _kubernetes("kube-proxy"),
    _containerd("containerd"),
    _containerd("containerd-shim-runc-v2"),
    _containerd("ctr"),
    Tool("coredns", "github.com/coredns/coredns", "github.com/coredns/coredns"),
    _prometheus("prometheus"),
    _prometheus("promtool"),
)

# A set of its own: built by those who measure with thousands of pods, and no reason to build the others anew.
PAPER: tuple[Tool, ...] = (
    Tool("kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok", (f"{_KWOK_CONSTS}.Version={{version}}",), KWOK),
)


def module_versions(go_mod: str) -> dict[str, str]:
    """Module path to version, from the `require` lines of a go.mod."""
    found = re.findall(r"^\s*(?:require )?([\w./~-]+) (v[\w.+-]+)(?: // indirect)?\s*$", go_mod, re.M)
    return dict(found)


def ldflags(tool: Tool, versions: dict[str, str]) -> str:
    """Linker flags: no symbol table, and the version that the program reports of itself."""
    version = versions[tool.module]
    major, minor, patch = version.lstrip("v").split("-")[0].split(".")
    kubernetes = versions.get("k8s.io/kubernetes", "v0.0").lstrip("v").split(".")
    values = {
        "version": version,
        "major": major,
        "minor": minor,
        "kubernetes_major": kubernetes[0],
        "kubernetes_minor": kubernetes[1],
        # The Go module v0.316.0 is the release 3.16.0 (Prometheus' RELEASE.md).
        "prometheus": f"{minor[0]}.{minor[1:].lstrip('0') or '0'}.{patch}",
    }
    return " ".join(["-s", "-w", *(f"-X {stamp.format(**values)}" for stamp in tool.stamps)])


def cache_key(modules: Mapping[Path, tuple[str, str]], tools: Iterable[Tool] = TOOLS) -> str:
    """A short hash of all that decides the result: (go.mod, go.sum) of each module and the build flags.

    Comments of a go.mod do not count.
    """
    digest = hashlib.sha256()
    for tool in tools:
        go_mod, go_sum = modules[tool.folder]
        lines = [line for line in go_mod.splitlines() if not line.strip().startswith("//")]
        for part in (tool.package, *tool.tags, ldflags(tool, module_versions(go_mod)), *lines, go_sum):
            digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _modules(tools: Iterable[Tool]) -> dict[Path, tuple[str, str]]:
    folders = {tool.folder for tool in tools}
    return {folder: ((folder / "go.mod").read_text(), (folder / "go.sum").read_text()) for folder in folders}


def bin_dir(tools: Sequence[Tool] = TOOLS) -> Path:
    """The folder that holds (or will hold) the programs of this set."""
    return cache_dir() / "tools" / cache_key(_modules(tools), tools) / "bin"


def tool_path(name: str) -> Path:
    """The program's path; it is built first when it is not there. Raises ToolsError."""
    build([name])
    return bin_dir() / name


def build(names: Iterable[str] = (), tools: Sequence[Tool] = TOOLS) -> Path:
    """Build what is missing of the named programs (all of the set without names) and return their folder.

    A killed build leaves nothing half-made: each program is renamed into place
    when it is whole. Two builders take turns, program by program.
    Raises ToolsError on an unknown name, a missing Go, or a failed build.
    """
    wanted = _select(list(names), tools)
    folder = bin_dir(tools)
    if folder.is_dir():
        os.utime(folder.parent)  # used now
        for old in unused(folder.parent.parent, folder.parent.name, time.time()):
            say(f"tools: removing {old}, which nothing has used for {_KEPT_DAYS} days")
            shutil.rmtree(old, ignore_errors=True)
    missing = [tool for tool in wanted if not (folder / tool.name).exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        go = _go()
        for number, tool in enumerate(missing, 1):
            with exclusive(folder.parent / "lock", "programs"):
                if not (folder / tool.name).exists():
                    _build_one(go, tool, folder, f"{number}/{len(missing)}")
    return folder


def unused(sets: Path, present: str, now: float) -> list[Path]:
    """Sets of tools that nothing has used for two weeks; never the present lock's. `now` in seconds of the epoch.

    Other checkouts share the folder, and each marks its own set when it uses it.
    """
    others = [path for path in sorted(sets.iterdir()) if path.is_dir() and path.name != present]
    return [path for path in others if now - path.stat().st_mtime > _KEPT_DAYS * 86_400]


def _select(names: list[str], tools: Sequence[Tool]) -> list[Tool]:
    by_name = {tool.name: tool for tool in tools}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise ToolsError(f"no such tool: {', '.join(unknown)}; there are: {', '.join(by_name)}")
    return [by_name[name] for name in names] or list(tools)


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        raise ToolsError("Go is not installed: put go 1.21 or newer on PATH (it fetches the version it needs)")
    return go


def _build_one(go: str, tool: Tool, folder: Path, position: str) -> None:
    versions = module_versions((tool.folder / "go.mod").read_text())
    partial = folder / f".{tool.name}.{os.getpid()}"
    command = [go, "build", "-v", "-trimpath", "-buildvcs=false", f"-tags={','.join(tool.tags)}"]
    command += ["-ldflags", ldflags(tool, versions), "-o", str(partial), tool.package]
    label = f"build {tool.name} {versions[tool.module]} ({position})"
    try:
        run_logged(
            label,
            command,
            cwd=tool.folder,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"},
            log=folder.parent / "build.log",
            # `-v` names each package on a line of its own; a complaint has spaces.
            telling=lambda line: " " in line.strip(),
        )
        partial.rename(folder / tool.name)
    except CommandFailed as error:
        raise ToolsError(f"{error}\nRun the command again to resume; what is built stays.") from error
    finally:
        partial.unlink(missing_ok=True)


def kubernetes_version() -> tuple[int, int]:
    """Major and minor of the Kubernetes that is built."""
    versions = module_versions((RELEASES[release()] / "go.mod").read_text())
    major, minor, *_ = versions["k8s.io/kubernetes"].lstrip("v").split(".")
    return int(major), int(minor)
