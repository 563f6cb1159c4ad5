"""Whether the beginning of a step's prompt is computed while what comes before the step still runs.

It pays where a pod that would otherwise prefill nothing has time for it, and where it is long: then the step's
own call finds it cached, and so do all items of a fan-out, which would else begin together and each compute it.
Nobody has asked for it yet, so what waits anywhere goes before, and what is short or cached is left.
"""

from typing import Final

from tidepool_router.workflow.core.choice import Offer
from tidepool_router.workflow.core.frame import Frame
from tidepool_router.workflow.core.plan import StepPlan
from tidepool_router.workflow.core.profiles import STEP_SECONDS, Profiles
from tidepool_router.workflow.core.states import Phase

# Below this a request of its own costs as much as it saves.
LEAST_TOKENS: Final = 512.0
LEAST_BYTES: Final = 1024
# A step that seldom runs is not prepared for.
_LIKELY: Final = 0.5


def next_steps(frame: Frame, name: str, profiles: Profiles) -> list[StepPlan]:
    """Steps that ask a model when `name` has ended, and whose beginning its own call does not compute.

    None where somebody counts the tokens: what is computed ahead is used twice, once uncached and once cached.
    """
    if frame.place.above is not None or _budgeted(frame) or name not in frame.works:
        return []
    pools = _pools(frame.works[name].plan)
    found = []
    for follower in frame.plan.followers.get(name, ()):
        work = frame.works[follower]
        step = work.plan
        near = all(frame.works[need].phase is not Phase.PENDING for need in step.needs)
        alone = step.kind == "llm" and len(_pools(step)) == 1 and not _pools(step) & pools
        likely = profiles.step(frame.plan.name, follower).units.or_else(1.0) >= _LIKELY
        if near and alone and likely and work.phase is Phase.PENDING:
            found.append(step)
    return found


def seconds_until(frame: Frame, name: str, profiles: Profiles) -> float:
    """How long `name` takes, which begins now."""
    return profiles.step(frame.plan.name, name).seconds.or_else(STEP_SECONDS)


def pays(offer: Offer, seconds: float) -> bool:
    """Whether the pod has nothing to prefill, and would have computed it by then."""
    computing = offer.uncached_tokens * offer.prompt_token_seconds
    return (
        offer.ready and not offer.wait_seconds and offer.uncached_tokens >= LEAST_TOKENS and computing <= seconds
    )


def _pools(step: StepPlan) -> set[str]:
    """Whom a step asks; a workflow that is run inside may ask anybody, after a while."""
    asked = step.step.llm or step.step.choose
    return set() if asked is None else {choice.name for choice in asked.pools}


def _budgeted(frame: Frame) -> bool:
    return any(one.plan.budget_tokens is not None for one in frame.board.frames.values())
