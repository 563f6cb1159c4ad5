"""The spec of a workflow as the rules read it: leniently, so that a field of a newer release stops nobody.

What has the wrong type reads as absent here; the CRD's schema has refused it before, in the API server's words.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from tidepool_api.language import depends
from tidepool_api.workflow_steps import KINDS

# Fields of a kind that are taken as they stand; every other string of it, however deep, is a template.
_PLAIN: Final = frozenset({"pools", "among", "responseFormat", "method", "tool", "name"})


@dataclass(frozen=True)
class Step:
    """One step: `path` is its place in the resource, `raw` what the user wrote."""

    path: str
    raw: Mapping[str, Any]

    @cached_property
    def name(self) -> str:
        """Empty when it is missing or no string."""
        return text(self.raw, "name")

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Which of llm, http, mcp, workflow and choose are written."""
        return tuple(kind for kind in KINDS if self.raw.get(kind) is not None)

    @cached_property
    def pools(self) -> tuple[tuple[str, str], ...]:
        """(path, name) of every pool that the step may use."""
        found: list[tuple[str, str]] = []
        for kind in ("llm", "choose"):
            for index, pool in enumerate(sequence(mapping(self.raw, kind), "pools")):
                if isinstance(pool, Mapping):
                    found.append((f"{self.path}.{kind}.pools[{index}]", text(pool, "name")))
        return tuple(found)

    @cached_property
    def among(self) -> tuple[str, ...]:
        """Names that `choose` may pick."""
        return tuple(map(str, sequence(mapping(self.raw, "choose"), "among")))

    @cached_property
    def expression(self) -> depends.Expression | depends.DependsError | None:
        """`depends`, parsed; the error where it is none; None where the step waits for nothing."""
        written = text(self.raw, "depends")
        if not written.strip():
            return None
        try:
            return depends.parse(written)
        except depends.DependsError as error:
            return error

    @cached_property
    def needs(self) -> tuple[depends.Ended, ...]:
        """The step results that `depends` looks at; none when it does not parse."""
        expression = self.expression
        return () if expression is None or isinstance(expression, ValueError) else tuple(depends.ends(expression))

    @property
    def fans_out(self) -> bool:
        """Whether the step runs once per item."""
        return self.raw.get("withItems") is not None or self.raw.get("withParam") is not None

    def templates(self) -> Iterator[tuple[str, str]]:
        """(path, text) of everything that is rendered for this step."""
        for field in ("when", "withParam", "withItems"):
            yield from _strings(self.raw.get(field), f"{self.path}.{field}")
        for kind in self.kinds:
            for field, value in mapping(self.raw, kind).items():
                if field not in _PLAIN:
                    yield from _strings(value, f"{self.path}.{kind}.{field}")


@dataclass(frozen=True)
class Outline:
    """A workflow's spec with its steps, in the order of the resource."""

    spec: Mapping[str, Any]
    steps: tuple[Step, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Step]:
        """The first step of each name."""
        found: dict[str, Step] = {}
        for step in self.steps:
            if step.name:
                found.setdefault(step.name, step)
        return found

    @cached_property
    def choosers(self) -> Mapping[str, tuple[Step, ...]]:
        """For each step that runs only when it is picked: those that may pick it."""
        found: dict[str, tuple[Step, ...]] = {}
        for step in self.steps:
            for name in step.among:
                found[name] = (*found.get(name, ()), step)
        return found

    @cached_property
    def exit_step(self) -> str:
        """The name that `onExit` gives, or empty."""
        return text(self.spec, "onExit")

    @cached_property
    def depends_graph(self) -> Mapping[str, tuple[str, ...]]:
        """Step -> known steps that its `depends` names."""
        return {
            name: tuple(dict.fromkeys(end.step for end in step.needs if end.step in self.by_name))
            for name, step in self.by_name.items()
        }


def outline(spec: Mapping[str, Any]) -> Outline:
    """The outline of a spec as the API server stores it."""
    steps = enumerate(sequence(spec, "steps"))
    return Outline(spec, tuple(Step(f"spec.steps[{i}]", raw) for i, raw in steps if isinstance(raw, Mapping)))


def text(raw: Mapping[str, Any], key: str) -> str:
    """The string at `key`, or empty."""
    value = raw.get(key)
    return value if isinstance(value, str) else ""


def mapping(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object at `key`, or an empty one."""
    value = raw.get(key)
    return value if isinstance(value, Mapping) else {}


def sequence(raw: Mapping[str, Any], key: str) -> list[Any]:
    """The list at `key`, or an empty one."""
    value = raw.get(key)
    return value if isinstance(value, list) else []


def _strings(value: object, path: str) -> Iterator[tuple[str, str]]:
    waiting = [(path, value)]
    while waiting:
        here, found = waiting.pop()
        if isinstance(found, str):
            yield here, found
        elif isinstance(found, Mapping):
            waiting.extend(reversed([(f"{here}.{key}", item) for key, item in found.items()]))
        elif isinstance(found, list):
            waiting.extend(reversed([(f"{here}[{index}]", item) for index, item in enumerate(found)]))
