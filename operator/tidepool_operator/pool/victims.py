"""Which pods go when a revision shrinks: a mark first, and the count only when the mark is seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidepool_api.load import LoadReport
from tidepool_operator.pool.fleet import PodFacts
from tidepool_operator.pool.model import Mark

# Below every pod without a mark (0) and every mark that people are likely to set.
VICTIM_COST: Final = -1000


@dataclass(frozen=True, slots=True)
class Choice:
    """Marks to set or take away, and whether the count may be lowered: all marks are seen."""

    marks: tuple[Mark, ...]
    marked: bool


def choose(pods: Sequence[PodFacts], going: int, loads: Mapping[str, LoadReport]) -> Choice:
    """Mark the `going` least loaded of a revision's live pods.

    Pods that do not serve go before all others by the ReplicaSet's own order and need no mark. A mark is kept once
    it is set, or it would wander with the load. A pod that does not tell its load counts as the most loaded.
    """
    serving = [pod for pod in pods if pod.ready]
    count = max(0, going - (len(pods) - len(serving)))
    chosen = {pod.name for pod in sorted(serving, key=lambda pod: _rank(pod, loads))[:count]}
    set_marks = [Mark(pod.name, VICTIM_COST) for pod in pods if pod.name in chosen and pod.cost != VICTIM_COST]
    lifted = [Mark(pod.name, None) for pod in pods if pod.cost == VICTIM_COST and pod.name not in chosen]
    return Choice((*lifted, *set_marks), marked=not set_marks)


def _rank(pod: PodFacts, loads: Mapping[str, LoadReport]) -> tuple[bool, float, float, str]:
    report = loads.get(pod.name)
    requests = float("inf") if report is None else report.running + report.waiting
    tokens = 0 if report is None else report.queued_tokens + report.held_tokens + report.expected_tokens
    return (pod.cost != VICTIM_COST, requests, tokens, pod.name)
