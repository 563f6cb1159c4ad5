"""What an engine's log says of its end, by the table of signs.

A sign is found only where the program itself speaks: in the line of an exception (or of the parser of arguments),
from its very beginning. What a prompt, a model's name or a library's debug output says is never taken for it, and
a text that stands in no row has no specific reason.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidepool_operator.pool.engine_signs import FIELD, KERNEL, LOGGED, SIGNS, USAGE
from tidepool_operator.pool.reasons import Reason


@dataclass(frozen=True, slots=True)
class Said:
    """What was recognised, and the words that say so, as they stand in the log."""

    reason: Reason
    words: str


_SPEAKER: Final = re.compile(r"^\((?:APIServer|EngineCore|Worker|ApiServer)[^)]{0,40}\) ?")
# vLLM's format of logging (vllm/logger.py): level, time, place. Only errors are looked at.
_LEVEL: Final = re.compile(r"^(\w+) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]{1,200}\] ?")
_EXCEPTION: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception))(?:: (.*))?$")
_PYDANTIC: Final = re.compile(r"^  Value error, (.*)")
# pydantic's way to say what it refuses of a field whose name stands on the line before.
_FIELD: Final = re.compile(r"^  ((?:Input should be|Unexpected keyword argument|Extra inputs are) .*)")
_USAGE_LINE: Final = re.compile(r"^[\w.-]+(?: serve)?: error: (.*)")
_KERNEL_LINE: Final = re.compile(r"^(?:\[ *[\d.]+\] ?)?(NVRM: .*)")
_GOES_ON: Final = re.compile(
    r"^(?!\s|Traceback |The above exception|During handling|For more information|/\S+:\d+: )\S"
)
_LINE_LIMIT: Final = 4096
_MORE_LINES: Final = 3
_LAST_LINES: Final = 3
_KEPT_CHARACTERS: Final = 16_384


def read_log(text: str) -> Said | None:
    """The reason that the end of an engine's log shows; None for what no row knows."""
    spoken = [_spoken(line[:_LINE_LIMIT]) for line in text.splitlines()]
    errors = [(number, *found) for number, line in enumerate(spoken) if (found := _error(line))]
    for sign in SIGNS:
        for number, error, words in reversed(errors):
            if sign.matches(error, words):
                return Said(sign.reason, _whole(spoken, number))
    return None


def errors_of(text: str) -> list[str]:
    """Every line of a log in which an exception or the parser of arguments speaks, without its prefix."""
    spoken = [_spoken(line[:_LINE_LIMIT]) for line in text.splitlines()]
    return [line.strip() for line in spoken if (found := _error(line)) and found[0] != LOGGED]


def last_words(text: str) -> str:
    """As much of a log as `read_log` and `errors_of` look at: messages of errors and the last lines."""
    lines = text.splitlines()
    kept = set(range(max(0, len(lines) - _LAST_LINES), len(lines)))
    for number, line in enumerate(lines):
        found = _error(_spoken(line[:_LINE_LIMIT]))
        if found and (found[0] != LOGGED or any(sign.matches(*found) for sign in SIGNS)):
            kept.update(range(max(0, number - 1), min(len(lines), number + 1 + _MORE_LINES)))
    return "\n".join(lines[number][:_LINE_LIMIT] for number in sorted(kept))[-_KEPT_CHARACTERS:]


def _spoken(line: str) -> str:
    """A line without the names that vLLM puts before it; empty for what is logged below ERROR."""
    line = _SPEAKER.sub("", line.rstrip())
    level = _LEVEL.match(line)
    if level is None:
        return line
    rest = line[level.end() :]
    if level[1] not in ("ERROR", "CRITICAL"):
        return ""
    return rest if _EXCEPTION.match(rest) or _PYDANTIC.match(rest) else f"{LOGGED}Error: {rest}"


def _error(line: str) -> tuple[str, str] | None:
    """The name of what is raised, and its text."""
    if found := _EXCEPTION.match(line):
        return (LOGGED if found[1] == f"{LOGGED}Error" else found[1]), found[2] or ""
    if found := _PYDANTIC.match(line):
        return "ValueError", found[1]
    for name, pattern in ((USAGE, _USAGE_LINE), (KERNEL, _KERNEL_LINE), (FIELD, _FIELD)):
        if found := pattern.match(line):
            return name, found[1]
    return None


def _whole(lines: Sequence[str], number: int) -> str:
    """A message with the lines that it goes on for."""
    said = [lines[number].strip().removeprefix(f"{LOGGED}Error: ")]
    if number and _FIELD.match(lines[number]):
        said.insert(0, f"{lines[number - 1].strip()}:")
    for line in lines[number + 1 : number + 1 + _MORE_LINES]:
        if not _GOES_ON.match(line) or _error(line):
            break
        said.append(line.strip())
    return re.sub(r" \[type=\w+, input_value=.*", "", " ".join(said))
