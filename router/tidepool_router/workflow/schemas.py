"""What is wrong with a value by a JSON Schema, and whether finding that out may take long. PURE.

A schema is its author's, and the value its client's or a model's. References lead nowhere but into the schema
itself: the library's own default would fetch them, from any address or file.
"""

from collections.abc import Mapping
from typing import Any, Final

import jsonschema
import referencing

_MOST_SHOWN: Final = 300
# Words whose work grows faster than schema times value: a pattern may backtrack, a reference may come again and
# again, items are compared with each other.
_HEAVY: Final = frozenset(
    (
        "$ref",
        "$dynamicRef",
        "pattern",
        "patternProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    )
)
# Parts of the schema times parts of the value; some five microseconds each.
_MOST_WORK: Final = 2_000
_NOTHING_ELSE: Final[referencing.Registry[Any]] = referencing.Registry()


def is_light(schema: Mapping[str, Any], value: object) -> bool:
    """Whether it is so little work that it cannot matter to others."""
    parts = _parts(schema, _MOST_WORK, _HEAVY)
    return parts is not None and _parts(value, _MOST_WORK // parts) is not None


def wrong(schema: Mapping[str, Any], value: object, name: str) -> str | None:
    """What is wrong with the value, and where; None: nothing."""
    try:
        checked = jsonschema.Draft202012Validator(schema, registry=_NOTHING_ELSE)
        error = next(iter(checked.iter_errors(value)), None)
    except jsonschema.exceptions._WrappedReferencingError as broken:  # noqa: SLF001
        return f"cannot be checked against its schema, which refers to {broken.ref[:100]!r}: there is no such part"
    except Exception as broken:  # what the review of a workflow let through, and the library does not like
        return f"cannot be checked against its schema: {type(broken).__name__}"
    if error is None:
        return None
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    return f"{name}{place}: {error.message[:_MOST_SHOWN]}"


def _parts(value: object, most: int, without: frozenset[str] = frozenset()) -> int | None:
    """Members and items at any depth, and itself; None: more than `most`, or there is a member of those names."""
    found = 1
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            if not without.isdisjoint(one):
                return None
            inside = list(one.values())
        elif isinstance(one, list | tuple):
            inside = list(one)
        else:
            continue
        found += len(inside)
        if found > most:
            return None
        waiting += inside
    return found
