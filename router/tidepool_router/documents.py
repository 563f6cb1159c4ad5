"""YAML or JSON that people write: parsed, and what is wrong named by its line and path. PURE."""

import json
from collections.abc import Sequence
from typing import Final

import yaml
from pydantic.alias_generators import to_snake

from tidepool_router.errors import SettingsError

Path = tuple[str | int, ...]
# A thousand pools take about 300 kB, ten thousand keys about 2 MB.
_MAX_CHARACTERS: Final = 32 * 1024 * 1024


class DocumentError(SettingsError):
    """A document that cannot be used; `line` counts from 1, None when it has none."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(f"line {line}: {reason}" if line is not None else reason)
        self.reason = reason
        self.line = line


def load(text: str, error: type[DocumentError] = DocumentError) -> object:
    """Plain data of the text; raises `error`."""
    if len(text) > _MAX_CHARACTERS:
        raise error(f"the document is longer than {_MAX_CHARACTERS} characters")
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            pass  # YAML in flow style, or broken: YAML's message has the line
    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.MarkedYAMLError as fault:
        line = fault.problem_mark.line + 1 if fault.problem_mark is not None else None
        raise error(str(fault.problem or fault.context), line) from fault
    except (yaml.YAMLError, ValueError, RecursionError) as fault:
        raise error(str(fault).splitlines()[0] if str(fault) else "cannot be parsed") from fault


def dotted(path: Sequence[str | int]) -> str:
    """The path as people write it: `pools[0].name`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".") or "document"


def line_of(text: str, path: Path) -> int | None:
    """Line of the deepest node on the path that is there."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return None
    line = node.start_mark.line + 1 if node is not None else 1
    for part in path:
        child: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            named = {to_snake(str(key.value)): value for key, value in node.value}
            child = named.get(to_snake(str(part)))
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            child = node.value[part]
        if child is None:
            break
        node = child
        line = node.start_mark.line + 1
    return line
