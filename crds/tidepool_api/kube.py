"""What a model says to the API server beyond its shape: CEL rules and list types."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

VALIDATIONS: Final = "x-kubernetes-validations"
INT_OR_STRING: Final = "x-kubernetes-int-or-string"
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
RULE_BROKEN: Final = "rule_broken"

T = TypeVar("T")


class Document(BaseModel):
    """camelCase outside, snake_case inside; frozen, so that a snapshot can be shared."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, in CEL for the API server and in Python for whoever reads a spec elsewhere.

    `cel` and `holds` are true for what is accepted; `message` names the remedy; `expression` (CEL) and `words` say
    the same with the values at hand, texts alone: Kubernetes 1.29 can neither format numbers nor bound the cost of
    their text; `field` is the path, relative to the rule's place, that is to blame.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool]
    field: str = ""
    expression: str = ""
    words: Callable[[Any], str] | None = None
    reason: str = ""

    def schema(self) -> dict[str, Any]:
        """The entry of x-kubernetes-validations."""
        optional = {"messageExpression": self.expression, "fieldPath": self.field, "reason": self.reason}
        return {"rule": self.cel, "message": self.message} | {key: text for key, text in optional.items() if text}

    def check(self, value: T) -> T:
        """Returns the value; raises PydanticCustomError of type RULE_BROKEN where the rule does not hold."""
        if self.holds(value):
            return value
        message = self.words(value) if self.words else self.message
        raise PydanticCustomError(RULE_BROKEN, "{message}", {"message": message, "field": self.field})


class Ruled(Document):
    """A document that obeys rules across its fields."""

    RULES: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _obey(self) -> Self:
        for rule in self.RULES:
            rule.check(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler.resolve_ref_schema(handler(core_schema))
        if cls.RULES:
            found |= validations(cls.RULES)
        return found


def validations(rules: Iterable[Rule]) -> dict[str, Any]:
    """Schema extra that carries the rules."""
    return {VALIDATIONS: [rule.schema() for rule in rules]}


def map_list(key: str) -> dict[str, Any]:
    """Schema extra of a list whose items are told apart by one of their fields."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def unique(key: str = "") -> AfterValidator:
    """Refuses a list that has two entries of the same value, or of the same `key` attribute.

    The API server does so by the list's type; this is for whoever reads a spec elsewhere.
    """

    def check(entries: tuple[T, ...]) -> tuple[T, ...]:
        values = [getattr(entry, key) if key else entry for entry in entries]
        twice = next((value for index, value in enumerate(values) if value in values[:index]), None)
        if twice is not None:
            raise PydanticCustomError(
                RULE_BROKEN, "{message}", {"message": f"has {twice!r} twice; take one out", "field": ""}
            )
        return entries

    return AfterValidator(check)


SET_LIST: Final[dict[str, Any]] = {"x-kubernetes-list-type": "set"}
ATOMIC_LIST: Final[dict[str, Any]] = {"x-kubernetes-list-type": "atomic"}


def matching(pattern: str, message: str) -> Rule:
    """The rule of a string that must match a pattern (RE2 and Python alike) as a whole."""
    compiled = re.compile(pattern)
    return Rule(f"self.matches(r'{pattern}')", message, holds=lambda text: compiled.fullmatch(text) is not None)


def patterned(pattern: str, *rules: Rule) -> dict[str, Any]:
    """Schema extra of a string with a pattern, and of the rules that say in words what is wrong with it."""
    return {"pattern": pattern} | validations(rules)


OBJECT_NAME: Final = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
OBJECT_NAME_RULE: Final = matching(
    OBJECT_NAME, "is not the name of an object; use lower case letters, digits, hyphens and dots"
)
LABEL_NAME: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
LABEL_NAME_RULE: Final = matching(LABEL_NAME, "is not a name; use lower case letters, digits and hyphens")

ObjectName = Annotated[
    str,
    Field(min_length=1, max_length=253, json_schema_extra=patterned(OBJECT_NAME, OBJECT_NAME_RULE)),
    AfterValidator(OBJECT_NAME_RULE.check),
]
LabelName = Annotated[
    str,
    Field(min_length=1, max_length=63, json_schema_extra=patterned(LABEL_NAME, LABEL_NAME_RULE)),
    AfterValidator(LABEL_NAME_RULE.check),
]
ShortText = Annotated[str, Field(max_length=253)]
LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]

# Any JSON object, kept as written.
FreeObject = Annotated[dict[str, Any], Field(json_schema_extra={PRESERVE: True})]
