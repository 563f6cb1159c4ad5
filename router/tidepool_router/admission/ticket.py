"""One request that waits, the bounds that it met, and what a queue answers."""

from enum import StrEnum
from typing import NamedTuple


class Refusal(StrEnum):
    """Why a request was turned away; values of the metrics' label `reason`."""

    COUNT = "queue_count"
    BYTES = "queue_bytes"
    TIMEOUT = "queue_timeout"
    DEADLINE = "deadline"
    DISPLACED = "displaced"  # its place went to one of a higher priority, or of a tenant with fewer
    NO_PODS = "no_pods"


class Limits(NamedTuple):
    """Bounds of one queue; timeouts belong to tickets, because they depend on why a request waits."""

    max_waiting: int
    max_bytes: int


class Ticket:
    """One request that waits.

    `priority`: the higher number goes first. `tenant`: whose share it takes; None is a tenant like any other.
    `prompt_tokens` (those that need work) and `output_tokens` are the estimates by which it is ordered and its
    tenant charged. `run`: of one of many requests, the tokens that the whole still needs and the seconds since it
    began; by these it is ordered then: `order_tokens`, `since`. `offered_at` and `deadline` in seconds of the
    clock whose `now` the queue is given; at `deadline` it leaves by `expire`, which is `by_own_deadline` and not
    by the time that the queue lets it wait.
    """

    __slots__ = (
        "body_bytes",
        "by_own_deadline",
        "deadline",
        "offered_at",
        "order_tokens",
        "output_tokens",
        "priority",
        "prompt_tokens",
        "sequence",
        "since",
        "tenant",
        "waiting",
    )

    def __init__(  # noqa: PLR0913 - all that a queue wants to know
        self,
        *,
        priority: int,
        body_bytes: int,
        prompt_tokens: int,
        offered_at: float,
        deadline: float,
        output_tokens: int = 0,
        tenant: str | None = None,
        run: tuple[int, float] | None = None,
    ) -> None:
        self.priority = priority
        self.tenant = tenant
        self.body_bytes = body_bytes
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.offered_at = offered_at
        self.deadline = deadline
        self.by_own_deadline = False
        self.order_tokens = prompt_tokens + output_tokens or 1
        self.since = offered_at
        if run is not None:
            self.order_tokens, self.since = run[0] or 1, offered_at - run[1]
        self.sequence = 0  # order of offers, given by the queue
        self.waiting = False

    @property
    def work_tokens(self) -> int:
        """Tokens that the engine will work through for it, at least one."""
        return self.prompt_tokens + self.output_tokens or 1

    def __repr__(self) -> str:
        return (
            f"<Ticket {self.sequence} priority={self.priority} tenant={self.tenant} work={self.work_tokens} "
            f"offered_at={self.offered_at:g}>"
        )
