"""Values in texts. It imports next to nothing: the process that renders starts the sooner."""

import json
from typing import Any


def as_text(value: Any) -> str:  # noqa: ANN401 - whatever a template made
    """A value in a text: structures as JSON, nothing as nothing."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, dict | list | tuple | bool):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def exceeds(value: Any, characters: int, parts: int) -> str:  # noqa: ANN401 - JSON
    """Which of its bounds a value is beyond: "characters", as JSON, or "parts", members and items at any depth.

    Empty: it is within both. It looks at no more than so many, so this is quick however large the value is.
    """
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            characters -= len(one)
            inside = 0
        elif isinstance(one, dict):
            characters -= sum(map(len, one)) if len(one) <= parts else 0
            inside = len(one)
        else:
            inside = len(one) if isinstance(one, list | tuple) else 0
        characters -= inside
        parts -= inside
        if characters < 0:
            return "characters"
        if parts < 0:
            return "parts"
        if inside:
            waiting += one.values() if isinstance(one, dict) else one
    return ""


def data_of(text: str) -> Any:  # noqa: ANN401 - JSON
    """The object or list that a text writes as JSON; None where it is no such text.

    Tabs and the like may stand in its strings as they are: vLLM 0.32's grammars allow them where a schema bounds a
    string's length.
    """
    stripped = text.strip()
    if stripped[:1] not in ("{", "["):
        return None
    try:
        return json.loads(stripped, strict=False)
    except (ValueError, RecursionError):
        return None


def size_bytes(text: str) -> int:
    """What it takes on a wire; half a surrogate pair, which JSON can hold and UTF-8 cannot, counts as any."""
    return len(text.encode("utf-8", "surrogatepass"))
