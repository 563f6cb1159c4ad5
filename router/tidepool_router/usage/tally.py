"""Counts what has ended, by who asked for what. PURE: no I/O, no clock."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

# Keys are bounded by their file; tenants that name themselves are not.
MOST_LINES: Final = 10_000


class Who(NamedTuple):
    """`key`: id of an API key, or empty. `model`: as the client named it. `workflow`: its name, or empty."""

    key: str
    tenant: str
    model: str
    workflow: str = ""


# Where there are too many to tell apart.
OTHERS: Final = Who("others", "others", "others", "others")


class Used(NamedTuple):
    """Sums. `failed` of the requests had no whole answer. Cached tokens are some of the prompt's."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def plus(self, other: "Used") -> "Used":
        """Both together."""
        return Used(*(one + two for one, two in zip(self, other, strict=True)))

    def minus(self, other: "Used") -> "Used":
        """What came after `other`."""
        return Used(*(one - two for one, two in zip(self, other, strict=True)))


NOTHING: Final = Used()


class Tally:
    """Sums since the process began; they only grow. `take_changed`: which have since it was last asked."""

    def __init__(self, most_lines: int = MOST_LINES) -> None:
        self._sums: dict[Who, list[int]] = {}
        self._changed: set[Who] = set()
        self._most_lines = most_lines

    def ended(self, who: Who, *, whole: bool, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """One request is over, and used so much."""
        sums = self._sums.get(who)
        if sums is None:
            if len(self._sums) >= self._most_lines:
                who = OTHERS
            sums = self._sums.setdefault(who, [0, 0, 0, 0, 0])
        sums[0] += 1
        if not whole:
            sums[1] += 1
        sums[2] += prompt_tokens
        sums[3] += cached_tokens
        sums[4] += output_tokens
        self._changed.add(who)

    def take_changed(self) -> set[Who]:
        """Who has used something since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def give_back(self, changed: set[Who]) -> None:
        """They could not be written: they count as changed again."""
        self._changed |= changed

    def used(self, who: Who) -> Used:
        """So far."""
        sums = self._sums.get(who)
        return NOTHING if sums is None else Used(*sums)

    def __iter__(self) -> Iterator[tuple[Who, Used]]:
        return iter([(who, Used(*sums)) for who, sums in self._sums.items()])


class Hours:
    """What of a tally's sums fell into the hour of now.

    Rows are whole sums of one process and one hour, so that writing one twice is writing it once.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._before: dict[Who, Used] = {}
        self.hour = 0

    def turn(self, hour: int, sums: Mapping[Who, Used]) -> None:
        """Another hour has begun; `sums`, which stood when the last one was written, belong to that."""
        self.hour = hour
        self._before = dict(sums)

    def row(self, who: Who) -> Used:
        """Of this hour."""
        return self._tally.used(who).minus(self._before.get(who, NOTHING))
