"""AgentWorkflows: the verdict of the review as conditions."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Final

from tidepool_api.language.problems import Problem
from tidepool_api.language.review import review
from tidepool_api.problems import workflow_problems
from tidepool_api.workflow import MODEL_PREFIX
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, MODEL_POOL, Kind, Object
from tidepool_operator.cluster.store import Key, Store
from tidepool_operator.errors import NotFound
from tidepool_operator.events import Recorder
from tidepool_operator.pool.model import Note, Severity

_SHOWN: Final = 10


class Workflows:
    """Judges one workflow at a time, again whenever it, a pool of its namespace or a namesake comes or goes."""

    def __init__(self, api: Api, store: Store, recorder: Recorder) -> None:
        self._api = api
        self._store = store
        self._recorder = recorder

    async def __call__(self, key: Key) -> float | None:
        """Write the conditions where they changed. Raises ApiError."""
        raw = self._store.get(AGENT_WORKFLOW, key)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return None
        # What passed an older CRD's schema is looked at again.
        shape = [Problem(found.field, found.message) for found in workflow_problems(raw.get("spec") or {})]
        found = review(raw, self._names(MODEL_POOL, key), self._names(AGENT_WORKFLOW, key))
        problems = shape or found
        before = raw.get("status") or {}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = workflow_status(raw, problems, now, self._namesakes(key))
        if all(before.get(field) == value for field, value in status.items()):
            return None
        try:
            written = await self._api.status(AGENT_WORKFLOW, key.namespace, key.name, status)
        except NotFound:
            return None
        self._store.put(AGENT_WORKFLOW, written)
        ready = status["conditions"][1]
        severity = Severity.NORMAL if ready["status"] == "True" else Severity.WARNING
        await self._recorder.post(raw, Note(severity, ready["reason"], ready["message"]))
        return None

    def _namesakes(self, key: Key) -> Sequence[str]:
        """Workflows of other namespaces that have its name; a gateway's clients may name no namespace."""
        others = (one for one in self._store.keys(AGENT_WORKFLOW) if one.name == key.name and one != key)
        return sorted(map(str, others))

    def _names(self, kind: Kind, key: Key) -> Collection[str]:
        return {found.name for found in self._store.keys(kind) if found.namespace == key.namespace}


def workflow_status(raw: Object, problems: Sequence[Problem], now: str, namesakes: Sequence[str] = ()) -> Object:
    """Accepted: the workflow is sound in itself. Ready: what it refers to is there, too."""
    generation = raw["metadata"].get("generation", 0)
    before = {entry["type"]: entry for entry in (raw.get("status") or {}).get("conditions") or []}
    own = [problem for problem in problems if not problem.accepted]
    verdicts = {
        "Accepted": (own, "Accepted", "The workflow is sound."),
        "Ready": (
            problems,
            "NameShared" if namesakes else "Ready",
            f"All that it refers to is there; {_called(raw, namesakes)}.",
        ),
    }
    conditions = []
    for kind, (found, reason, message) in verdicts.items():
        status = "False" if found else "True"
        earlier = before.get(kind, {})
        since = earlier["lastTransitionTime"] if earlier.get("status") == status else now
        conditions.append(
            {
                "type": kind,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": since,
                "reason": str(found[0].reason) if found else reason,
                "message": _message(found) if found else message,
            }
        )
    return {"observedGeneration": generation, "conditions": conditions}


def _called(raw: Object, namesakes: Sequence[str]) -> str:
    name, namespace = raw["metadata"]["name"], raw["metadata"].get("namespace", "")
    if not namesakes:
        return f"call it as the model {MODEL_PREFIX}{name}"
    rest = len(namesakes) - _SHOWN
    others = ", ".join(namesakes[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
    return (
        f"its name is that of {others} too, and {MODEL_PREFIX}{name} leads gateways to the first of them by "
        f"namespace: call this one as the model {MODEL_PREFIX}{namespace}/{name}"
    )


def _message(problems: Sequence[Problem]) -> str:
    shown = "; ".join(str(problem) for problem in problems[:_SHOWN])
    rest = len(problems) - _SHOWN
    return f"{shown}; and {rest} more" if rest > 0 else shown
