"""A day of an operator's work: what users and kubelets do, and what the API server's audit log says was asked."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chart.programs import NAMESPACE, Object
from chart.running import Cluster
from tidepool_api import contract

Power = tuple[str, str, str]  # group, resource (with its subresource), verb


@dataclass
class Day:
    """The cluster in which it is spent, and the log of what was asked there."""

    cluster: Cluster
    log: Path
    team: str

    def requests(self) -> Iterator[Object]:
        """Entries of the audit log."""
        for line in self.log.read_text().splitlines():
            if line.endswith("}"):
                yield json.loads(line)

    def used(self, *, at_home: bool) -> set[Power]:
        """Powers by the requests, in the operator's own namespace or anywhere else."""
        found: set[Power] = set()
        for entry in self.requests():
            about = entry.get("objectRef") or {}
            if "resource" not in about or (about.get("namespace") == NAMESPACE) is not at_home:
                continue
            resource = "/".join(filter(None, (about["resource"], about.get("subresource", ""))))
            group = about.get("apiGroup", "")
            found.add((group, resource, entry["verb"]))
            if entry["verb"] == "patch" and (entry.get("responseStatus") or {}).get("code") == 201:
                found.add((group, resource, "create"))  # an apply of what was not there needs both
        return found

    def refused(self) -> list[str]:
        """What it was not allowed to ask."""
        codes = (403, 401)
        return [
            f"{entry['verb']} {entry['requestURI']}"
            for entry in self.requests()
            if (entry.get("responseStatus") or {}).get("code") in codes
        ]

    def apply(self, *items: Object) -> None:
        """As a user does."""
        for item in items:
            self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(item))

    def edit(self, pool: str, **spec: Any) -> None:
        """A merge patch of a pool's spec."""
        patch = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "mp", pool, "-n", self.team, "--type=merge", f"--patch={patch}")

    def items(self, kind: str, pool: str) -> list[Object]:
        """A pool's objects of a kind."""
        found = self.cluster.get(kind, "-n", self.team, "-l", f"{contract.POOL_LABEL}={pool}") or {"items": []}
        items: list[Object] = found["items"]
        return items

    def has(self, what: str, kind: str, pool: str, holds: Callable[[list[Object]], Any]) -> list[Object]:
        """Wait for the pool's objects of a kind to be so."""
        found: list[Object] = []

        def look() -> bool:
            found[:] = self.items(kind, pool)
            return bool(holds(found))

        self.cluster.wait(what, look)
        return found

    def status(self, kind: str, name: str, namespace: str, status: Object) -> None:
        """What a kubelet says."""
        patch = json.dumps({"status": status})
        where = ("-n", namespace, "--subresource=status", "--type=merge", f"--patch={patch}")
        self.cluster.kubectl("patch", kind, name, *where)
