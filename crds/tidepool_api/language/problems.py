"""What a review finds, and the words for a name that is nearly right."""

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Stable words for conditions; what is NOT_FOUND can heal without a change to the workflow."""

    INVALID_STEP = "InvalidStep"
    INVALID_DEPENDS = "InvalidDepends"
    UNKNOWN_STEP = "UnknownStep"
    DEPENDENCY_CYCLE = "DependencyCycle"
    INVALID_TEMPLATE = "InvalidTemplate"
    INVALID_SCHEMA = "InvalidSchema"
    INVALID_BUDGET = "InvalidBudget"
    POOL_NOT_FOUND = "PoolNotFound"
    WORKFLOW_NOT_FOUND = "WorkflowNotFound"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to put right: where (`spec.steps[2].depends`), and what to do about it."""

    path: str
    message: str
    reason: Reason = Reason.INVALID_STEP

    @property
    def accepted(self) -> bool:
        """Whether the workflow may still be Accepted: what it refers to is missing, itself it is sound."""
        return self.reason in (Reason.POOL_NOT_FOUND, Reason.WORKFLOW_NOT_FOUND)

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def near_miss(name: str, known: Collection[str]) -> str:
    """`; did you mean 'plan'?` for the known name that comes nearest, or nothing."""
    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def listing(names: Collection[str], limit: int = 8) -> str:
    """Names in a sentence, cut off after `limit`."""
    shown = [repr(name) for name in names][:limit]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
