"""What goes wrong, and when: a script that gives the same faults for the same requests in the same order."""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

_PATH: Final = re.compile(
    r"/(api|apis/[^/]+)/v[^/]+"
    r"(/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<resource>[^/]+)(/(?P<name>[^/]+))?(/(?P<subresource>.+))?"
)


class Verb(StrEnum):
    """What a request does."""

    GET = "get"
    LIST = "list"
    WATCH = "watch"
    CREATE = "create"
    APPLY = "apply"
    PATCH = "patch"
    DELETE = "delete"


WRITES: Final = frozenset({Verb.CREATE, Verb.APPLY, Verb.PATCH, Verb.DELETE})
READS: Final = frozenset({Verb.GET, Verb.LIST})


@dataclass(slots=True)
class Asked:
    """One request: what it is about, when it came (monotonic seconds), the fault that it met, and its answer (0:
    none, or none yet)."""

    verb: Verb
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    dry_run: bool = False
    at: float = field(default_factory=time.monotonic)
    fault: str = ""
    status: int = 0

    @property
    def writes(self) -> bool:
        """Whether it changes something when it is carried out."""
        return self.verb in WRITES and not self.dry_run


def asked(method: str, path: str, query: Mapping[str, str], content_type: str) -> Asked:
    """A request in the API server's own words."""
    found = _PATH.fullmatch(path)
    parts = found.groupdict(default="") if found else {"resource": path, "namespace": "", "name": ""}
    verbs = {"POST": Verb.CREATE, "DELETE": Verb.DELETE, "PUT": Verb.PATCH, "PATCH": Verb.PATCH}
    verb = verbs.get(method) or (Verb.GET if parts["name"] else Verb.LIST)
    if verb is Verb.PATCH and "apply-patch" in content_type:
        verb = Verb.APPLY
    if query.get("watch") in ("true", "1"):
        verb = Verb.WATCH
    subresource = parts.get("subresource", "")
    return Asked(verb, parts["resource"], parts["namespace"], parts["name"], subresource, "dryRun" in query)


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answered in the API server's stead."""

    status: int
    retry_after: str = ""


@dataclass(frozen=True, slots=True)
class Hang:
    """Taken, and never answered."""


@dataclass(frozen=True, slots=True)
class Lose:
    """Carried out; the connection breaks before the answer."""


@dataclass(frozen=True, slots=True)
class Break:
    """The connection breaks before anything is done."""


@dataclass(frozen=True, slots=True)
class Slow:
    """Answered rightly, so much later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Mute:
    """A watch that stays open and tells nothing more after `events`."""

    events: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """A watch that breaks after `events`."""

    events: int = 0


@dataclass(frozen=True, slots=True)
class Expire:
    """A watch that ends after `events` with an error event, as of a version that is too old."""

    events: int = 0
    code: int = 410


Fault = Refuse | Hang | Lose | Break | Slow | Mute | Cut | Expire


@dataclass
class Rule:
    """Who meets a fault: requests of `verbs` about `resource`, `name` and `subresource`, where given.

    A name may end in `*`. `times` of them meet it, after the first `skip`; `met` is set when one has.
    """

    fault: Fault
    verbs: frozenset[Verb] = WRITES
    resource: str = ""
    name: str = ""
    subresource: str | None = None
    times: int = 1
    skip: int = 0
    dry_run: bool = False
    met: asyncio.Event = field(default_factory=asyncio.Event)

    def takes(self, one: Asked) -> bool:
        """Whether this request meets it; counts."""
        if self.times <= 0 or not self._fits(one):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True

    def _fits(self, one: Asked) -> bool:
        if one.verb not in self.verbs or self.resource not in ("", one.resource) or one.dry_run != self.dry_run:
            return False
        if self.subresource is not None and self.subresource != one.subresource:
            return False
        return one.name.startswith(self.name[:-1]) if self.name.endswith("*") else self.name in ("", one.name)
