"""What steps take, learned from what they took: tokens, seconds, how often they succeed and how often they run.

Every figure forgets: by the number of observations, by age, and at once when it drifts, that is when nearly all of
the last observations lie on one side of it. There is a bound to how many are kept.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

# A figure is a mean of about its last twenty observations, and after an hour without any it counts as few.
_LEAST_RATE: Final = 0.05
_HALF_LIFE_SECONDS: Final = 3600.0
# The share of the last observations above the mean, less those below: of independent ones it is beyond this about
# once in three hundred, of a figure that has moved within a dozen.
_DRIFT_RATE: Final = 0.2
_DRIFTED: Final = 0.85
_AFTER_DRIFT: Final = 3.0
_CREEP: Final = 0.01
# What has been seen less often than this tells little of the least that is possible.
_SURE: Final = 5.0
MOST_PROFILES: Final = 8192

# Before anything was seen: a chat of a few hundred tokens.
PROMPT_TOKENS: Final = 400.0
OUTPUT_TOKENS: Final = 200.0
STEP_SECONDS: Final = 1.0


class Figure:
    """A mean, and the `least` that was seen, which creeps up again. `weight`: how many observations it stands for.

    Invariant: `least` <= `mean`.
    """

    __slots__ = ("_at", "_lean", "least", "mean", "weight")

    def __init__(self) -> None:
        self.mean = 0.0
        self.least = 0.0
        self.weight = 0.0
        self._at = 0.0
        self._lean = 0.0

    def learn(self, value: float, now: float) -> None:
        """One observation."""
        if self.weight:
            self.weight *= 0.5 ** (max(0.0, now - self._at) / _HALF_LIFE_SECONDS)
            side = (value > self.mean) - (value < self.mean)
            self._lean += _DRIFT_RATE * (side - self._lean)
            if abs(self._lean) > _DRIFTED:
                self.weight, self._lean = min(self.weight, _AFTER_DRIFT), 0.0
        self._at = now
        self.weight += 1.0
        rate = max(_LEAST_RATE, 1.0 / self.weight)
        first = self.weight == 1.0
        self.least = value if first or value < self.least else self.least + _CREEP * (value - self.least)
        self.mean = value if first else self.mean + rate * (value - self.mean)

    def or_else(self, prior: float) -> float:
        """The mean, with a prior that weighs one observation."""
        return (self.mean * self.weight + prior) / (self.weight + 1.0)

    def seen(self, now: float) -> float:
        """How many observations it stands for by now."""
        kept: float = 0.5 ** (max(0.0, now - self._at) / _HALF_LIFE_SECONDS)
        return self.weight * kept

    def at_least(self) -> float:
        """What it is at least, for all that is known: nothing, before it was seen a few times."""
        return self.least * self.weight / (self.weight + _SURE)


@dataclass(slots=True)
class CallProfile:
    """One call of a step at one pool: tokens of its prompt and answer, and whether it succeeded (0 to 1).

    `seconds` is from the first byte sent to the whole answer, so it has the waiting of its time in it.
    """

    prompt: Figure = field(default_factory=Figure)
    output: Figure = field(default_factory=Figure)
    seconds: Figure = field(default_factory=Figure)
    success: Figure = field(default_factory=Figure)


@dataclass(slots=True)
class StepProfile:
    """One unit of a step with all that is in it: tokens and seconds; `units`: 0 where the step does not run."""

    tokens: Figure = field(default_factory=Figure)
    seconds: Figure = field(default_factory=Figure)
    units: Figure = field(default_factory=Figure)


class Profiles:
    """Of all workflows of a gateway; the ones that were used longest ago are forgotten."""

    def __init__(self, most: int = MOST_PROFILES) -> None:
        self._most = most
        self._calls: OrderedDict[tuple[str, str, str], CallProfile] = OrderedDict()
        self._steps: OrderedDict[tuple[str, str], StepProfile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._calls) + len(self._steps)

    def call(self, workflow: str, step: str, pool: str) -> CallProfile:
        """To learn into, and to read."""
        return _kept(self._calls, (workflow, step, pool), CallProfile, self._most)

    def step(self, workflow: str, step: str) -> StepProfile:
        """To learn into, and to read."""
        return _kept(self._steps, (workflow, step), StepProfile, self._most)

    def called(  # noqa: PLR0913 - what was seen of one call
        self,
        workflow: str,
        step: str,
        pool: str,
        *,
        prompt_tokens: int,
        output_tokens: int,
        seconds: float,
        succeeded: bool,
        now: float,
    ) -> None:
        """A call has ended."""
        found = self.call(workflow, step, pool)
        found.success.learn(float(succeeded), now)
        if succeeded:
            found.prompt.learn(prompt_tokens, now)
            found.output.learn(output_tokens, now)
            found.seconds.learn(seconds, now)

    def worked(self, workflow: str, step: str, *, tokens: int, seconds: float, now: float) -> None:
        """A unit of a step has succeeded."""
        found = self.step(workflow, step)
        found.tokens.learn(tokens, now)
        found.seconds.learn(seconds, now)

    def ended(self, workflow: str, step: str, units: int, now: float) -> None:
        """A step has ended, with so many units that ran."""
        self.step(workflow, step).units.learn(units, now)


_K = TypeVar("_K")
_V = TypeVar("_V")


def _kept(found: "OrderedDict[_K, _V]", key: _K, make: Callable[[], _V], most: int) -> _V:
    """The value of a key, made when it is missing."""
    value = found.get(key)
    if value is None:
        value = found[key] = make()
        if len(found) > most:
            found.popitem(last=False)
    else:
        found.move_to_end(key)
    return value
