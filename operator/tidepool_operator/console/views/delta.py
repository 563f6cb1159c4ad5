"""What changed between two states of a view, so that only that is sent."""

from collections.abc import Mapping
from typing import Any

# Sections by name. Of a section that is a mapping its members are sent one by one, any other as a whole.
Document = Mapping[str, Any]


def whole(document: Document) -> dict[str, Any]:
    """A change that makes the document from nothing."""
    return {"all": document}


def change(before: Document, after: Document) -> dict[str, Any] | None:
    """What makes `after` from `before`: sections to `set`, members to `put` and to take `out`; None: nothing."""
    found: dict[str, Any] = {}
    for name, section in after.items():
        old = before.get(name)
        if not isinstance(section, Mapping) or not isinstance(old, Mapping):
            if old != section or name not in before:
                found.setdefault("set", {})[name] = section
            continue
        put = {key: value for key, value in section.items() if key not in old or old[key] != value}
        out = [key for key in old if key not in section]
        if put:
            found.setdefault("put", {})[name] = put
        if out:
            found.setdefault("out", {})[name] = out
    gone = [name for name in before if name not in after]
    if gone:
        found["gone"] = gone
    return found or None
