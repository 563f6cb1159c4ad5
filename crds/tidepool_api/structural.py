"""The structural schema that Kubernetes wants, from a pydantic model: no references, every type and default."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from tidepool_api.kube import INT_OR_STRING, VALIDATIONS

# JSON Schema's words that a CRD may not contain, and those that say nothing to a user.
_DROPPED: Final = frozenset({"title", "propertyNames", "$defs", "const"})


class _WithDefaults(GenerateJsonSchema):
    """Writes out defaults that a factory makes, so that the API server stores them."""

    def get_default_value(self, schema: Any) -> Any:  # noqa: ANN401 - pydantic's own signature
        factory = schema.get("default_factory")
        value = factory() if factory else super().get_default_value(schema)
        # The fields of a nested document have defaults of their own.
        return {} if isinstance(value, BaseModel) else value


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Structural OpenAPI v3 schema of a model's JSON form. Raises ValueError for what no CRD can say."""
    schema = model.model_json_schema(by_alias=True, schema_generator=_WithDefaults)
    return _structural(schema, schema.get("$defs", {}))


def _structural(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    node = _inlined(node, definitions)
    result = {key: value for key, value in node.items() if key not in _DROPPED}
    if result.get("default", ...) is None:
        del result["default"]
    if "properties" in result:
        result["properties"] = {
            name: _structural(inner, definitions) for name, inner in result["properties"].items()
        }
        # In a structural schema the two exclude each other.
        result.pop("additionalProperties", None)
    elif isinstance(result.get("additionalProperties"), Mapping):
        result["additionalProperties"] = _structural(result["additionalProperties"], definitions)
    else:
        result.pop("additionalProperties", None)
    if "items" in result:
        result["items"] = _structural(result["items"], definitions)
    return _ordered(result)


def _inlined(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The node without $ref and anyOf; what stands beside a reference goes before what it refers to."""
    merged = dict(node)
    while "$ref" in merged or "anyOf" in merged:
        if "$ref" in merged:
            target = definitions[merged.pop("$ref").removeprefix("#/$defs/")]
        else:
            target = _only_choice(merged.pop("anyOf"), merged)
        rules = [*target.get(VALIDATIONS, []), *merged.get(VALIDATIONS, [])]
        merged = {**target, **merged} | ({VALIDATIONS: rules} if rules else {})
    return merged


def _only_choice(choices: list[Mapping[str, Any]], beside: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is left of a union: absent fields replace null, and a number or a text has a word of its own."""
    real = [choice for choice in choices if choice.get("type") != "null"]
    if beside.get(INT_OR_STRING):
        return {}
    if len(real) != 1:
        raise ValueError(f"a CRD cannot say that a field is one of {real}")
    return real[0]


def _ordered(node: dict[str, Any]) -> dict[str, Any]:
    first = [key for key in ("type", "description", "default", "enum") if key in node]
    last = [key for key in ("required", "properties", "items", "additionalProperties", VALIDATIONS) if key in node]
    middle = sorted(key for key in node if key not in {*first, *last})
    return {key: node[key] for key in [*first, *middle, *last]}
