"""What a ledger tells of itself: a snapshot of its sums."""

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
