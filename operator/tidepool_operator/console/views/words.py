"""Figures, times and conditions as views write them."""

import math
from collections.abc import Mapping
from typing import Any, Final

from tidepool_api.units import duration_seconds
from tidepool_operator.pool.model import Object, parse_time
from tidepool_operator.pool.reasons import REMEDIES

JSON = dict[str, Any]

# Of a message in a list; the view in depth has all of it.
SHORT: Final = 280
_REMEDIES: Final[Mapping[str, str]] = {str(reason): remedy for reason, remedy in REMEDIES.items()}


def number(value: float | None, digits: int = 3) -> float | None:
    """A figure in so many digits, so that a little movement is none; None for what is no figure."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def seconds_of(duration: object) -> float | None:
    """Seconds of a duration of a spec; None for anything else."""
    try:
        return duration_seconds(duration) if isinstance(duration, str) else None
    except ValueError:
        return None


def moment(text: object) -> float | None:
    """Unix seconds of a time in an object; None for anything else."""
    try:
        return parse_time(text) if isinstance(text, str) else None
    except ValueError:
        return None


def split(reason: str, message: str) -> tuple[str, str]:
    """What happened, and what to do about it, of a condition's message."""
    remedy = _REMEDIES.get(reason, "")
    if remedy and message.endswith(remedy):
        return message[: -len(remedy)].rstrip(), remedy
    return message, ""


def needs_somebody(reason: str) -> bool:
    """Whether a reason has a remedy that a person has to apply."""
    return reason in _REMEDIES


def shortened(text: str, limit: int = SHORT) -> str:
    """A text of bounded length."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def condition_told(entry: Object) -> JSON:
    """One condition."""
    reason = str(entry.get("reason") or "")
    what, remedy = split(reason, str(entry.get("message") or ""))
    return {
        "type": str(entry.get("type") or ""),
        "holds": entry.get("status") == "True",
        "reason": reason,
        "message": what,
        "remedy": remedy,
        "since": moment(entry.get("lastTransitionTime")),
    }


def without_none(found: JSON) -> JSON:
    """The members that say something."""
    return {name: value for name, value in found.items() if value is not None}
