"""Logs: one JSON object a line on standard error. Prompts, bodies and credentials never enter a record."""

import json
import logging
import sys
import time
from contextlib import nullcontext
from typing import Final

_STANDARD: Final = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


class JsonLines(logging.Formatter):
    """Time (RFC 3339, UTC), level, logger, message, what `extra` gave, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Formatter."""
        entry: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure(level: str) -> None:
    """Send all logs of the process to standard error."""

    formatter = JsonLines()
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def write_lines(lines: bytes) -> None:
    """Whole lines that are JSON already, between those of the log and never inside one; from any thread."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            with handler.lock or nullcontext():
                handler.stream.write(lines.decode())
                handler.flush()
