"""What an API server's audit log says of who wrote what. Pure."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# Reads are left out, and requests are told once they are answered.
POLICY: Final = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  verbs: [get, list, watch]
- level: Metadata
"""


@dataclass(frozen=True, slots=True)
class Write:
    """One request that may have changed something."""

    agent: str
    verb: str
    resource: str  # with its subresource, as in pods/status
    name: str
    dry_run: bool
    code: int

    def by(self, agents: Sequence[str]) -> bool:
        """Whether one of these (parts of names) did it."""
        return any(agent in self.agent for agent in agents)


def whole(text: bytes) -> bytes:
    """Without a last line that is still being written, whatever of it has come."""
    return text[: text.rfind(b"\n") + 1]


def writes(lines: Iterable[str]) -> Iterator[Write]:
    """The requests of an audit log, in its order."""
    for line in lines:
        entry = json.loads(line)
        about = entry.get("objectRef") or {}
        resource = "/".join(filter(None, (about.get("resource", ""), about.get("subresource", ""))))
        yield Write(
            agent=entry.get("userAgent", ""),
            verb=entry["verb"],
            resource=resource,
            name=about.get("name", ""),
            dry_run="dryRun=" in entry.get("requestURI", ""),
            code=int((entry.get("responseStatus") or {}).get("code", 0)),
        )


def by_kind(found: Iterable[Write], agents: Sequence[str]) -> dict[str, int]:
    """How often these agents wrote what: "patch modelpools/status" and the like."""
    return dict(Counter(f"{one.verb} {one.resource}" for one in found if one.by(agents) and not one.dry_run))
