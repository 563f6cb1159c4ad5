"""Counters, gauges and histograms in Prometheus' text format, for processes with one thread.

prometheus_client takes a lock and walks labels for each update, which costs more than the rest of a chunk; here an
update is an addition on an object that the caller keeps.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from tidepool_router.series import Histogram, Value, number

__all__ = ["Children", "Family", "Histogram", "Registry", "Value"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Seconds. From a token of a small model to a whole answer of a slow one; where targets for the first token lie
# (0.25 s to 5 s) no bound is more than 1.5 times the one before, for a quantile is a guess between two of them.
LATENCY_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.5, 5.0, 7.5,
    10.0, 15.0, 25.0, 40.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
# Seconds a token: targets lie between 10 ms and 200 ms.
TOKEN_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075, 0.1, 0.125, 0.15, 0.2,
    0.3, 0.5, 1.0, 2.5,
)  # fmt: skip
RATIO_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)


Series = TypeVar("Series", Value, Histogram)
Key = TypeVar("Key", bound=Hashable)
Child = TypeVar("Child")


class Family(Generic[Series]):
    """All series of one name. `labels` finds or makes one; keep it where it is used often.

    Label values must come from a bounded set. `collect` sets gauges that are read elsewhere just before a scrape.
    """

    def __init__(
        self, name: str, kind: str, text: str, label_names: tuple[str, ...], make: Callable[[], Series]
    ) -> None:
        self.name = name
        self.kind = kind
        self.text = text
        self.label_names = label_names
        self._make: Callable[[], Series] = make
        self._series: dict[tuple[str, ...], Series] = {}

    def labels(self, *values: str) -> Series:
        """The series of these label values, in the order of the names."""
        series = self._series.get(values)
        if series is None:
            if len(values) != len(self.label_names):
                raise ValueError(f"{self.name} has the labels {self.label_names}, not {len(values)} values")
            series = self._series[values] = self._make()
        return series

    def drop(self, first: str) -> None:
        """Forget every series whose first label is this, such as those of a pool that is gone."""
        for values in [values for values in self._series if values[:1] == (first,)]:
            del self._series[values]

    def clear(self) -> None:
        """Forget all series; for gauges that are set anew before each scrape."""
        self._series.clear()

    def lines(self) -> Iterator[str]:
        """The family's block of the page."""
        yield f"# HELP {self.name} {self.text}"
        yield f"# TYPE {self.name} {self.kind}"
        for values, series in self._series.items():
            pairs = zip(self.label_names, values, strict=True)
            labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
            if isinstance(series, Histogram):
                yield from series.lines(self.name, labels)
            else:
                yield (
                    f"{self.name}{{{labels}}} {number(series.value)}"
                    if labels
                    else (f"{self.name} {number(series.value)}")
                )


class Children(dict[Key, Child]):
    """Series of one owner by the label that is left: made when first asked for, from then on one look in a dict.

    Keys must come from a bounded set, as label values must.
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[Key], Child]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Key) -> Child:
        child = self[key] = self._make(key)
        return child


class Registry:
    """The families of one process."""

    def __init__(self) -> None:
        self._families: dict[str, Family[Value] | Family[Histogram]] = {}
        self._collectors: list[Callable[[], None]] = []

    def counter(self, name: str, text: str, *labels: str) -> Family[Value]:
        """Only grows; its name ends in `_total`."""
        return self._add(Family(name, "counter", text, labels, Value))

    def gauge(self, name: str, text: str, *labels: str) -> Family[Value]:
        """Goes up and down."""
        return self._add(Family(name, "gauge", text, labels, Value))

    def histogram(self, name: str, text: str, bounds: Sequence[float], *labels: str) -> Family[Histogram]:
        """Counts values by upper bound."""
        return self._add(Family(name, "histogram", text, labels, partial(Histogram, bounds)))

    def before_scrape(self, collector: Callable[[], None]) -> None:
        """Call this before each page, to set what is read and not counted."""
        self._collectors.append(collector)

    def render(self) -> bytes:
        """The page, each family once; see CONTENT_TYPE."""
        for collector in self._collectors:
            collector()
        lines = [line for family in self._families.values() for line in family.lines()]
        return ("\n".join(lines) + "\n").encode()

    def _add(self, family: Family[Series]) -> Family[Series]:
        if family.name in self._families:
            raise ValueError(f"{family.name} is there already")
        self._families[family.name] = family
        return family


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
