"""Sums of what was used, as a table or as CSV. PURE."""

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from tidepool_router.errors import SettingsError
from tidepool_router.usage.tally import Used, Who

# What sums can be told apart by.
PARTS: Final = ("day", "hour", "key", "tenant", "model", "workflow")
_SUMS: Final = Used._fields
# A cell that a spreadsheet would take for a formula: clients choose names of tenants and models.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")

Row = tuple[int, Who, Used]  # hour in Unix seconds


def parts(text: str) -> tuple[str, ...]:
    """`key,model` as its parts. Raises SettingsError."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [part for part in found if part not in PARTS]
    if unknown or not found:
        raise SettingsError(f"--by {text!r}: name some of {', '.join(PARTS)}, with commas between them")
    return found


def moment(text: str, now: datetime) -> datetime:
    """`30d` or `12h` before `now`, a day (2026-11-01) or a time in UTC. Raises SettingsError."""
    unit = {"d": "days", "h": "hours", "m": "minutes"}.get(text[-1:])
    try:
        if unit is not None and text[:-1].isdigit():
            return now - timedelta(**{unit: int(text[:-1])})
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise SettingsError(f"{text!r} is no time; write 30d, 12h, 2026-11-01 or 2026-11-01T15:00") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def summed(rows: Iterable[Row], by: Sequence[str]) -> list[tuple[tuple[str, ...], Used]]:
    """Sums by those parts, in their order."""
    sums: dict[tuple[str, ...], Used] = {}
    for hour, who, used in rows:
        place = tuple(_part(part, hour, who) for part in by)
        sums[place] = sums.get(place, Used()).plus(used)
    return sorted(sums.items())


def as_csv(sums: Sequence[tuple[tuple[str, ...], Used]], by: Sequence[str]) -> str:
    """With a head, for billing."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*by, *_SUMS])
    writer.writerows([*map(_harmless, place), *used] for place, used in sums)
    return out.getvalue()


def as_table(sums: Sequence[tuple[tuple[str, ...], Used]], by: Sequence[str]) -> str:
    """For people, with a line of sums."""
    total = Used()
    for _, used in sums:
        total = total.plus(used)
    heads = [*by, *(name.replace("_", " ") for name in _SUMS)]
    rows = [[*map(_printable, place), *(f"{each:,}" for each in used)] for place, used in sums]
    rows.append(["all", *[""] * (len(by) - 1), *(f"{each:,}" for each in total)])
    widths = [max(len(row[at]) for row in (heads, *rows)) for at in range(len(heads))]
    lines = []
    for row in (heads, *rows):
        names = [cell.ljust(width) for cell, width in zip(row[: len(by)], widths, strict=False)]
        numbers = [cell.rjust(width) for cell, width in zip(row[len(by) :], widths[len(by) :], strict=True)]
        lines.append("  ".join([*names, *numbers]).rstrip())
    return "\n".join(lines) + "\n"


def _part(part: str, hour: int, who: Who) -> str:
    if part == "hour":
        return datetime.fromtimestamp(hour, UTC).strftime("%Y-%m-%dT%H:00Z")
    if part == "day":
        return datetime.fromtimestamp(hour, UTC).strftime("%Y-%m-%d")
    return str(getattr(who, part))


def _printable(cell: str) -> str:
    """Without what a terminal would obey: clients may choose names."""
    return "".join(each if each.isprintable() else "?" for each in cell)


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell
