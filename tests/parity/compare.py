"""What two answers have in common: shapes of JSON values, events of a stream, families of a metrics page."""

import json
import re
from dataclasses import dataclass
from typing import Any

import httpx

from parity.cases import Case


def shape(value: Any) -> Any:
    """A value with its leaves replaced by their types; a list by the shapes that its members have, each once."""
    if isinstance(value, dict):
        return {name: shape(member) for name, member in value.items()}
    if isinstance(value, list):
        shapes: list[Any] = []
        for member in value:
            if shape(member) not in shapes:
                shapes.append(shape(member))
        return shapes
    return "number" if isinstance(value, float) else type(value).__name__


@dataclass(frozen=True)
class Stream:
    """A stream as its reader meets it: what comes between the events, and the events in their order."""

    separators_right: bool
    names: list[str]  # "" for an event without a name
    events: list[str]

    @classmethod
    def of(cls, text: str) -> "Stream":
        """Every event is a `data: ` line, perhaps an `event: ` line before it, and an empty one."""
        parts = text.split("\n\n")
        found = [re.fullmatch(r"(?:event: ([^\n]+)\n)?data: ([^\n]+)", part) for part in parts[:-1]]
        events = [match for match in found if match is not None]
        right = parts[-1] == "" and len(events) == len(found)
        return cls(right, [match[1] or "" for match in events], [match[2] for match in events])

    def outline(self) -> list[Any]:
        """The shapes of the events with what steers a reader: name, choice, finish reason, [DONE].

        Of events in a row that are alike only one is kept: vLLM joins tokens as it likes when it is busy.
        """
        outline: list[Any] = []
        for name, event in zip(self.names, self.events, strict=True):
            told = event if event == "[DONE]" else _outline(json.loads(event))
            if not (outline and outline[-1] == (name, told)):
                outline.append((name, told))
        return outline


def _outline(event: dict[str, Any]) -> Any:
    told = [(choice["index"], choice["finish_reason"]) for choice in event.get("choices", [])]
    return shape(event), told


def send(url: str, case: Case) -> httpx.Response:
    """One request."""
    with httpx.Client(base_url=url, timeout=60) as client:
        return client.request(case.method, case.path, content=case.content, headers=case.headers)


def families(page: str) -> dict[str, str]:
    """Metric families of a page and their types."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))


def label_names(page: str, family: str) -> set[frozenset[str]]:
    """The sets of label names with which samples of a family (or of its buckets) come."""
    pattern = re.compile(rf"^{re.escape(family)}(?:_bucket|_sum|_count)?(?:\{{(.*)\}})? \S+$", re.MULTILINE)
    return {frozenset(re.findall(r'(\w+)="', found or "")) for found in pattern.findall(page)}


def buckets(page: str, family: str) -> list[str]:
    """The bounds of a histogram, in the order of the page."""
    return re.findall(rf'^{re.escape(family)}_bucket\{{.*?le="([^"]+)"', page, re.MULTILINE)
