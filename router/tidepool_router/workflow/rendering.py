"""Templates, rendered where they can do no harm.

Nearly all of them only read: `{{ steps.plan.text }}`, `{{ item | urlencode }}`. Those are looked up here, in
microseconds. Every other one is rendered in a child process with bounds of time, memory and output, which is
killed when it does not answer: what a template burns is its own, and others wait no longer than the time bound,
once. A template that was stopped is rendered in a second process from then on, where it waits for its like alone.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, nodes

from tidepool_api.language.templates import BrokenTemplateError, References, inspect, is_template
from tidepool_router.errors import RouterError
from tidepool_router.workflow.child import ChildFailed, Lanes
from tidepool_router.workflow.core.texts import as_text, exceeds, size_bytes

MAX_BYTES: Final = 1 << 20
# Beyond so many members and items a value is written by the child; what it may be sent for one template.
MAX_PARTS: Final = 20_000
MAX_SENT: Final = (8 << 20, 200_000)
SECONDS: Final = 0.5
_MOST_KEPT: Final = 2048

Values = Mapping[str, Any]
_FILTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "tojson": lambda value: json.dumps(value, ensure_ascii=False),
    "urlencode": lambda value: quote(as_text(value), safe="/", errors="replace"),
    "trim": lambda value: as_text(value).strip(),
}


class RenderError(RouterError):
    """A template came to nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """`parts`: texts and readers, or None where a child must render."""

    parts: "tuple[str | _Look, ...] | None"
    references: References | None


class Renderer:
    """Renders for all runs of a process; its children are started when they are first needed."""

    def __init__(self, seconds: float = SECONDS, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, _Prepared] = OrderedDict()
        self._lanes = Lanes("render_child", seconds, str(max_bytes))

    async def render(self, template: str, values: Values) -> str:
        """The text of a template. Raises RenderError."""
        prepared = self._prepared(template)
        if prepared.parts is None:
            return await self._in_child(template, values, prepared.references)
        found = [part if isinstance(part, str) else part.found(values) for part in prepared.parts]
        beyond = exceeds(found, self._max_bytes, MAX_PARTS)
        if beyond == "parts":
            return await self._in_child(template, values, prepared.references)
        text = "" if beyond else "".join(map(_told, prepared.parts, found))
        if beyond or size_bytes(text) > self._max_bytes:
            raise RenderError(f"comes out longer than {self._max_bytes} bytes")
        return text

    def beginning(self, template: str, values: Values) -> tuple[str, bool]:
        """As much of a template as can be told by now, and whether that is all of it; never by the child."""
        try:
            parts = self._prepared(template).parts
        except RenderError:
            parts = None
        if parts is None:
            return "", False
        told: list[str] = []
        for part in parts:
            try:
                found = part if isinstance(part, str) else part.found(values)
            except RenderError:
                return "".join(told), False
            if exceeds(found, self._max_bytes, MAX_PARTS):
                return "".join(told), False
            told.append(_told(part, found))
        return "".join(told), True

    async def value(self, template: str, values: Values) -> Any:  # noqa: ANN401 - JSON
        """What a template is that only looks something up, as it is there; of every other one its text.

        Raises RenderError.
        """
        prepared = self._prepared(template)
        only = prepared.parts[0] if prepared.parts is not None and len(prepared.parts) == 1 else ""
        if isinstance(only, str) or only.filters:
            return await self.render(template, values)
        found = only.found(values)
        if exceeds(found, self._max_bytes, MAX_SENT[1]):
            raise RenderError(f"comes out longer than {self._max_bytes} bytes")
        return found

    async def close(self) -> None:
        """End the children."""
        await self._lanes.close()

    def _prepared(self, template: str) -> _Prepared:
        found = self._kept.get(template)
        if found is None:
            found = self._kept[template] = _prepare(template)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(template)
        return found

    async def _in_child(self, template: str, values: Values, references: References | None) -> str:
        needed = _needed(values, references)
        if exceeds(needed, *MAX_SENT):
            raise RenderError("reads more than a template may; have the steps that it reads answer less")
        request = {"template": template, "values": needed}
        try:
            answer = await self._lanes.ask(template, request)
        except ChildFailed as error:
            raise RenderError(str(error)) from None
        if "error" in answer:
            raise RenderError(str(answer["error"]))
        return str(answer["text"])


def _needed(values: Values, references: References | None) -> dict[str, Any]:
    """Only what the template reads crosses to the child."""
    if references is None:
        return dict(values)
    found = {name: value for name, value in values.items() if name in references.roots}
    if "steps" in found and not references.whole_steps:
        found["steps"] = {name: found["steps"][name] for name in references.steps if name in found["steps"]}
    return found


_ENVIRONMENT: Final = Environment(autoescape=False)  # noqa: S701 - it parses, and prompts are no HTML


def _prepare(template: str) -> _Prepared:
    if not is_template(template) and "{#" not in template:
        return _Prepared((template,), None)
    try:
        references = inspect(template)
    except BrokenTemplateError as error:
        raise RenderError(str(error)) from error
    return _Prepared(_parts(_ENVIRONMENT.parse(template)), references)


def _parts(tree: nodes.Template) -> "tuple[str | _Look, ...] | None":
    parts: list[str | _Look] = []
    for statement in tree.body:
        if not isinstance(statement, nodes.Output):
            return None
        for node in statement.nodes:
            part = node.data if isinstance(node, nodes.TemplateData) else _look(node)
            if part is None:
                return None
            parts.append(part)
    return tuple(parts)


def _look(node: nodes.Node) -> "_Look | None":
    """A look-up, with a few filters; None for anything else."""
    if isinstance(node, nodes.Filter):
        apply = _FILTERS.get(node.name)
        inner = _look(node.node) if node.node is not None else None
        plain = not (node.args or node.kwargs or node.dyn_args or node.dyn_kwargs)
        if apply is None or inner is None or not plain:
            return None
        return _Look(inner.path, (*inner.filters, apply))
    path: list[str | int] = []
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        if isinstance(node, nodes.Getattr):
            path.append(node.attr)
        elif isinstance(node.arg, nodes.Const) and type(node.arg.value) in (str, int):
            path.append(node.arg.value)
        else:
            return None
        node = node.node
    if not isinstance(node, nodes.Name):
        return None
    path.append(node.name)
    return _Look(tuple(reversed(path)))


@dataclass(frozen=True, slots=True)
class _Look:
    """Reads members and items, of JSON alone."""

    path: tuple[str | int, ...]
    filters: tuple[Callable[[Any], Any], ...] = ()

    def found(self, values: Values) -> Any:  # noqa: ANN401 - JSON
        """What is there. Raises RenderError."""
        found: Any = values
        key: Any
        for depth, key in enumerate(self.path):
            try:
                found = None if isinstance(found, str) else found  # a text has no members
                found = found[key]
            except (KeyError, IndexError, TypeError):
                whole, here = (".".join(map(str, path)) for path in (self.path, self.path[: depth + 1]))
                raise RenderError(f"{whole} is read, and there is no {here}") from None
        return found


def _told(part: str | _Look, found: Any) -> str:  # noqa: ANN401 - JSON
    """A part of a template as text, `found` being what it looks up."""
    if isinstance(part, _Look):
        for apply in part.filters:
            found = apply(found)
    return as_text(found)
