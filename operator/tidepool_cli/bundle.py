"""`tidepool diagnose POOL`: what support needs of a pool, in one file, without secrets or prompts."""

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from tidepool_cli import explain, redact
from tidepool_cli.errors import CliError
from tidepool_cli.kubectl import Cluster, Object
from tidepool_cli.tables import Paint

_LOG_LINES: Final = 400
_MOST_PODS: Final = 10
_LABEL: Final = "tidepool.dev/pool"
_NODE_FIELDS: Final = ("capacity", "allocatable", "conditions", "nodeInfo")

Tell = Callable[[str], None]


def collect(cluster: Cluster, name: str, now: datetime, tell: Tell) -> dict[str, str]:
    """File name to content, all of it redacted. What cannot be had is told in its place, and the rest goes on.

    Raises CliError where the pool itself cannot be read.
    """
    pool = cluster.get("modelpools.tidepool.dev", name)
    files: dict[str, str] = {}

    def take(file: str, get: Callable[[], Any]) -> Any:  # noqa: ANN401 - what a file is made of
        tell(file)
        try:
            found = get()
        except CliError as error:
            files[f"{file}.missing.txt"] = redact.text(f"{error}\n")
            return []
        files[file] = found if isinstance(found, str) else _json(found)
        return found

    take("pool.json", lambda: pool)
    selector = f"{_LABEL}={name}"
    pods = take("pods.json", lambda: cluster.list("pods", selector=selector))
    take("deployments.json", lambda: cluster.list("deployments", selector=selector))
    take("jobs.json", lambda: cluster.list("jobs", selector=selector))
    events = take("events.json", lambda: _events(cluster, name, pods))
    take("nodes.json", lambda: [_node(each) for each in cluster.list("nodes")])
    for pod in _worst_first(pods)[:_MOST_PODS]:
        for container, previous in _containers(pod):
            of = pod["metadata"]["name"]
            file = f"logs/{of}/{container}{'.previous' if previous else ''}.log"
            take(file, partial(_log, cluster, of, container, previous=previous))
    told = explain.text(explain.view(pool, pods, events), now, Paint(on=False))
    files["explain.txt"] = redact.text(told) + "\n"
    return files


def write(files: Mapping[str, str], path: Path, folder: str, now: datetime) -> None:
    """A .tar.gz readable by its owner alone. Raises CliError where it cannot be written."""
    try:
        with path.open("xb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
            path.chmod(0o600)
            for name, content in sorted(files.items()):
                data = content.encode()
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(now.timestamp()), 0o600
                archive.addfile(entry, io.BytesIO(data))
    except FileExistsError:
        raise CliError(f"{path} is there already; choose another name with --file") from None
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}; choose another place with --file") from error


def _json(found: object) -> str:
    return json.dumps(redact.document(found), indent=1, sort_keys=True) + "\n"


def _events(cluster: Cluster, name: str, pods: list[Object]) -> list[Object]:
    names = {name, *(pod["metadata"]["name"] for pod in pods)}
    return [each for each in cluster.list("events") if (each.get("involvedObject") or {}).get("name") in names]


def _log(cluster: Cluster, pod: str, container: str, *, previous: bool) -> str:
    return redact.log(cluster.logs(pod, container, _LOG_LINES, previous=previous))


def _node(node: Object) -> Object:
    """Its size and state; labels and addresses are the owner's affair."""
    status = node.get("status") or {}
    return {
        "name": node["metadata"]["name"],
        "taints": (node.get("spec") or {}).get("taints", []),
        **{field: status.get(field) for field in _NODE_FIELDS},
    }


def _worst_first(pods: list[Object]) -> list[Object]:
    def restarts(pod: Object) -> int:
        return sum(
            each.get("restartCount", 0) for each in (pod.get("status") or {}).get("containerStatuses") or []
        )

    return sorted(pods, key=lambda pod: (-restarts(pod), pod["metadata"]["name"]))


def _containers(pod: Object) -> list[tuple[str, bool]]:
    """Names, and again with True for those that ran before."""
    status = pod.get("status") or {}
    seen = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return [
        (each["name"], previous)
        for each in seen
        for previous in (False, True)
        if not previous or each.get("restartCount", 0)
    ]
