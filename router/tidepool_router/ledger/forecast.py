"""When an engine's KV blocks will be exhausted by the requests that run in it, and how many they come to at most.

Every running request takes one more token a step, and gives all of its tokens back when it ends. So what is in
use rises by as many tokens a step as requests run, falls at each expected end, and is highest right before one of
them: going through the ends in their order finds the peak and the moment when the room is used up, before any
gauge that tells what is in use now.
"""

from collections.abc import Sequence

import msgspec


class KvForecast(msgspec.Struct, frozen=True, gc=False):
    """`exhausted_seconds` from now, None where no exhaustion is foreseen; `peak_tokens` in use at the highest."""

    exhausted_seconds: float | None
    peak_tokens: int


def foresee(
    used_tokens: int,
    running: Sequence[tuple[int, int]],
    capacity_tokens: int,
    step_seconds: float,
    step_seconds_a_request: float = 0.0,
) -> KvForecast:
    """What comes of the requests that run now, if no other one comes: O(n log n).

    `running` has for each request the output tokens still expected, and the KV tokens of `used_tokens` that are
    its own. A step takes `step_seconds` and `step_seconds_a_request` more for each request that runs in it.
    """
    used = peak = used_tokens
    exhausted = 0.0 if used >= capacity_tokens else None
    seconds, steps, alive = 0.0, 0, len(running)
    for remaining, own in sorted(running):
        more = remaining - steps
        if more > 0:
            step = step_seconds + alive * step_seconds_a_request
            grown = alive * more
            if exhausted is None and used + grown >= capacity_tokens:
                exhausted = seconds + (capacity_tokens - used) / alive * step
            used += grown
            peak = max(peak, used)
            seconds += more * step
            steps = remaining
        used -= own + remaining
        alive -= 1
    return KvForecast(exhausted, peak)
