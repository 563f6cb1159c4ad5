"""The load report in short, as a sidecar puts it on each answer: semicolons between figures, in a fixed order.

New figures are added at the end, so that routers two releases apart understand each other.
"""

import dataclasses

from tidepool_api.load import LoadReport

_FIELDS = (
    "seq",
    "running",
    "waiting",
    "queued_tokens",
    "held_tokens",
    "expected_tokens",
    "opened_total",
    "closed_total",
)
# What a release may not know yet; an empty one is None.
_LATER_FIELDS = ("held", "limit", "held_direct")


def write_load_header(report: LoadReport) -> str:
    """`boot;seq;running;waiting;queued;held;expected;opened;closed` and the later requests `held;limit;direct`."""
    limit = "" if report.limit is None else str(report.limit)
    later = (str(report.held), limit, str(report.held_direct))
    return ";".join([report.boot, *(str(getattr(report, name)) for name in _FIELDS), *later])


def read_load_header(text: str, last: LoadReport | None) -> LoadReport | None:
    """The last report with newer figures; None when they are old, malformed or of a process not heard of yet."""
    boot, *figures = text.split(";")
    if last is None or boot != last.boot or len(figures) < len(_FIELDS):
        return None
    try:
        if int(figures[0]) <= last.seq:
            return None
        values: dict[str, int | None] = {name: int(figure) for name, figure in zip(_FIELDS, figures, strict=False)}
        for name, figure in zip(_LATER_FIELDS, figures[len(_FIELDS) :], strict=False):
            values[name] = int(figure) if figure else None
    except ValueError:
        return None
    return dataclasses.replace(last, **values)  # type: ignore[arg-type]
