"""How long a pool's outputs are: a decayed sketch of their lengths, and what it says of one that has begun.

Lengths are kept in buckets four to a doubling, each with its weight and its sum, so that means are exact and
quantiles are right to a fifth.
"""

from bisect import bisect_right
from typing import Final

# Each output weighs 2 %: a new kind of load is learned within some hundred requests.
LEARNING_RATE: Final = 0.02
_BOUNDS: Final = tuple(sorted({round(2 ** (step / 4)) for step in range(4 * 20)}))
# The tables that answers are read from are made anew after so many outputs.
_STALE: Final = 16
_LARGE: Final = 1e100
# An output longer than all that are remembered goes on for a quarter of what it has.
_BEYOND: Final = 0.25


class OutputLengths:
    """Output tokens of single answers; starts as if one of `first_tokens` had been seen."""

    __slots__ = ("_above", "_above_sum", "_learned", "_stale", "_sums", "_unit", "_weights", "mean")

    def __init__(self, first_tokens: float) -> None:
        self._weights = [0.0] * (len(_BOUNDS) + 1)
        self._sums = [0.0] * (len(_BOUNDS) + 1)
        # Weight and sum of the buckets from each one on.
        self._above = [0.0] * (len(_BOUNDS) + 2)
        self._above_sum = [0.0] * (len(_BOUNDS) + 2)
        self._unit = 1.0
        self._learned = 0
        self._stale = 0
        self.mean = first_tokens
        self._add(first_tokens)
        self._tabulate()

    def learn(self, tokens: float) -> None:
        """One whole output. The first ones weigh as much as all before them, so that the first guess goes soon."""
        self._learned += 1
        # Newer ones weigh more, instead of all older ones less.
        self._unit /= 1.0 - max(LEARNING_RATE, 1.0 / (1.0 + self._learned))
        self._add(tokens)
        self._stale += 1
        if self._stale >= min(_STALE, self._learned):
            self._tabulate()

    def capped_mean(self, cap: int) -> float:
        """Expected length where no output is longer than the cap."""
        at = bisect_right(_BOUNDS, cap)
        below = self._above_sum[0] - self._above_sum[at]
        weight = self._above[at] - self._above[at + 1]
        inside = min(self._above_sum[at] - self._above_sum[at + 1], cap * weight)
        return (below + inside + cap * self._above[at + 1]) / self._above[0]

    def remaining(self, produced: int) -> float:
        """Expected further tokens of an output that has `produced` already and goes on."""
        at = bisect_right(_BOUNDS, produced) + 1
        weight = self._above[at]
        if weight <= 1e-9 * self._above[0]:
            return max(1.0, _BEYOND * produced)
        return max(1.0, self._above_sum[at] / weight - produced)

    def quantile(self, share: float, produced: int = 0) -> float:
        """Length that `share` of the outputs stay within, of those longer than `produced`."""
        at = bisect_right(_BOUNDS, produced) if produced else 0
        left = (1.0 - share) * self._above[at]
        if self._above[at] <= 0.0:
            return (1.0 + _BEYOND) * produced
        while at < len(_BOUNDS) and self._above[at + 1] > left:
            at += 1
        weight = self._weights[at]
        return max(float(produced), self._sums[at] / weight) if weight else float(produced)

    def _add(self, tokens: float) -> None:
        at = bisect_right(_BOUNDS, tokens)
        self._weights[at] += self._unit
        self._sums[at] += self._unit * tokens

    def _tabulate(self) -> None:
        self._stale = 0
        if self._unit > _LARGE:
            self._weights = [weight / self._unit for weight in self._weights]
            self._sums = [total / self._unit for total in self._sums]
            self._unit = 1.0
        weight = total = 0.0
        for at in range(len(_BOUNDS), -1, -1):
            weight += self._weights[at]
            total += self._sums[at]
            self._above[at], self._above_sum[at] = weight, total
        self.mean = total / weight
