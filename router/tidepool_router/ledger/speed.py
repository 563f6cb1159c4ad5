"""How fast a pool's engines are, learned from what its requests took: seconds a prompt token, seconds a step.

A pool has two lines: time to first token over the uncached tokens that had to be worked through, and time per
output token over the requests that ran beside it. A pod has two factors on them, so that a slow one shows within
some dozen answers and a new one starts from what the pool knows. Where the pool has several kinds of accelerator,
a new pod's factors start from those of its kind.
"""

from math import copysign, exp, log
from typing import Final

# Priors that weigh as much as this many answers and are forgotten with them. 15,928 prompt tokens a second:
# llm-d's peak of Qwen3-32B on two H100. 10 ms a step and 0.1 ms more for each request: an 8B model on one.
_PRIOR_WEIGHT: Final = 4.0
_PROMPT_TOKEN_SECONDS: Final = 1.0 / 15_928
_FIRST_TOKEN_SECONDS: Final = 0.03
_STEP_SECONDS: Final = 0.01
_STEP_SECONDS_A_REQUEST: Final = 0.0001
# The past weighs half after about 140 answers of the pool, and a factor after 14 of the pod once it has that many.
_KEEP: Final = 0.995
_FACTOR_RATE: Final = 0.05
_MEAN_RATE: Final = 0.02
# A pod's factor needs this many answers to be believed by half.
_FACTOR_DOUBT: Final = 8.0
# Equal pods differ by as much, in logarithms, from one time to the next; a pick must not follow that.
_FACTOR_NOISE: Final = 0.12
_LEAST_FACTOR: Final = 0.1
_MOST_FACTOR: Final = 10.0
# What took more than this many times as long as expected waited for something else than work.
_WINSOR: Final = 3.0
# Of an idle pod: how far what it showed under load is believed at most, and in which time by half as much. A pod
# that others outdo is not picked while they are idle too, so its answers cannot show that it has come to itself.
_IDLE_SEEN: Final = 32.0
_IDLE_HALF_LIFE_SECONDS: Final = 20.0
# A new pod's factors start as believed as those of one of its kind that has given so many answers.
_KIN_SEEN: Final = 128.0
_MOST_KINDS: Final = 32


class Line:
    """y = base + slope * x by least squares over decayed observations; neither is ever below zero."""

    __slots__ = ("_w", "_x", "_xx", "_xy", "_y", "base", "slope")

    def __init__(self, points: tuple[tuple[float, float], ...], weight: float) -> None:
        self._w = self._x = self._y = self._xx = self._xy = 0.0
        self.base = self.slope = 0.0
        for x, y in points:
            self._add(x, y, weight)
        self._solve()

    def at(self, x: float) -> float:
        """Expected y."""
        return self.base + self.slope * x

    def learn(self, x: float, y: float) -> None:
        """One observation."""
        self._w *= _KEEP
        self._x *= _KEEP
        self._y *= _KEEP
        self._xx *= _KEEP
        self._xy *= _KEEP
        self._add(x, y, 1.0)
        self._solve()

    def _add(self, x: float, y: float, weight: float) -> None:
        self._w += weight
        self._x += weight * x
        self._y += weight * y
        self._xx += weight * x * x
        self._xy += weight * x * y

    def _solve(self) -> None:
        spread = self._w * self._xx - self._x * self._x
        slope = (self._w * self._xy - self._x * self._y) / spread if spread > 1e-12 * self._w * self._xx else 0.0
        base = (self._y - slope * self._x) / self._w
        if base < 0.0:
            base, slope = 0.0, self._xy / self._xx
        elif slope < 0.0:
            base, slope = self._y / self._w, 0.0
        self.base, self.slope = base, slope


class KinSpeed:
    """Mean factors, in logarithms, of a pool's pods of one kind, and how many answers they rest on."""

    __slots__ = ("prefill_seen", "prefill_skew", "step_seen", "step_skew")

    def __init__(self) -> None:
        self.prefill_skew = self.step_skew = 0.0
        self.prefill_seen = self.step_seen = 0.0


class PoolSpeed:
    """Lines of a pool. `prefill`: seconds over uncached tokens; `step`: seconds an output token over requests."""

    def __init__(self) -> None:
        self.prefill = Line(
            (
                (512.0, _FIRST_TOKEN_SECONDS + 512.0 * _PROMPT_TOKEN_SECONDS),
                (8192.0, _FIRST_TOKEN_SECONDS + 8192.0 * _PROMPT_TOKEN_SECONDS),
            ),
            _PRIOR_WEIGHT / 2,
        )
        self.kinds: dict[str, KinSpeed] = {}
        # Logarithms of the pods' mean factors, which the lines are to take over.
        self.prefill_skew = self.step_skew = 0.0
        self.step = Line(
            ((1.0, _STEP_SECONDS), (64.0, _STEP_SECONDS + 63.0 * _STEP_SECONDS_A_REQUEST)), _PRIOR_WEIGHT / 2
        )


class Speed:
    """One pod's times, in seconds, as a pick reads them.

    `prompt_token_seconds`: each uncached prompt token; `step_seconds`: one output token with nothing beside it;
    `step_seconds_a_request`: what each request beside it adds.
    """

    __slots__ = ("prompt_token_seconds", "step_seconds", "step_seconds_a_request")

    def __init__(
        self, prompt_token_seconds: float = 0.0, step_seconds: float = 0.0, step_seconds_a_request: float = 0.0
    ) -> None:
        self.prompt_token_seconds = prompt_token_seconds
        self.step_seconds = step_seconds
        self.step_seconds_a_request = step_seconds_a_request


class PodSpeed(Speed):
    """A pod's times as they are learned."""

    __slots__ = (
        "_pool",
        "_prefill_seen",
        "_prefill_skew",
        "_step_seen",
        "_step_skew",
        "first_token_seconds",
        "kin",
    )

    def __init__(self, pool: PoolSpeed) -> None:
        super().__init__()
        self._pool = pool
        self._prefill_skew = self._step_skew = 0.0  # logarithms of the factors
        self._prefill_seen = self._step_seen = 0.0
        self.first_token_seconds = 0.0
        self.kin: KinSpeed | None = None  # of its kind of accelerator, once it told one
        self.refresh()

    def join(self, kind: str) -> None:
        """Be a pod of that kind: what was not seen of this one yet is as with the others."""
        kinds = self._pool.kinds
        if kind not in kinds and len(kinds) >= _MOST_KINDS:
            return
        kin = self.kin = kinds.setdefault(kind, KinSpeed())
        if self._prefill_seen == 0.0:
            self._prefill_skew, self._prefill_seen = kin.prefill_skew, min(kin.prefill_seen, _KIN_SEEN)
        if self._step_seen == 0.0:
            self._step_skew, self._step_seen = kin.step_skew, min(kin.step_seen, _KIN_SEEN)
        self.refresh()

    def rested(self, seconds: float) -> None:
        """So long it had nothing to do: it is believed to be slow or fast less, and less so with time.

        Where the pool has several kinds of accelerator, it is believed to be as its kind is.
        """
        keep: float = 0.5 ** (seconds / _IDLE_HALF_LIFE_SECONDS)
        kin = self.kin
        if kin is None:
            self._prefill_seen = keep * min(self._prefill_seen, _IDLE_SEEN)
            self._step_seen = keep * min(self._step_seen, _IDLE_SEEN)
        else:
            self._prefill_skew = kin.prefill_skew + keep * (self._prefill_skew - kin.prefill_skew)
            self._step_skew = kin.step_skew + keep * (self._step_skew - kin.step_skew)
        self.refresh()

    def refresh(self) -> None:
        """Take in what the pool has learned from other pods."""
        factor = _factor(self._prefill_skew, self._prefill_seen)
        self.prompt_token_seconds = self._pool.prefill.slope * factor
        self.first_token_seconds = self._pool.prefill.base * factor
        factor = _factor(self._step_skew, self._step_seen)
        self.step_seconds = self._pool.step.base * factor
        self.step_seconds_a_request = self._pool.step.slope * factor

    def started(self, worked_tokens: int, seconds: float) -> None:
        """A first token came after `seconds`, in which `worked_tokens` uncached tokens were worked through."""
        line = self._pool.prefill
        ratio = seconds / max(1e-6, line.at(worked_tokens))
        self._prefill_seen += 1.0
        self._prefill_skew += max(_FACTOR_RATE, 1.0 / self._prefill_seen) * (
            _logarithm(ratio) - self._prefill_skew
        )
        pool = self._pool
        pool.prefill_skew += _MEAN_RATE * (self._prefill_skew - pool.prefill_skew)
        kin = self.kin
        if kin is not None:
            kin.prefill_seen += 1.0
            rate = max(_FACTOR_RATE, 1.0 / kin.prefill_seen)
            kin.prefill_skew += rate * (self._prefill_skew - kin.prefill_skew)
        expected = _factor(self._prefill_skew, self._prefill_seen) * line.at(worked_tokens)
        line.learn(worked_tokens, min(seconds, _WINSOR * expected) * exp(pool.prefill_skew - self._prefill_skew))
        self.refresh()

    def stepped(self, requests: float, seconds: float) -> None:
        """Output tokens came every `seconds` beside so many requests."""
        line = self._pool.step
        ratio = seconds / max(1e-6, line.at(requests))
        self._step_seen += 1.0
        self._step_skew += max(_FACTOR_RATE, 1.0 / self._step_seen) * (_logarithm(ratio) - self._step_skew)
        pool = self._pool
        pool.step_skew += _MEAN_RATE * (self._step_skew - pool.step_skew)
        kin = self.kin
        if kin is not None:
            kin.step_seen += 1.0
            rate = max(_FACTOR_RATE, 1.0 / kin.step_seen)
            kin.step_skew += rate * (self._step_skew - kin.step_skew)
        expected = _factor(self._step_skew, self._step_seen) * line.at(requests)
        line.learn(requests, min(seconds, _WINSOR * expected) * exp(pool.step_skew - self._step_skew))
        self.refresh()

    def answered(self, worked_tokens: int, requests: float, output_tokens: int, seconds: float) -> None:
        """A whole answer took so long and showed nothing in between: its parts as expected, in scale."""
        prefill = self.first_token_seconds + worked_tokens * self.prompt_token_seconds
        step = self.step_seconds + requests * self.step_seconds_a_request
        scale = seconds / max(1e-6, prefill + output_tokens * step)
        self.started(worked_tokens, scale * prefill)
        self.stepped(requests, scale * step)


def _logarithm(ratio: float) -> float:
    return log(min(_MOST_FACTOR, max(_LEAST_FACTOR, ratio)))


def _factor(skew: float, seen: float) -> float:
    sure = abs(skew) * seen / (seen + _FACTOR_DOUBT) - _FACTOR_NOISE
    return exp(copysign(sure, skew)) if sure > 0.0 else 1.0
