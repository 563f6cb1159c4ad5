"""One counter, gauge or histogram: what the path of a request holds and adds to (see metrics.py)."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Value:
    """One counter or gauge series."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add; a counter's amount is never negative."""
        self.value += amount

    def set(self, value: float) -> None:
        """For gauges."""
        self.value = value


class Histogram:
    """One histogram series; an observation costs one bisection."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Cumulative buckets, sum and count."""
        comma = "," if labels else ""
        seen = 0
        for bound, count in zip((*map(number, self._bounds), "+Inf"), self._counts, strict=True):
            seen += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {seen}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {number(self._sum)}"
        yield f"{name}_count{braces} {seen}"


def number(value: float) -> str:
    """As the text format writes it: whole where it is whole."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
