"""Whether a rollout gets on, and when to look again."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidepool_api.status import PoolCondition
from tidepool_api.units import duration_seconds
from tidepool_operator.pool.fleet import Counted, PodFacts
from tidepool_operator.pool.model import Observed, parse_time
from tidepool_operator.pool.reasons import Reason

# A pod gets no readier by waiting longer; one second more than the deadline is surely after it.
_AFTER_SECONDS: Final = 1.0


def stuck(observed: Observed, new: Counted, olds: Sequence[Counted], now: float) -> bool:
    """Whether a pod of the new revision has not become ready within the deadline.

    Its time starts anew whenever the revision gets on: pods that wait for the places of others are not to blame.
    A rollout that was stopped stays so, also when the pods that were late had to make place for old ones, until
    the spec asks for another revision or all pods of this one are ready after all.
    """
    deadline = duration_seconds(observed.pool.spec.rollout.progress_deadline)
    before = stopped(observed, new.revision)
    if new.replicas and not new.live:
        return before or (new.deployment is not None and now - _begun(observed, new, now) > deadline)
    if any(now - _since(pod, new) > deadline for pod in new.live if not pod.ready):
        return True
    return before and _gave_up(observed, new, olds)


def until_deadline(observed: Observed, new: Counted, now: float) -> float | None:
    """Seconds to the next deadline: nothing happens when one passes, so a look has to be asked for."""
    late = [pod for pod in new.live if not pod.ready]
    if not late:
        return None
    deadline = duration_seconds(observed.pool.spec.rollout.progress_deadline)
    left = min(_since(pod, new) + deadline - now for pod in late)
    return left + _AFTER_SECONDS if left > 0 else None


def stopped(observed: Observed, revision: str) -> bool:
    """Whether the status says that this very revision did not come up in time."""
    same = observed.raw_status.get("updateRevision") == revision
    return same and _progressing(observed).get("reason") == Reason.PROGRESS_DEADLINE_EXCEEDED


def said(observed: Observed) -> str:
    """What the status says of the progress."""
    return str(_progressing(observed).get("message", ""))


def _gave_up(observed: Observed, new: Counted, olds: Sequence[Counted]) -> bool:
    """Nobody is late: either all have come, or those that had not were taken away.

    While a revision is held the old ones take over what it lacks, so that together they are more than wanted when
    its last pod comes after all, and no more than that when its pods went.
    """
    running = sum(old.replicas for old in olds)
    wanted = observed.pool.spec.replicas
    if not running and observed.raw_status.get("currentRevision") not in {old.revision for old in olds}:
        return False  # there is nothing to go back to
    if wanted and new.ready >= wanted:
        return False
    return not new.replicas or running + new.replicas <= wanted


def _since(pod: PodFacts, new: Counted) -> float:
    return max(pod.created_at, pod.changed_at, new.changed_at)


def _begun(observed: Observed, new: Counted, now: float) -> float:
    """When pods were first asked for: a Deployment of the history is older than that."""
    progressing = _progressing(observed)
    since = parse_time(progressing.get("lastTransitionTime")) if progressing.get("status") == "True" else None
    return max(new.changed_at, now if since is None else since)


def _progressing(observed: Observed) -> Mapping[str, Any]:
    conditions = observed.raw_status.get("conditions") or []
    found: Mapping[str, Any] = next((one for one in conditions if one["type"] == PoolCondition.PROGRESSING), {})
    return found
