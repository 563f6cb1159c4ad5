"""Recorded decisions made again, by the same policy or another: what would have changed."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidepool_api.routing import Policy
from tidepool_router.picking.decision import Decision
from tidepool_router.picking.policies import make_picker
from tidepool_router.picking.policy import Picker
from tidepool_router.picking.predicted import hit_tokens, parts_of


@dataclass(slots=True)
class Replay:
    """Sums over decisions. Harm is in seconds, as Predicted sees it, of the pods picked then and picked now."""

    decisions: int = 0
    same: int = 0
    harm_then_seconds: float = 0.0
    harm_now_seconds: float = 0.0
    picked: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "decisions": self.decisions,
            "same": self.same,
            "harm_then_seconds": round(self.harm_then_seconds, 6),
            "harm_now_seconds": round(self.harm_now_seconds, 6),
            "picked": dict(self.picked.most_common()),
            "reasons": dict(self.reasons.most_common()),
        }


def replay(decisions: Iterable[Decision], policy: Policy) -> Replay:
    """Each pick made again with what was seen then; what it would have changed for later ones is not played."""
    pickers: dict[str, Picker] = {}
    result = Replay()
    for decision in decisions:
        picker = pickers.setdefault(decision.pool, make_picker(policy))
        pods = [pod.candidate for pod in decision.pods]
        pick = picker.pick(pods, decision.request, decision.facts, decision.cached)
        result.decisions += 1
        result.same += pick.index == decision.picked
        result.harm_then_seconds += harm_at(decision, decision.picked)
        result.harm_now_seconds += harm_at(decision, pick.index)
        result.picked[decision.pods[pick.index].key] += 1
        result.reasons[pick.reason] += 1
    return result


def harm_at(decision: Decision, index: int) -> float:
    """Seconds of harm that the request would do on a pod."""
    pod = decision.pods[index].candidate
    hit = hit_tokens(decision.cached, pod, decision.request, decision.facts)
    return math.fsum(parts_of(pod, decision.request, hit, decision.adapter))
