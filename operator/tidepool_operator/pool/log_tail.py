"""What of a log may be shown: one line of bounded length, without what looks like a secret."""

import re
from typing import Final

from tidepool_operator.pool.engine_log import errors_of

_TAIL_CHARACTERS: Final = 600
_ERROR: Final = re.compile(r"\b\w*(Error|Exception|error:)")
# vLLM's API server ends with these when its engine core has said the cause before (vllm/v1/engine/core_client.py).
_ELSEWHERE: Final = re.compile(r"See root cause above|Failed core proc")
# pydantic shows the value that was refused, which may be anything.
_INPUT: Final = re.compile(r" \[type=\w+, input_value=.*", re.S)
# An engine may print its environment when it crashes; what looks like a token goes no further.
_TOKENS: Final = re.compile(
    r"hf_[A-Za-z0-9]{8,}|\bsk-[A-Za-z0-9_-]{4,}|(?i:bearer|basic)\s+[A-Za-z0-9._~+/=-]{4,}"
    r"|(?i:(?:authorization|\w*token|\w*api[-_]?key|\w*secret\w*|\w*password)['\"]?\s*[=:]\s*['\"]?"
    r"(?:(?:bearer|basic) )?)[^\s'\",;)}]+"
    r"|(?<=://)[^/\s@:]+:[^/\s@]+(?=@)"
)


def scrubbed(text: str) -> str:
    """The text in bounded length, what looks like a token hidden."""
    return _TOKENS.sub("[hidden]", _INPUT.sub("", text))[:_TAIL_CHARACTERS]


def log_tail(text: str) -> str:
    """The end of a log as one line: the last exception's own words, or the last lines where there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # An exception's own line says more than the frames above it.
    errors = errors_of(text) or [line for line in lines if _ERROR.search(line)]
    errors = [line for line in errors if not _ELSEWHERE.search(line)]
    return scrubbed(errors[-1] if errors else " | ".join(lines[-3:])[-_TAIL_CHARACTERS:])
