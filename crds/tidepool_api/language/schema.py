"""A light check of the JSON Schemas in a workflow: the words that people get wrong, not the whole standard.

Words it does not know are left to whoever validates against the schema, as JSON Schema asks.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tidepool_api.language.problems import Problem, Reason, near_miss

TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
MAX_DEPTH: Final = 16

_SCHEMAS_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS: Final = ("items", "additionalProperties", "not", "contains", "if", "then", "else", "propertyNames")
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_REFERENCES: Final = ("$ref", "$dynamicRef")
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def check(schema: object, path: str, depth: int = 0) -> Iterator[Problem]:
    """Problems of one schema and of those inside it."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        yield _problem(path, "is no JSON Schema: write an object, such as {type: object, properties: {...}}")
    elif depth > MAX_DEPTH:
        yield _problem(path, f"is nested deeper than {MAX_DEPTH}; flatten it")
    else:
        yield from _own(schema, path)
        for inner_path, inner in _inside(schema, path):
            yield from check(inner, inner_path, depth + 1)


def closed_properties(schema: object) -> frozenset[str] | None:
    """Names of the properties, where the schema lists them and does not say that there are others."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        return None
    if schema.get("additionalProperties", False) is not False or "patternProperties" in schema or "$ref" in schema:
        return None
    return frozenset(map(str, schema["properties"]))


def _own(schema: Mapping[str, Any], path: str) -> Iterator[Problem]:
    yield from _types(schema, path)
    yield from _required(schema, path)
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        yield _problem(f"{path}.enum", "must be a list with at least one value")
    for word in (*_COUNTS, *_NUMBERS):
        wanted = int if word in _COUNTS else int | float
        value = schema.get(word, 1)
        if isinstance(value, bool) or not isinstance(value, wanted) or (word in _COUNTS and value < 0):
            yield _problem(
                f"{path}.{word}", f"must be a {'count' if word in _COUNTS else 'number'}, not {value!r}"
            )
    for word in _REFERENCES:
        place = schema.get(word, "#")
        if not isinstance(place, str) or not place.startswith("#"):
            remedy = "write what it refers to under $defs, and refer to #/$defs/NAME"
            yield _problem(f"{path}.{word}", f"{place!r} leads out of the schema, where nobody goes; {remedy}")
    pattern = schema.get("pattern", "")
    if not isinstance(pattern, str) or not _compiles(pattern):
        yield _problem(f"{path}.pattern", f"{pattern!r} is no regular expression")


def _types(schema: Mapping[str, Any], path: str) -> Iterator[Problem]:
    declared = schema.get("type", [])
    for name in declared if isinstance(declared, list) else [declared]:
        if name not in TYPES:
            hint = near_miss(str(name), TYPES) or f"; there are {', '.join(TYPES)}"
            yield _problem(f"{path}.type", f"{name!r} is no JSON type{hint}")


def _required(schema: Mapping[str, Any], path: str) -> Iterator[Problem]:
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        yield _problem(f"{path}.required", "must be a list of property names")
        return
    known = closed_properties(schema)
    if known is None:
        return
    for name in required:
        if name not in known:
            yield _problem(f"{path}.required", f"{name!r} is not among the properties{near_miss(name, known)}")


def _inside(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, object]]:
    for word in _SCHEMAS:
        if word in schema:
            yield f"{path}.{word}", schema[word]
    for word in _SCHEMA_LISTS:
        inner = schema.get(word, [])
        for index, one in enumerate(inner if isinstance(inner, list) else [inner]):
            yield f"{path}.{word}[{index}]", one
    for word in _SCHEMAS_BY_NAME:
        named = schema.get(word, {})
        # Anything but a mapping is reported as if it were one broken schema.
        for name, one in named.items() if isinstance(named, Mapping) else [("", named)]:
            yield f"{path}.{word}.{name}".rstrip("."), one


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _problem(path: str, message: str) -> Problem:
    return Problem(path, message, Reason.INVALID_SCHEMA)
