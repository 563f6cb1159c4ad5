"""Bounds that change by the clock: which schedules are in force at a time, and what they make of a pool's bounds.

Of the schedules in force the one that began last decides, for each of the two bounds by itself; where none has a
bound, that of `scaling` holds. Times follow Debian's cron: what falls into the hour that a clock leaves out begins
right after it, what falls into the hour that comes twice begins the first time.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from tidepool_api.scaling import Scaling
from tidepool_operator.scaling.model import ScalingSpec, Schedule

MINUTE_SECONDS: Final = 60
# A raised minimum is not met further ahead than this, however long start-ups take.
LONGEST_LEAD_SECONDS: Final = 3600.0
# By this much clocks are put back, at most, in the zones of today.
_TWICE: Final = timedelta(hours=1)


def bounded(now: float, spec: ScalingSpec, lead_seconds: float) -> ScalingSpec:
    """The spec with the bounds that hold at `now` (Unix seconds), and where they come from in words.

    A minimum that rises within `lead_seconds`, the time that a pod takes to start, holds from now on, as far as
    the maximum of now allows it. Where two schedules contradict each other the maximum holds.
    """
    if not spec.schedules:
        return spec
    lowest, lowest_by = _bound(now, spec, "min_replicas")
    highest, highest_by = _bound(now, spec, "max_replicas")
    for start in _starts(now, spec, min(lead_seconds, LONGEST_LEAD_SECONDS)):
        coming, coming_by = _bound(start, spec, "min_replicas")
        if coming > lowest:
            lowest, lowest_by = coming, f"{coming_by}, {start - now:.0f} s ahead"
    return replace(
        spec, min_replicas=min(lowest, highest), max_replicas=highest, min_by=lowest_by, max_by=highest_by
    )


def began(schedule: Schedule, now: float) -> float | None:
    """When the schedule last began, at `now` or before (Unix seconds); None: not within fifty years."""
    return _began(schedule.cron, schedule.time_zone, int(now // MINUTE_SECONDS))


def faults(scaling: Scaling) -> list[str]:
    """What is wrong with schedules whose text is sound: field, what, and what to do."""
    found = []
    for index, schedule in enumerate(scaling.schedules):
        field = f"spec.scaling.schedules[{index}]"
        try:
            ZoneInfo(schedule.time_zone)
        except (OSError, ValueError, KeyError):
            found.append(
                f"{field}.timeZone: {schedule.time_zone} is no known time zone; write one like Europe/Berlin"
            )
        try:
            CronSim(schedule.cron, datetime(2026, 1, 1))  # noqa: DTZ001 - only the text is looked at
        except CronSimError as error:
            what = str(error)[:1].lower() + str(error)[1:]
            found.append(f"{field}.cron: {schedule.cron!r} never begins ({what}); write it like 0 8 * * 1-5")
    return found


def _bound(now: float, spec: ScalingSpec, name: str) -> tuple[int, str]:
    """A bound at a time, and the schedule that it is from."""
    last, value, by = float("-inf"), int(getattr(spec, name)), ""
    for schedule in spec.schedules:
        bound = getattr(schedule, name)
        start = None if bound is None else began(schedule, now)
        # Of two that begin together the later in the list decides.
        if bound is not None and start is not None and last <= start and now < start + schedule.duration_seconds:
            last, value, by = start, bound, _words(schedule, start)
    return value, by


def _starts(now: float, spec: ScalingSpec, lead_seconds: float) -> Iterator[float]:
    for schedule in spec.schedules:
        start = began(schedule, now + lead_seconds)
        if start is not None and start > now:
            yield start


def _words(schedule: Schedule, start: float) -> str:
    at = datetime.fromtimestamp(start, ZoneInfo(schedule.time_zone)).strftime("%H:%M")
    return f', bounded by schedule "{schedule.cron}" {schedule.time_zone} from {at} on'


@lru_cache(maxsize=4096)
def _began(cron: str, zone: str, minute: int) -> float | None:
    now = minute * MINUTE_SECONDS
    local = datetime.fromtimestamp(now, ZoneInfo(zone))
    # What begins at this very minute counts; in an hour that comes twice all of the first one is over.
    look = local + timedelta(seconds=1) + (_TWICE if local.fold else timedelta())
    try:
        # By timestamps: within one zone datetimes are compared as the wall shows them.
        return next(at for start in CronSim(cron, look, reverse=True) if (at := start.timestamp()) <= now)
    except StopIteration:
        return None
