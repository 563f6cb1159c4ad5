"""What a run still needs: tokens, for its place in queues, and seconds along its critical path, for its deadline.

Renewed for each call, from what has ended and what steps like those that have not have taken before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tidepool_router.workflow.core.frame import Frame
from tidepool_router.workflow.core.plan import Plan, StepPlan
from tidepool_router.workflow.core.profiles import OUTPUT_TOKENS, PROMPT_TOKENS, STEP_SECONDS, Profiles
from tidepool_router.workflow.core.run import Run
from tidepool_router.workflow.core.states import ENDED, Call, Key, Verdict
from tidepool_router.workflow.core.work import StepWork

# Steps of these kinds ask models; the others have work of their own elsewhere.
_ASKING: Final = frozenset(("llm", "choose", "workflow"))
_LIKELY: Final = 0.5  # of the runs, in which a step runs
_TURNS: Final = 2.0  # of a step that chooses, before any was seen


@dataclass(frozen=True, slots=True)
class Outlook:
    """`tokens` of the whole run from now on, this call's own among them. `tail_seconds`: after this call.

    `least_tail_seconds`: if all goes as fast as it ever has. With less left than that the run is late for certain.
    """

    tokens: float
    tail_seconds: float
    least_tail_seconds: float


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a call stands among all: tokens that its run still needs, and the seconds since that began.

    `slack_seconds`: what the call may take so that the run is in time, all else as usual. `latest_seconds`: after
    which it is late for certain.
    """

    workflow: str = ""
    tokens: int = 1
    waited_seconds: float = 0.0
    slack_seconds: float = float("inf")
    latest_seconds: float = float("inf")


def standing(run: Run, call: Call, profiles: Profiles, waited_seconds: float, now: float) -> Standing:
    """Of a call of a run that began so many seconds ago."""
    view = outlook(run.root, call.key, profiles)
    frame = run.frame(call.key.within)
    left = call.until - now
    whole = run.deadline - now if run.verdict is Verdict.RUNNING else left
    return Standing(
        "" if frame is None else frame.plan.name,
        round(view.tokens),
        max(0.0, waited_seconds),
        min(left, whole - view.tail_seconds),
        max(0.0, min(left, whole - view.least_tail_seconds)),
    )


def outlook(root: Frame, key: Key, profiles: Profiles) -> Outlook:
    """Of the run of `root`, before the call `key`."""
    tokens = frame_tokens(root, profiles)
    tail = least = 0.0
    for frame, step in _around(root, key):
        if frame.place.above is None:
            after = tails(frame.plan, frame.works, profiles)
            tail += after[step][0] if step in after else 0.0
            least += after[step][1] if step in after else 0.0
    return Outlook(max(1.0, tokens), tail, least)


def frame_tokens(frame: Frame, profiles: Profiles) -> float:
    """What its steps still need. Units that are made of others count as a whole, less what is used of them."""
    total = 0.0
    for work in frame.works.values():
        if work.ended or work.plan.kind not in _ASKING:
            continue
        profile = profiles.step(frame.plan.name, work.plan.name)
        each = profile.tokens.or_else(_first_guess(work.plan))
        if not work.opened:
            total += each * profile.units.or_else(1.0)
            continue
        for unit_key, unit in work.keyed():
            if unit.phase not in ENDED:
                nest = frame.nests.get(unit_key)
                used = unit.tokens + (0 if nest is None else nest.tokens)
                total += max(each - used, min(each, PROMPT_TOKENS + OUTPUT_TOKENS) / 2)
    return total


def sole_pools(plan: Plan, profiles: Profiles, plans: Mapping[str, Plan] = MappingProxyType({})) -> frozenset[str]:
    """Pools that a run of the plan will ask, more likely than not, with no other in their place.

    `plans`: of workflows that its steps run, by name.
    """
    found: set[str] = set()
    waiting, seen = [plan], set()
    while waiting:
        one = waiting.pop()
        seen.add(one.name)
        for name, step in one.steps.items():
            if profiles.step(one.name, name).units.or_else(1.0) < _LIKELY:
                continue
            asked = step.step.llm or step.step.choose
            if asked is not None and len(asked.pools) == 1:
                found.add(asked.pools[0].name)
            inside = None if step.step.workflow is None else plans.get(step.step.workflow.name)
            if inside is not None and inside.name not in seen:
                waiting.append(inside)
    return frozenset(found)


def tails(plan: Plan, works: Mapping[str, StepWork], profiles: Profiles) -> dict[str, tuple[float, float]]:
    """For each step the seconds of the longest way from its end to the workflow's, and the least of them."""
    found: dict[str, tuple[float, float]] = {}
    for name in reversed(plan.ordered):
        longest = least = 0.0
        for follower in plan.followers[name]:
            if works[follower].ended:
                continue
            profile = profiles.step(plan.name, follower)
            rounds = _rounds(works[follower], profile.units.or_else(1.0))
            seconds = profile.seconds.or_else(STEP_SECONDS) * rounds
            best = profile.seconds.at_least() * min(1.0, rounds)
            after = found[follower]
            longest, least = max(longest, seconds + after[0]), max(least, best + after[1])
        found[name] = longest, least
    return found


def _rounds(work: StepWork, units: float) -> float:
    """How many of its units run one after the other; below one: it may not run at all."""
    return max(1.0, units / work.plan.step.max_parallel) if units >= 1.0 else units


def _around(root: Frame, key: Key) -> list[tuple[Frame, str]]:
    """Frames from the outermost to the one of the key, each with its step on the way there."""
    found = []
    within = ""
    for owner in key.owners():
        frame = root if not within else root.board.frames.get(within)
        if frame is not None:
            found.append((frame, owner[len(within) :].partition("[")[0]))
        rest = key.within[len(owner) :]
        within = owner + rest[: rest.index("/") + 1]
    frame = root if not within else root.board.frames.get(within)
    if frame is not None:
        found.append((frame, key.step))
    return found


def _first_guess(step: StepPlan) -> float:
    one = PROMPT_TOKENS + OUTPUT_TOKENS
    return one if step.kind == "llm" else _TURNS * one
