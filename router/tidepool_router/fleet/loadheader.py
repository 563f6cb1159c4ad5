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


def write_load_header(report: LoadReport) -> str:
    """`boot;seq;running;waiting;queued;held;expected;opened;closed`."""
    return ";".join([report.boot, *(str(getattr(report, name)) for name in _FIELDS)])


def read_load_header(text: str, last: LoadReport | None) -> LoadReport | None:
    """The last report with newer figures; None when they are old, malformed or of a process not heard of yet."""
    boot, *figures = text.split(";")
    if last is None or boot != last.boot or len(figures) < len(_FIELDS):
        return None
    try:
        if int(figures[0]) <= last.seq:
            return None
        values = {name: int(figure) for name, figure in zip(_FIELDS, figures, strict=False)}
    except ValueError:
        return None
    return dataclasses.replace(last, **values)  # type: ignore[arg-type]
