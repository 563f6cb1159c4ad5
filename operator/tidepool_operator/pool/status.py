"""The status of a pool, and what of it is worth an event."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidepool_api.status import HISTORY_LENGTH, PoolCondition
from tidepool_operator.pool.conditions import Picture, Verdict, progressing, verdicts
from tidepool_operator.pool.diagnosis import TROUBLES
from tidepool_operator.pool.model import Note, Object, Observed, Severity, format_time, parse_time
from tidepool_operator.pool.reasons import Reason
from tidepool_operator.pool.render import selector, url
from tidepool_operator.pool.variants import status_of
from tidepool_operator.scaling.model import Decision

# Live figures alone are written no more often than this.
FIGURES_SECONDS: Final = 60.0
_MESSAGE_LIMIT: Final = 2000
_LIVE: Final = ("scaling", "figures", "capacity")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The status to write (None: nothing changed) and events."""

    status: Object | None
    notes: tuple[Note, ...] = field(default=())


def outcome(picture: Picture, now: float) -> Outcome:
    """The status as of `now`, compared with the one that the pool has."""
    before = picture.observed.raw_status
    status = _status(picture, now)
    if not _worth_writing(before, status, now):
        return Outcome(None)
    # A merge patch removes only what it names.
    gone = {key: None for key, value in before.items() if key not in status and not _is_unset(value)}
    return Outcome({**status, **gone}, tuple(_notes(before, status)))


def _status(picture: Picture, now: float) -> Object:
    pool, rendered = picture.observed.pool, picture.rendered
    revisions = [entry for entry in (picture.new, *picture.olds) if entry is not None]
    status: Object = {
        "observedGeneration": pool.metadata.generation,
        "replicas": sum(len(entry.live) for entry in revisions),
        "readyReplicas": sum(entry.ready for entry in revisions),
        "updatedReplicas": len(picture.new.live) if picture.new else 0,
        "desiredReplicas": _desired(picture),
        "selector": selector(pool),
        "url": url(pool),
        "conditions": _conditions(picture, now),
    }
    serving = max(revisions, key=lambda entry: (entry.ready, entry is picture.new), default=None)
    if serving is not None and serving.ready:
        status["currentRevision"] = serving.revision
    elif picture.observed.raw_status.get("currentRevision"):
        status["currentRevision"] = picture.observed.raw_status["currentRevision"]
    if rendered is not None:
        status["updateRevision"] = rendered.revision
        if len(picture.parts) > 1 and picture.new is not None:
            status["updateRevision"] = picture.new.revision
        status["engineArgs"] = list(rendered.engine_args)
    adapters = _adapters(picture)
    status |= {"adapters": adapters} if adapters else {}
    if told := status_of(picture.parts):
        status["variants"] = told
    elif picture.refusal is not None and picture.observed.raw_status.get("variants"):
        status["variants"] = picture.observed.raw_status["variants"]
    waits = picture.refusal is not None or picture.preloading is not None
    if waits and picture.observed.raw_status.get("prefill"):
        status["prefill"] = picture.observed.raw_status["prefill"]
    elif picture.prefill is not None:
        status["prefill"] = _role(picture.prefill, generation=pool.metadata.generation, now=now)
    scaling = _scaling(picture.observed)
    figures = _figures(picture.observed)
    capacity = _capacity(picture.observed)
    status |= {"capacity": capacity} if capacity else {}
    return status | ({"scaling": scaling} if scaling else {}) | ({"figures": figures} if figures else {})


def _adapters(picture: Picture) -> list[Object]:
    if picture.adapters is None:
        return list(picture.observed.raw_status.get("adapters") or [])
    return [one.status() for one in picture.adapters]


def _role(picture: Picture, *, generation: int, now: float) -> Object:
    """The part of the status that is of one role's pods."""
    new, before = picture.new, picture.observed.raw_status
    revisions = picture.revisions
    known = {entry["type"]: entry for entry in before.get("conditions") or []}
    verdict = progressing(picture)
    status: Object = {
        "replicas": sum(len(entry.live) for entry in revisions),
        "readyReplicas": sum(entry.ready for entry in revisions),
        "updatedReplicas": len(new.live) if new else 0,
        "desiredReplicas": picture.observed.pool.spec.replicas,
        "conditions": [_condition(verdict, known.get(verdict.type), generation, now)],
    }
    serving = max(revisions, key=lambda entry: (entry.ready, entry is new), default=None)
    if serving is not None and serving.ready:
        status["currentRevision"] = serving.revision
    elif before.get("currentRevision"):
        status["currentRevision"] = before["currentRevision"]
    if picture.rendered is not None:
        status["updateRevision"] = picture.rendered.revision
    return status


def _desired(picture: Picture) -> int:
    decision, pool = picture.observed.decision, picture.observed.pool
    if pool.spec.scaling is not None and decision is not None and pool.spec.scaling.mode == "Recommend":
        return decision.replicas
    return pool.spec.replicas


def _scaling(observed: Observed) -> Object:
    if observed.pool.spec.scaling is None:
        return {}
    if observed.decision is None:
        # A restarted operator has not decided yet; what the one before it said stands.
        return dict(observed.raw_status.get("scaling") or {})
    history = [_decision(entry) for entry in observed.history[:HISTORY_LENGTH]]
    before = (observed.raw_status.get("scaling") or {}).get("history") or []
    known = {(entry["time"], entry["replicas"]) for entry in history}
    history += [entry for entry in before if (entry["time"], entry["replicas"]) not in known]
    refused = observed.decision.refused
    told: Object = {"lastDecision": _decision(observed.decision), "history": history[:HISTORY_LENGTH]}
    if refused is not None:
        message = refused.message[:_MESSAGE_LIMIT]
        told["refused"] = {"replicas": refused.replicas, "reason": refused.reason, "message": message}
    elif (observed.raw_status.get("scaling") or {}).get("refused"):
        told["refused"] = None  # a merge patch removes only what it names
    return told


def _figures(observed: Observed) -> Object:
    if observed.decision is None:
        return dict(observed.raw_status.get("figures") or {})
    known = live_figures(observed.decision)
    return {"time": format_time(observed.decision.time), **known} if known else {}


def live_figures(decision: Decision) -> dict[str, str]:
    """A pool's live figures in buckets, so that a little movement is none."""
    samples = decision.samples
    found = {
        "kvUtilization": _bucketed(samples.get("kvUtilization"), lambda value: f"{5 * round(20 * value)}%"),
        "outputTokensPerSecond": _bucketed(samples.get("outputTokensPerSecond"), _two_digits),
        "timeToFirstToken": _bucketed(
            samples.get("timeToFirstTokenSeconds"), lambda value: f"{_two_digits(1000 * value)}ms"
        ),
    }
    return {field: text for field, text in found.items() if text is not None}


def _capacity(observed: Observed) -> Object:
    """What one replica can serve, in two digits."""
    if observed.decision is None:
        return dict(observed.raw_status.get("capacity") or {})
    learned = observed.decision.learned
    if learned is None:
        return {}
    startup = {"p50": learned.startup_p50_seconds, "p90": learned.startup_p90_seconds}
    known = {name: float(_two_digits(seconds)) for name, seconds in startup.items() if seconds is not None}
    return {
        "prefillTokensPerSecond": float(_two_digits(learned.prefill_tokens_per_second)),
        "outputTokensPerSecond": float(_two_digits(learned.output_tokens_per_second)),
        "learnedFrom": learned.source,
        **({"startupSeconds": known} if known else {}),
    }


def _bucketed(sample: str | None, shown: Callable[[float], str]) -> str | None:
    """A sample that is a figure; what is stale or missing is not shown as one."""
    try:
        # "0.41 (2 of 3 pods)" is a figure, "stale: 0.41" is none.
        return shown(float(sample.partition(" ")[0])) if sample is not None else None
    except ValueError:
        return None


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"


def _decision(decision: Decision) -> Object:
    return {
        "time": format_time(decision.time),
        "replicas": decision.replicas,
        "reason": decision.reason,
        "message": decision.message[:_MESSAGE_LIMIT],
        **({"forecast": decision.forecast[:_MESSAGE_LIMIT]} if decision.forecast else {}),
    }


def _conditions(picture: Picture, now: float) -> list[Object]:
    before = {entry["type"]: entry for entry in picture.observed.raw_status.get("conditions") or []}
    generation = picture.observed.pool.metadata.generation
    return [_condition(verdict, before.get(verdict.type), generation, now) for verdict in verdicts(picture)]


def _condition(verdict: Verdict, before: Mapping[str, Any] | None, generation: int, now: float) -> Object:
    status = "True" if verdict.holds else "False"
    since = before["lastTransitionTime"] if before and before["status"] == status else format_time(now)
    return {
        "type": str(verdict.type),
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": since,
        "reason": str(verdict.reason),
        "message": verdict.message[:_MESSAGE_LIMIT],
    }


def _worth_writing(before: Mapping[str, Any], status: Object, now: float) -> bool:
    """Live figures change all the time."""
    if _steady(before) != _steady(status):
        return True
    if _without_times(before) == _without_times(status):
        return False
    written = parse_time(((before.get("scaling") or {}).get("lastDecision") or {}).get("time"))
    return written is None or now - written >= FIGURES_SECONDS


def _is_unset(value: object) -> bool:
    """The API server fills in lists that nobody wrote."""
    return value is None or value == []


def _steady(status: Mapping[str, Any]) -> Object:
    plain = {key: value for key, value in status.items() if key not in _LIVE and not _is_unset(value)}
    plain["conditions"] = [
        {key: value for key, value in entry.items() if key != "message" or entry["type"] != "ScalingActive"}
        for entry in status.get("conditions") or []
    ]
    last = (status.get("scaling") or {}).get("lastDecision") or {}
    refused = (status.get("scaling") or {}).get("refused") or {}
    plain["decided"] = (last.get("replicas"), last.get("reason"), refused.get("replicas"), refused.get("reason"))
    return plain


def _without_times(status: Mapping[str, Any]) -> tuple[Any, ...]:
    scaling = status.get("scaling") or {}
    last = {key: value for key, value in (scaling.get("lastDecision") or {}).items() if key != "time"}
    messages = [entry.get("message") for entry in status.get("conditions") or []]
    figures = {key: value for key, value in (status.get("figures") or {}).items() if key != "time"}
    return (last, scaling.get("history"), messages, figures, status.get("capacity"))


def _notes(before: Mapping[str, Any], status: Object) -> list[Note]:
    known = {entry["type"]: entry for entry in before.get("conditions") or []}
    notes: dict[str, Note] = {}
    for entry in status["conditions"]:
        earlier = known.get(entry["type"], {})
        if (earlier.get("status"), earlier.get("reason")) == (entry["status"], entry["reason"]):
            continue
        note = _note(entry, bool(earlier))
        if note is not None:
            notes.setdefault(note.reason, note)
    decided = _decided(before, status)
    if decided is not None:
        notes.setdefault(decided.reason, decided)
    return list(notes.values())


def _note(entry: Mapping[str, Any], known: bool) -> Note | None:  # noqa: FBT001 - one caller, beside it
    reason, holds = entry["reason"], entry["status"] == "True"
    if reason in TROUBLES or reason in (Reason.PROGRESS_DEADLINE_EXCEEDED, Reason.MODEL_NAME_SHARED, *_REFUSALS):
        return Note(Severity.WARNING, reason, entry["message"])
    ready = entry["type"] == PoolCondition.READY and holds
    done = entry["type"] == PoolCondition.PROGRESSING and reason in (Reason.ROLLING_OUT, Reason.COMPLETE)
    if ready or (done and known):
        return Note(Severity.NORMAL, reason, entry["message"])
    return None


_REFUSALS: Final[Sequence[Reason]] = (
    Reason.SPEC_INVALID,
    Reason.NAME_TAKEN,
    Reason.POD_TEMPLATE_REJECTED,
    Reason.LEADER_WORKER_SET_MISSING,
    Reason.QUOTA_EXCEEDED,
    Reason.PODS_REFUSED,
)


def _decided(before: Mapping[str, Any], status: Object) -> Note | None:
    new = (status.get("scaling") or {}).get("lastDecision")
    old = (before.get("scaling") or {}).get("lastDecision") or {}
    if new is None or new["replicas"] == old.get("replicas"):
        return None
    return Note(Severity.NORMAL, new["reason"], f"To {new['replicas']} replicas: {new['message']}")
