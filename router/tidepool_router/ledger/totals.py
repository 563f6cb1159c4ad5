"""The running sums that the open entries of a ledger keep up to date."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerSums:
    """Sums over the open entries, then totals since the process began; token figures as in LoadReport."""

    running: int = 0
    unstarted: int = 0  # of `running`: no token seen yet
    queued_tokens: int = 0
    held_tokens: int = 0
    expected_tokens: int = 0
    shared_tokens: int = 0  # of `held_tokens`: in cached prefixes
    opened_total: int = 0
    closed_total: int = 0
    prompt_tokens_total: int = 0  # this and the next: of requests that ended
    cached_tokens_total: int = 0
    output_tokens_total: int = 0
    late_calls_total: int = 0  # calls on entries that were closed before


@dataclass(slots=True)
class Totals:
    """LedgerSums while they change; `token_at` is when the engine was last seen at work."""

    running: int = 0
    unstarted: int = 0
    queued_tokens: int = 0
    held_tokens: int = 0
    expected_tokens: int = 0
    shared_tokens: int = 0  # of `held_tokens`: in cached prefixes
    opened_total: int = 0
    closed_total: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    output_tokens_total: int = 0
    late_calls_total: int = 0
    token_at: float = 0.0

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
