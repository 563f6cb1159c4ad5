"""What one replica can serve, learned from the pool's own figures.

An engine works in steps. A step costs something by itself, something for each sequence that gets a token in it,
and something for each prompt token that it computes on the side:

    step = base + per_output_token * running + per_prefill_token * (prompt tokens a second * step)

A sequence gets a token a step, so the step's length is running / output tokens a second, and all of it can be read
off the figures that every engine has. Solved for the step, with w the share of its time that demand alone takes,

    w = per_prefill_token * prompt tokens a second + per_output_token * output tokens a second
    step = base / (1 - w)

so that a target for the time per token is a limit of w, 1 - base / target, and replicas are demand's w over it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

# Llama-3.1-8B on two A100, fitted to SageServe's tables (github.com/shashwatj07/SageServe, MIT): seconds of a
# step, of a prompt token, and of a sequence with a context of a thousand tokens in a step. Another model is
# another figure, which is why the first readings weigh more than this.
PRIOR: Final = (0.0083, 5.0e-5, 2.8e-4)
# The prior may be wrong by its threefold, in each figure.
PRIOR_DEVIATION: Final = 3.0
# One reading's step is within so much of the model's: scrapes do not fall together with what they count.
NOISE: Final = 0.15
# So many readings are believed whatever they say.
SETTLED: Final = 20
# A reading weighs half as much after some 700 of them, three hours at one in 15 s.
FORGETTING: Final = 0.999
# Share of an engine's time that demand may take where no latency says how much, and between what it is learned:
# a tenth is left for chance at least, and a target that fails even at a third is missed for another reason.
LOAD_LIMIT: Final = 0.85
LOAD_LIMITS: Final = (0.35, 0.90)
# A reading beyond a target takes so much off the limit, one within its targets under load gives back less: at
# rest a target is missed in about one reading of fifty. Chosen on a day of the tuning part of ServeGen's m-small
# and m-large: with one in eleven 98.3 to 98.9 % of requests are in time there, with this 99.6 %.
LIMIT_DOWN: Final = 0.02
LIMIT_UP: Final = 0.0004
# Under load is from this share of the limit on: what is provided for is an upper quantile, so that a pool is at
# two thirds of its limit for much of the time, and a limit that were only raised at the limit would never be.
NEAR_LIMIT: Final = 0.6
# No engine shows as much of anything; NaN is not less either.
MOST: Final = 1e9

Vector = tuple[float, float, float]

# The prior as readings would put it: how sure it is of each figure, and where that pulls.
_SURE: Final = tuple((i == j) / (PRIOR_DEVIATION * PRIOR[i]) ** 2 for i in range(3) for j in range(3))
_PULL: Final = tuple(1.0 / (PRIOR_DEVIATION**2 * figure) for figure in PRIOR)
_LEAST_SURE: Final = 0.99 / PRIOR_DEVIATION**2


@dataclass(frozen=True, slots=True)
class Load:
    """Means over the ready pods: sequences, and tokens a second (prompts without cached ones)."""

    running: float
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """The model's three figures (seconds), how sure they are, and the load that targets allow.

    `identity` names the model and flags that they were learned with. `precision` (3x3, row by row) and `pull` are
    what the readings add up to: the figures solve precision x figures = pull.
    """

    identity: str = ""
    figures: tuple[float, float, float] = PRIOR
    precision: tuple[float, ...] = _SURE
    pull: tuple[float, ...] = _PULL
    readings: int = 0
    load_limit: float = LOAD_LIMIT

    @property
    def settled(self) -> bool:
        """Whether it rests on more than the prior."""
        return self.readings >= SETTLED

    def load(self, prompt_tokens: float, output_tokens: float) -> float:
        """Engine-seconds a second that demand takes (tokens a second): the replicas that it would keep busy."""
        _, prefill, output = self.figures
        return prefill * prompt_tokens + output * output_tokens

    def limit(self, time_per_output_token_seconds: float | None) -> float:
        """Share of a replica's time that demand may take within the targets."""
        if time_per_output_token_seconds is None:
            return self.load_limit
        allowed = 1.0 - self.figures[0] / time_per_output_token_seconds
        return min(self.load_limit, max(LOAD_LIMITS[0], allowed))

    def at_once(
        self, prompt_tokens: float, output_tokens: float, time_per_output_token_seconds: float | None
    ) -> float | None:
        """Sequences that a replica runs at its limit, of demand in this proportion; None without any.

        A sequence gets a token a step, so they are the output tokens of a step as long as the limit allows.
        """
        load = self.load(prompt_tokens, output_tokens)
        if not (0 < output_tokens < MOST and 0 < load < MOST):
            return None
        limit = self.limit(time_per_output_token_seconds)
        return self.figures[0] / (1.0 - limit) * output_tokens * limit / load

    def binding(self, prompt_tokens: float, output_tokens: float) -> str:
        """Which of the two takes more of the engines' time."""
        _, prefill, output = self.figures
        return "prefill" if prefill * prompt_tokens > output * output_tokens else "decode"

    def doubt(self, load: Load) -> float:
        """Deviation of the step's length at a load as a share of it."""
        step = _step(load)
        if step is None:
            return PRIOR_DEVIATION
        row = _row(load, step)
        return math.sqrt(max(0.0, _dot(row, _solved(self.precision, row))))

    def told(self) -> str:
        """Where the figures come from, in words."""
        if self.readings == 0:
            return "a prior: no reading under load yet"
        base, spread = self.figures[0], math.sqrt(_solved(self.precision, (1.0, 0.0, 0.0))[0])
        readings = "one reading" if self.readings == 1 else f"some {_round(self.readings, 1)} readings"
        return f"{readings}; a step takes {_round(1000 * base, 2)} ms, give or take {_round(1000 * spread, 1)} ms"


def _round(value: float, digits: int) -> str:
    """So many significant digits, without an exponent."""
    return f"{float(f'{value:.{digits}g}'):g}" if value < 1e5 else f"{value:.0f}"


def learned(capacity: Capacity, load: Load) -> Capacity:
    """With one more reading, by least squares of relative errors about the prior; without work it says nothing."""
    step = _step(load)
    if step is None:
        return capacity
    row = _row(load, step)
    if capacity.settled:
        # A hiccup is not the engine's speed: a reading is heard up to three deviations from the model's.
        heard = _dot(row, capacity.figures)
        off = 3.0 * math.hypot(NOISE, capacity.doubt(load))
        said = min(max(1.0, heard - off), heard + off)
    else:
        said = 1.0
    faded, prior = FORGETTING, 1.0 - FORGETTING
    outer = (a * b / NOISE**2 for a in row for b in row)
    precision = tuple(
        faded * known + prior * sure + new
        for known, sure, new in zip(capacity.precision, _SURE, outer, strict=True)
    )
    pull = tuple(
        faded * known + prior * first + each * said / NOISE**2
        for known, first, each in zip(capacity.pull, _PULL, row, strict=True)
    )
    return replace(
        capacity,
        figures=_most_likely(precision, pull),
        precision=precision,
        pull=pull,
        readings=capacity.readings + 1,
    )


def taught(identity: str, loads: Iterable[Load]) -> Capacity:
    """What readings of the past teach of a model and flags."""
    capacity = Capacity(identity=identity)
    for load in loads:
        capacity = learned(capacity, load)
    return capacity


def judged(capacity: Capacity, load: float, limit: float, worst: float | None) -> Capacity:
    """With the load limit after one look at the latencies; `worst` is the highest of them over its target.

    `load` is the share of their time that the ready replicas spend on demand, as a mean over minutes. Beyond the
    limit a target that is missed says nothing new: the pool was too small, and the limit had said so.
    """
    if worst is None or not math.isfinite(load) or not math.isfinite(worst):
        return capacity
    lowest, highest = LOAD_LIMITS
    if worst > 1.0 and NEAR_LIMIT * limit <= load <= limit:
        return replace(capacity, load_limit=max(lowest, min(capacity.load_limit, limit) - LIMIT_DOWN))
    if worst <= 1.0 and load >= NEAR_LIMIT * limit:
        return replace(capacity, load_limit=min(highest, capacity.load_limit + LIMIT_UP))
    return capacity


def _step(load: Load) -> float | None:
    """Seconds of a step; None where nothing ran or the figures do not fit together."""
    values = (load.running, load.prompt_tokens, load.output_tokens)
    if not all(0 <= value < MOST for value in values):
        return None
    if load.running < 0.5 or load.output_tokens <= 0:
        return None
    step = load.running / load.output_tokens
    return step if 1e-4 <= step <= 10.0 else None


def _row(load: Load, step: float) -> Vector:
    """The step in shares of itself, so that errors count relative to it."""
    return 1.0 / step, load.prompt_tokens, load.running / step


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return first[0] * second[0] + first[1] * second[1] + first[2] * second[2]


def _most_likely(precision: Sequence[float], pull: Sequence[float]) -> Vector:
    """The most likely figures of which none is below a thousandth of the prior's."""
    floor = tuple(figure / 1000 for figure in PRIOR)
    free = [0, 1, 2]
    figures = list(floor)
    while free:
        fixed = [index for index in range(3) if index not in free]
        # The figures differ by powers of ten: in units of the prior's they do not.
        rows = [[precision[3 * i + j] * PRIOR[i] * PRIOR[j] for j in free] for i in free]
        right = [(pull[i] - sum(precision[3 * i + j] * floor[j] for j in fixed)) * PRIOR[i] for i in free]
        for index, found in zip(free, _eliminated(rows, right), strict=True):
            figures[index] = found * PRIOR[index]
        lowest = min(free, key=lambda index: figures[index] - floor[index])
        if figures[lowest] >= floor[lowest]:
            break
        figures[lowest] = floor[lowest]
        free.remove(lowest)
    return figures[0], figures[1], figures[2]


def _solved(precision: Sequence[float], right: Vector) -> list[float]:
    """What the precision maps to `right`."""
    rows = [[precision[3 * i + j] * PRIOR[i] * PRIOR[j] for j in range(3)] for i in range(3)]
    scaled = _eliminated(rows, [each * unit for each, unit in zip(right, PRIOR, strict=True)])
    return [each * unit for each, unit in zip(scaled, PRIOR, strict=True)]


def _eliminated(rows: list[list[float]], right: list[float]) -> list[float]:
    """Solve a few equations whose matrix is symmetric and as sure of all as the prior; changes both.

    numpy takes ten times as long for so few. No pivot is less than the prior's part of it, but for rounding.
    """
    size = len(rows)
    for at in range(size):
        rows[at][at] = max(rows[at][at], _LEAST_SURE)
        for below in range(at + 1, size):
            factor = rows[below][at] / rows[at][at]
            for column in range(at, size):
                rows[below][column] -= factor * rows[at][column]
            right[below] -= factor * right[at]
    found = [0.0] * size
    for at in reversed(range(size)):
        rest = sum(rows[at][column] * found[column] for column in range(at + 1, size))
        found[at] = (right[at] - rest) / rows[at][at]
    return found
