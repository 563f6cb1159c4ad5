"""An API server in the test's own process: what the operator's client asks of a real one, without sockets.

It keeps to the real one's rules as far as the operator relies on them: server-side apply takes away what its
manager does not ask for any more and leaves foreign fields alone, a write that changes nothing makes no new
version, generations follow the spec, deletes may name a uid and a version. What is done goes into `events`, as
watches tell it.
"""

import json
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from typing import Any, Final

from faults.script import Asked, Verb, asked
from tidepool_operator.cluster.clock import ServerClock
from tidepool_operator.cluster.kinds import EVENT, NODE, WATCHED, Kind, Object
from tidepool_operator.cluster.store import Key
from tidepool_operator.errors import Conflict, Invalid, NotFound
from tidepool_operator.pool.model import format_time

_KINDS: Final = {kind.plural: kind for kind in (*WATCHED, NODE)}
# +mapType=atomic, +structType=atomic.
_ATOMIC: Final = ("selector", "podSelector", "namespaceSelector", "nodeSelector", "labelSelector")
# Before and after a write is carried out; either may raise what the client would.
Hook = Callable[[Asked], None]


class ScriptedServer:
    """Stands for a Client. `refuses` says which objects the strict dry run does not let through."""

    def __init__(self, now: Callable[[], float], refuses: Callable[[Object], str] = lambda _: "") -> None:
        self.clock = ServerClock(now)
        self._now = now
        self._refuses = refuses
        self._version = 0
        self._applied: dict[tuple[Kind, Key], Object] = {}
        self.items: dict[Kind, dict[Key, Object]] = {kind: {} for kind in _KINDS.values()}
        self.events: list[tuple[Kind, Object, bool]] = []
        self.before: Hook = _nothing
        self.after: Hook = _nothing
        self.changes = 0

    # What the operator's Client has.

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Object:
        """As Client.request."""
        one = asked(method, path, query or {}, content_type)
        self.before(one)
        answer = self._answer(one, deepcopy(body))
        self.after(one)
        return deepcopy(answer)

    async def text(self, path: str, *, query: Mapping[str, str] | None = None) -> str:
        """Logs: no container has said anything."""
        return ""

    # What tests and controllers do.

    def get(self, kind: Kind, key: Key) -> Object | None:
        """The stored object itself."""
        return self.items[kind].get(key)

    def put(self, kind: Kind, item: Object) -> Object:
        """Store it, under a new version where it differs."""
        key = Key(item["metadata"].get("namespace", ""), item["metadata"]["name"])
        known = self.items[kind].get(key)
        metadata = item["metadata"]
        if known is not None:
            metadata["resourceVersion"] = known["metadata"]["resourceVersion"]
            if item == known:
                return known
            if item.get("spec") != known.get("spec"):
                metadata["generation"] = known["metadata"].get("generation", 0) + 1
        else:
            metadata.setdefault("uid", f"uid-{kind}-{key.name}-{self._version}")
            metadata.setdefault("creationTimestamp", format_time(self._now()))
            metadata.setdefault("generation", 1)
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        self.items[kind][key] = item
        self.events.append((kind, deepcopy(item), False))
        return item

    def remove(self, kind: Kind, key: Key) -> None:
        """It is gone."""
        item = self.items[kind].pop(key, None)
        if item is not None:
            self._applied.pop((kind, key), None)
            self._version += 1
            self.events.append((kind, deepcopy(item), True))

    def edit(self, kind: Kind, key: Key, change: Object) -> None:
        """A merge patch by somebody else."""
        self.put(kind, _merged(deepcopy(self.items[kind][key]), change))

    def _answer(self, one: Asked, body: Any) -> Object:
        if one.resource == EVENT.plural:
            return body or {"items": []}
        kind, key = _KINDS[one.resource], Key(one.namespace, one.name)
        known = self.items[kind].get(key)
        match one.verb:
            case Verb.LIST:
                return {"items": list(self.items[kind].values())}
            case Verb.CREATE:
                return self._write(kind, body)
            case Verb.APPLY:
                return self._apply(kind, key, body, dry_run=one.dry_run)
        if known is None:
            raise NotFound(f"{kind} {key} not found", status=404)
        if one.verb is Verb.DELETE:
            self._delete(kind, key, known, body or {})
        elif one.verb is Verb.PATCH:
            named = ("status",) if one.subresource == "status" else ("spec", "metadata")
            return self._write(
                kind, _merged(deepcopy(known), {part: body[part] for part in named if part in body})
            )
        return known

    def _delete(self, kind: Kind, key: Key, known: Object, options: Object) -> None:
        wanted = options.get("preconditions") or {}
        if any(known["metadata"][name] != value for name, value in wanted.items()):
            raise Conflict("the object is another one, or has changed", status=409)
        self.changes += 1
        self.remove(kind, key)

    def _write(self, kind: Kind, item: Object) -> Object:
        before = self._version
        stored = self.put(kind, item)
        self.changes += self._version != before
        return {"apiVersion": kind.api_version, "kind": kind.kind, **stored}

    def _apply(self, kind: Kind, key: Key, body: Object, *, dry_run: bool) -> Object:
        words = self._refuses(body)
        if words:
            raise Invalid(words, status=422)
        known = self.items[kind].get(key)
        item = _merged(
            _without(deepcopy(known or {}), self._applied.get((kind, key), {}), body), body, whole=_ATOMIC
        )
        if dry_run:
            return item
        self._applied[kind, key] = deepcopy(body)
        return self._write(kind, item)


def _merged(live: Any, change: Any, whole: Collection[str] = ()) -> Any:
    """RFC 7396: what is set to None goes. Maps named in `whole` are taken over as they are."""
    if not isinstance(change, dict):
        return change
    result = dict(live) if isinstance(live, dict) else {}
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = value if name in whole else _merged(result.get(name), value, whole)
    return result


def _without(live: Any, earlier: Any, now: Any) -> Any:
    """`live` without the fields that were asked for earlier and are not now."""
    if not isinstance(live, dict) or not isinstance(earlier, dict):
        return live
    wanted = now if isinstance(now, dict) else {}
    kept = {}
    for name, value in live.items():
        if name in earlier and name not in wanted:
            continue
        kept[name] = _without(value, earlier.get(name), wanted.get(name))
    return kept


def _nothing(_: Asked) -> None:
    """No fault."""


def dump(server: ScriptedServer) -> str:
    """All that is stored, for a failed test."""
    return json.dumps([item for items in server.items.values() for item in items.values()], indent=1)
