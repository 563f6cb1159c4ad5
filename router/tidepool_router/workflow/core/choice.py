"""Which pool answers a step: a better answer may take longer, by as much as the deadline leaves time for.

What an answer takes at a pool is the wait for a place, the prompt tokens that the pool does not have cached (all
of them, where a run changes its model), and the answer at the speed of the requests beside it. So queues, prefills
and quality are weighed by one rule, in seconds: a point of quality is worth a part of the slack.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Of the slack, for a whole point of quality (from 0 to 1). A call whose slack is a minute gets an answer that is
# better by a quarter where that takes at most five seconds more. Chosen on the simulator's training seeds.
SLACK_SHARE: Final = 0.33


@dataclass(frozen=True, slots=True)
class Offer:
    """What a pool would do with a call. `ready`: it has pods; one at zero wakes only where nobody else answers.

    `quality`: 0 to 1, None where nobody has measured it. `wait_seconds`: until the call begins.
    `uncached_tokens` of its prompt, at `prompt_token_seconds`; `output_tokens` at `step_seconds`.
    """

    pool: str
    quality: float | None
    wait_seconds: float
    uncached_tokens: float
    output_tokens: float
    prompt_token_seconds: float
    step_seconds: float
    success: float = 1.0
    ready: bool = True

    @property
    def seconds(self) -> float:
        """Until the whole answer is there; tries that fail are made again."""
        work = self.uncached_tokens * self.prompt_token_seconds + self.output_tokens * self.step_seconds
        return self.wait_seconds + work / max(0.1, self.success)


def ranked(offers: Sequence[Offer], slack_seconds: float, *, cheap: bool) -> list[Offer]:
    """Candidates, the one to ask first at the front; the others are asked where it fails.

    `slack_seconds`: what the call may take so that the run is in time; where nobody is in time the quickest goes
    first. `cheap`: the budget is spent, and the one of least quality is asked.
    """
    if cheap:
        return sorted(offers, key=lambda offer: (not offer.ready, offer.quality or 0.0, offer.seconds))
    worth = SLACK_SHARE * max(0.0, slack_seconds)

    def rank(offer: Offer) -> tuple[bool, bool, float]:
        late = offer.seconds > slack_seconds
        return not offer.ready, late, offer.seconds - (0.0 if late else worth * (offer.quality or 0.0))

    return sorted(offers, key=rank)
