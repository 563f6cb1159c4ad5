"""The running sums that the open entries of a ledger keep up to date."""

from tidepool_router.ledger.sums import LedgerSums


class Totals:
    """LedgerSums while they change; `token_at` is when the engine was last seen at work."""

    __slots__ = (
        "cached_tokens_total",
        "closed_total",
        "expected_tokens",
        "held_tokens",
        "late_calls_total",
        "opened_total",
        "output_tokens_total",
        "prompt_tokens_total",
        "queued_tokens",
        "running",
        "shared_tokens",
        "token_at",
        "unstarted",
    )

    def __init__(self) -> None:
        self.running = self.unstarted = 0
        self.queued_tokens = self.held_tokens = self.expected_tokens = self.shared_tokens = 0
        self.opened_total = self.closed_total = 0
        self.prompt_tokens_total = self.cached_tokens_total = self.output_tokens_total = 0
        self.late_calls_total = 0
        self.token_at = 0.0

    def snapshot(self) -> LedgerSums:
        """These figures as they are now."""
        return LedgerSums(
            self.running,
            self.unstarted,
            self.queued_tokens,
            self.held_tokens,
            self.expected_tokens,
            self.shared_tokens,
            self.opened_total,
            self.closed_total,
            self.prompt_tokens_total,
            self.cached_tokens_total,
            self.output_tokens_total,
            self.late_calls_total,
        )
