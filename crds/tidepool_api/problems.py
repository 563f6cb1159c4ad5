"""Why a spec cannot be served, in words: each problem names the field and the remedy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tidepool_api.kube import RULE_BROKEN
from tidepool_api.metadata import Metadata
from tidepool_api.modelpool import ModelPool, ModelPoolSpec
from tidepool_api.not_yet import MODELPOOL_NOT_YET
from tidepool_api.workflow import AgentWorkflowSpec
from tidepool_api.workflow_run import AgentWorkflowRunSpec


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: the field's path from the object's root, and what is wrong and what to do."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


# By pydantic's type of error; what is not here keeps pydantic's words.
_WORDS: Final[Mapping[str, str]] = {
    "missing": "is required; set it",
    "greater_than_equal": "must be at least {ge}; raise it",
    "less_than_equal": "must be at most {le}; lower it",
    "string_too_short": "must have at least {min_length} characters; lengthen it",
    "string_too_long": "must have at most {max_length} characters; shorten it",
    "too_long": "may have at most {max_length} entries; remove some",
    "too_short": "needs at least {min_length} entries; add some",
    "enum": "must be one of {expected}",
    "literal_error": "must be one of {expected}",
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
}


def problems(spec: Mapping[str, Any], name: str = "") -> list[Problem]:
    """What is wrong with the spec of a ModelPool; empty when it can be served. `name` is judged where given.

    Fields that no part serves yet are problems too; unknown fields are not, see `unknown_fields`.
    """
    found = [Problem(f"spec.{entry.path}", entry.message) for entry in MODELPOOL_NOT_YET if entry.used_in(spec)]
    try:
        parsed = ModelPoolSpec.model_validate(spec)
    except ValidationError as error:
        return [*found, *of_error("spec", error)]
    if name:
        pool = ModelPool(metadata=Metadata(name=name), spec=parsed)
        found += [
            Problem(rule.field.removeprefix("."), rule.message) for rule in pool.RULES if not rule.holds(pool)
        ]
    return found


def workflow_problems(spec: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the spec of an AgentWorkflow, as far as its shape goes."""
    try:
        AgentWorkflowSpec.model_validate(spec)
    except ValidationError as error:
        return of_error("spec", error)
    return []


def run_problems(spec: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the spec of an AgentWorkflowRun."""
    try:
        AgentWorkflowRunSpec.model_validate(spec)
    except ValidationError as error:
        return of_error("spec", error)
    return []


def of_error(root: str, error: ValidationError) -> list[Problem]:
    """The problems that pydantic found in what stands at `root`."""
    return [_problem(root, details) for details in error.errors(include_url=False)]


def unknown_fields(kind: type[BaseModel], value: object, root: str = "spec") -> list[str]:
    """Paths in plain data of fields that the model does not have, to warn of: a newer or a mistyped field."""
    return list(_unknown(kind, value, root))


def _problem(root: str, error: ErrorDetails) -> Problem:
    context = error.get("ctx", {})
    field = _path(root, error["loc"])
    if error["type"] == RULE_BROKEN:
        return Problem(field + context["field"], context["message"])
    words = _WORDS.get(error["type"])
    return Problem(field, words.format(**context) if words else error["msg"])


def _path(root: str, parts: Sequence[int | str]) -> str:
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _unknown(annotation: object, value: object, path: str) -> Iterator[str]:
    model = _model_of(annotation)
    if model is None:
        return
    if isinstance(value, Mapping):
        fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
        for key, inner in value.items():
            if key in fields:
                yield from _unknown(fields[key], inner, f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, inner in enumerate(value):
            yield from _unknown(model, inner, f"{path}[{index}]")


def _model_of(annotation: object) -> type[BaseModel] | None:
    """The model that an annotation such as `tuple[Variant, ...] | None` is about."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_of(part))), None)
