"""What was seen of rollouts under streams, as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    minutes: float
    rollouts: int
    seconds: str
    pods: int
    streams: int
    tokens: int
    failed: int
    fewest_streams: int
    events: int
    lowest: int
    bound: int
    most: int
    ttft: str


HEADS = {
    "name": "pool",
    "minutes": "minutes",
    "rollouts": "rollouts",
    "seconds": "s each, median / max",
    "pods": "pods made",
    "streams": "streams",
    "tokens": "tokens, all counted",
    "failed": "failed",
    "fewest_streams": "fewest at once",
    "events": "events watched",
    "lowest": "fewest serving",
    "bound": "bound",
    "most": "most pods",
    "ttft": "TTFT ms, p50 / p90",
}


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows (a Row's fields by name) as a table of Markdown."""
    lines = [list(HEADS.values()), ["---"] * len(HEADS)]
    lines += [[str(row[name]) for name in HEADS] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
