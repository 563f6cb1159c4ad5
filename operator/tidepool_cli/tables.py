"""Tables and words for a terminal. Pure."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

_CODES: Final[Mapping[str, str]] = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "dim": "2"}
# What a terminal would obey: names and messages come from others.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Paint:
    """Colours, where there is somebody to see them."""

    def __init__(self, *, on: bool) -> None:
        self._on = on

    def __call__(self, colour: str, text: str) -> str:
        """The text in a colour, or as it is."""
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self._on else text


def plain(text: object) -> str:
    """A text from the cluster as it may be printed: no control characters."""
    return _CONTROL.sub("?", str(text))


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as what is in them, the last one as it is; every cell is made plain."""
    cells = [list(heads), *([plain("-" if cell in (None, "") else cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def moment(text: str | None) -> datetime | None:
    """A time of the API server's, or None for none."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def age(then: datetime | None, now: datetime) -> str:
    """How long ago, as kubectl writes it: 42s, 5m12s, 3h, 2d."""
    if then is None:
        return "-"
    seconds = max(0, int((now - then).total_seconds()))
    if seconds < 120:
        return f"{seconds}s"
    if seconds < 600:
        return f"{seconds // 60}m{seconds % 60}s"
    if seconds < 3600:
        return f"{seconds // 60}m"
    if seconds < 2 * 86_400:
        return f"{seconds // 3600}h"
    return f"{seconds // 86_400}d"
