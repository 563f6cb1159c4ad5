"""The ledger's promise: whatever requests do and in whatever order, the sums are right and end at zero."""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from scripted.examples import examples
from tidepool_router.ledger import Entry, Estimate, Ledger, Outcome

tokens = st.integers(0, 5000)


@dataclass
class Model:
    """What one request weighs by the plainest bookkeeping there is."""

    prompt: int
    expected: int
    output: int = 0
    cached: int = 0
    moved: int = 0  # of the cached ones
    told: bool = False  # the engine counted
    started: bool = False
    seen: list[int] = field(default_factory=list)


class LedgerMachine(RuleBasedStateMachine):
    """Calls of many requests interleaved at random, against a recomputation from each request's own figures."""

    live = Bundle("live")
    ended = Bundle("ended")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.models: dict[Entry, Model] = {}
        self.now = 0.0
        self.opened = self.closed = self.late = self.prompt_total = self.cached_total = self.output_total = 0

    @rule(target=live, prompt=tokens, output=tokens)
    def open_one(self, prompt: int, output: int) -> Entry:
        entry = self.ledger.open(Estimate(prompt, output), self.now)
        self.models[entry] = Model(prompt, output)
        self.opened += 1
        return entry

    @rule(entry=live)
    def first_token(self, entry: Entry) -> None:
        entry.first_token(self.now)
        self.models[entry].started = True

    @rule(entry=live, count=tokens)
    def progress(self, entry: Entry, count: int) -> None:
        entry.progress(count, self.now)
        model = self.models[entry]
        model.started = True
        self.output_total += max(0, count - model.output)
        model.output = max(model.output, count)

    @rule(entry=live, prompt=tokens, count=tokens, cached=tokens)
    def usage(self, entry: Entry, prompt: int, count: int, cached: int) -> None:
        entry.usage(prompt, count, cached)
        model = self.models[entry]
        self.output_total += max(0, count - model.output)
        model.prompt, model.output, model.cached, model.told = prompt, count, min(cached, prompt), True
        model.moved = min(model.moved, model.cached)

    @rule(entry=live, count=tokens)
    def moved(self, entry: Entry, count: int) -> None:
        entry.moved(count)
        model = self.models[entry]
        own = model.cached - model.moved
        model.moved = min(count, model.prompt - own)
        model.cached = own + model.moved

    @rule(target=ended, entry=consumes(live), outcome=st.sampled_from(Outcome))
    def close(self, entry: Entry, outcome: Outcome) -> Entry:
        assert entry.close(outcome, self.now) is True
        model = self.models.pop(entry)
        self.closed += 1
        self.prompt_total += model.prompt
        self.cached_total += model.cached if model.told else 0
        return entry

    @rule(entry=ended, count=tokens)
    def late_calls(self, entry: Entry, count: int) -> None:
        entry.first_token(self.now)
        entry.usage(count, count, count)
        assert entry.close(Outcome.OK, self.now) is False
        self.late += 3

    @rule(entry=ended, count=tokens)
    def late_progress(self, entry: Entry, count: int) -> None:
        entry.progress(count, self.now)
        self.late = self.ledger.sums().late_calls_total

    @rule(target=live, entries=st.lists(st.tuples(tokens, tokens), max_size=4))
    def open_many(self, entries: list[tuple[int, int]]) -> object:
        return multiple(*(self.open_one(prompt, output) for prompt, output in entries))

    @invariant()
    def sums_equal_a_recomputation(self) -> None:
        models = self.models.values()
        sums = self.ledger.sums()
        expected = {entry: max(0, entry.estimate.output_tokens - m.output) for entry, m in self.models.items()}

        assert sums.running == self.ledger.running == len(models)
        assert sums.unstarted == sum(not m.started for m in models)
        assert sums.queued_tokens == sum(m.prompt - m.cached for m in models if not m.started)
        assert sums.held_tokens == sum(m.prompt + m.output for m in models)
        assert sums.expected_tokens == sum(expected.values())
        assert sums.shared_tokens == sum(m.cached - m.moved for m in models)
        assert (sums.opened_total, sums.closed_total, sums.late_calls_total) == (
            self.opened,
            self.closed,
            self.late,
        )
        assert (sums.prompt_tokens_total, sums.cached_tokens_total) == (self.prompt_total, self.cached_total)
        assert sums.output_tokens_total == self.output_total
        assert self.ledger.load_tokens == sum(entry.load_tokens for entry in self.models)

    def teardown(self) -> None:
        for entry in list(self.models):
            entry.close(Outcome.CANCELLED, self.now)
        sums = self.ledger.sums()
        assert (sums.running, sums.unstarted, sums.queued_tokens, sums.held_tokens, sums.expected_tokens) == (
            0,
        ) * 5
        assert sums.shared_tokens == 0
        assert sums.opened_total == sums.closed_total


LedgerMachine.TestCase.settings = examples(20, stateful_step_count=40)
TestLedger = LedgerMachine.TestCase


def test_listener_hears_each_moment_once() -> None:
    heard: list[tuple[str, float]] = []

    class Listener:
        def opened(self, entry: Entry, now: float) -> None:
            heard.append(("opened", now))

        def started(self, entry: Entry, now: float) -> None:
            heard.append(("started", now))

        def closed(self, entry: Entry, outcome: Outcome, now: float) -> None:
            heard.append((outcome.value, now))

    entry = Ledger(Listener()).open(Estimate(10, 10), 1.0)
    entry.progress(1, 2.0)
    entry.first_token(3.0)
    entry.close(Outcome.OK, 4.0)
    entry.close(Outcome.ERROR, 5.0)

    assert heard == [("opened", 1.0), ("started", 2.0), ("ok", 4.0)]


@pytest.mark.parametrize(
    ("acts", "silent", "why"),
    [
        ([], 0.0, "nothing runs, so there is nothing to wait for"),
        ([("open", 0.0)], 100.0, "a request runs since 0 and no token came"),
        ([("open", 0.0), ("token", 70.0)], 30.0, "a token is a sign of life"),
        ([("open", 0.0), ("engine", 90.0)], 10.0, "the engine's own counters moved"),
        ([("open", 0.0), ("token", 5.0), ("close", 10.0), ("open", 80.0)], 20.0, "idle time is no silence"),
        ([("open", 0.0), ("open", 90.0)], 100.0, "a new request is no sign of life of the engine"),
    ],
)
def test_silence_of_an_engine(acts: list[tuple[str, float]], silent: float, why: str) -> None:
    ledger = Ledger()
    entry: Entry | None = None
    for act, now in acts:
        if act == "open":
            entry = ledger.open(Estimate(1, 1), now)
        elif act == "engine":
            ledger.engine_progress(now)
        elif entry is not None:
            entry.progress(1, now) if act == "token" else entry.close(Outcome.OK, now)

    assert ledger.silent_seconds(100.0) == silent, why
