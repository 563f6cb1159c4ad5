"""One pod's load between its reports: the last report, plus own dispatches since, less own endings since.

Scraped or reported figures alone send a burst to one pod; own counting alone drifts and sees no other gateway.
A report's `opened_total` and `closed_total` tell how many of the dispatches and endings it already includes. With
other gateways on the pod they count those too, so for a moment the sum may be low: Pod never goes below own
in-flight, and the next report corrects it.
"""

from collections import deque
from typing import Final

from tidepool_api.load import LoadReport

# A dispatch that no counter accounts for within this time never reached the pod, or was lost with a report.
_FORGOTTEN_SECONDS: Final = 1.0
# The first report of a process has no counters to compare: what was sent this long before it is taken as included.
_TRAVEL_SECONDS: Final = 0.05
# Without reports the lines only grow; beyond this the oldest is taken as included.
_LONGEST_LINE: Final = 8192
# A pod is shared when others opened more than so many requests, and more than this share of ours, of the last:
# half of the past is forgotten after 23.
_KEEP: Final = 0.97
_FOREIGN_REQUESTS: Final = 2.0
_FOREIGN_SHARE: Final = 0.2


class Dispatch:
    """One own request to the pod, as the fusion counts it."""

    __slots__ = ("at", "known", "presumed_tokens", "queued_tokens", "tokens")

    def __init__(self, tokens: int, at: float, queued_tokens: int = 0) -> None:
        self.tokens = tokens
        self.queued_tokens = queued_tokens
        self.presumed_tokens = 0  # of these: worked through by now, though no token showed it
        self.at = at
        self.known = False  # some report includes it


class Company:
    """Of a pool: at how many of its pods others were seen, who then send to all of them."""

    __slots__ = ("shared_pods",)

    def __init__(self) -> None:
        self.shared_pods = 0


class LoadFusion:
    """The figures without underscore are kept current by each call; reading them costs nothing.

    `queued_tokens` are, of `tokens`, uncached prompt tokens that the engine has still to work through, and
    `unreported_tokens`, of those, of own requests that no report includes yet. `shared`
    says that the pod's counters moved by more than own requests lately: then only reports tell the whole load.
    """

    __slots__ = (
        "_boot", "_ended", "_foreign", "_own", "_pending", "_sent", "_seq", "_totals", "queued_tokens", "requests",
        "shared", "tokens", "unreported_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tokens = 0
        self.queued_tokens = self.unreported_tokens = 0
        self.requests = 0
        self.shared = False
        # Dispatches since the last report; then, decayed: own ones, and what the pod opened beyond them.
        self._sent = 0
        self._own = 0.0
        self._foreign = 0.0
        self._boot = ""
        self._seq = -1
        self._totals = (0, 0)
        self._pending: deque[Dispatch] = deque()
        self._ended: deque[Dispatch] = deque()

    @property
    def kept(self) -> int:
        """Dispatches and endings in memory."""
        return len(self._pending) + len(self._ended)

    def dispatched(self, tokens: int, now: float, queued_tokens: int = 0) -> Dispatch:
        """A request was sent; it counts until a report includes it."""
        dispatch = Dispatch(tokens, now, queued_tokens)
        self._append(self._pending, dispatch)
        self._add(tokens, 1)
        self.queued_tokens += queued_tokens
        self.unreported_tokens += queued_tokens
        self._sent += 1
        return dispatch

    def reweigh(self, dispatch: Dispatch, tokens: int) -> None:
        """A request that was sent has so many queued tokens more (below zero: fewer) than it was thought to."""
        dispatch.tokens += tokens
        dispatch.queued_tokens += tokens
        if not dispatch.known:
            self._add(tokens, 0)
            self.queued_tokens = max(0, self.queued_tokens + tokens)
            self.unreported_tokens = max(0, self.unreported_tokens + tokens)

    def started(self, queued_tokens: int) -> None:
        """An own request's prompt was worked through."""
        self.queued_tokens = max(0, self.queued_tokens - queued_tokens)

    def ended(self, dispatch: Dispatch, tokens: int, now: float) -> None:
        """It ended; `tokens` is what the pod's ledger still held for it."""
        if dispatch.known:
            ending = Dispatch(tokens, now)
        else:
            # No report had it. It stays in line without weight: the pod's counters will have both its moments.
            self._add(-dispatch.tokens, -1)
            self.unreported_tokens = max(0, self.unreported_tokens - dispatch.queued_tokens)
            dispatch.tokens, dispatch.known = 0, True
            ending = Dispatch(0, now)
            ending.known = True
        self._append(self._ended, ending)
        if not ending.known:
            self._add(-tokens, -1)

    def heard(self, report: LoadReport, now: float) -> bool:
        """Take in a report; False when it is older than one taken in before."""
        if report.boot == self._boot:
            if report.seq <= self._seq:
                return False
            opened, closed = report.opened_total - self._totals[0], report.closed_total - self._totals[1]
            self._include(self._pending, opened, now - _FORGOTTEN_SECONDS)
            self._include(self._ended, closed, now - _FORGOTTEN_SECONDS)
            self._compare(opened)
        else:
            self._boot = report.boot
            self._include(self._pending, 0, now - _TRAVEL_SECONDS)
            self._ended.clear()
            self._own, self._sent = 0.0, 0
            self._foreign = float(report.running + report.waiting)
            self.shared = self._foreign > 0
        self._seq = report.seq
        self._totals = (report.opened_total, report.closed_total)
        self._rebase(report)
        return True

    def _compare(self, opened: int) -> None:
        """Whether others send to this pod: late reports count both moments late, and even out."""
        sent, self._sent = self._sent, 0
        if not opened and not sent:
            return
        keep = _KEEP ** max(opened, sent)
        self._own = keep * self._own + sent
        self._foreign = keep * self._foreign + opened - sent
        self.shared = self._foreign > _FOREIGN_REQUESTS + _FOREIGN_SHARE * self._own

    def _rebase(self, report: LoadReport) -> None:
        self.tokens = report.queued_tokens + report.held_tokens + report.expected_tokens
        self.queued_tokens = report.queued_tokens
        self.requests = report.running + report.waiting
        self.unreported_tokens = 0
        for dispatch in self._pending:
            if not dispatch.known:
                self._add(dispatch.tokens, 1)
                self.unreported_tokens += dispatch.queued_tokens
        self.queued_tokens += self.unreported_tokens
        for ending in self._ended:
            if not ending.known:
                self._add(-ending.tokens, -1)

    def _add(self, tokens: int, requests: int) -> None:
        self.tokens += tokens
        self.requests += requests

    def _append(self, line: deque[Dispatch], item: Dispatch) -> None:
        if len(line) >= _LONGEST_LINE:
            line.popleft().known = True
        line.append(item)

    @staticmethod
    def _include(line: deque[Dispatch], count: int, before: float) -> None:
        while line and (count > 0 or line[0].at <= before):
            line.popleft().known = True
            count -= 1
