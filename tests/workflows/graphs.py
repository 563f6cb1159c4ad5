"""Random workflows, and a rim that answers their calls in any order."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tidepool_api.workflow import AgentWorkflowSpec
from tidepool_router.workflow.core.plan import Plan, plan_of
from tidepool_router.workflow.core.run import Entry, Run
from tidepool_router.workflow.core.states import (
    Call,
    Compose,
    Effect,
    Ending,
    Expand,
    Finish,
    Keep,
    Key,
    Output,
    Phase,
    Stop,
    TimeOut,
    Verdict,
)

HTTP = {"url": "http://tool/"}


def planned(*steps: dict[str, Any], **more: Any) -> Plan:
    """The plan of steps; one without a kind calls a tool."""
    kinds = ("llm", "http", "mcp", "workflow", "choose")
    whole = [step if any(kind in step for kind in kinds) else {**step, "http": HTTP} for step in steps]
    return plan_of("test", AgentWorkflowSpec.model_validate({"steps": whole, **more}))


SUB = planned(
    {"name": "one", "withItems": [1, 2], "retryStrategy": {"limit": 1, "backoff": {"duration": "1s"}}},
    {"name": "two", "depends": "one || one.Failed"},
    {"name": "bye"},
    onExit="bye",
)


@st.composite
def workflows(draw: st.DrawFn) -> Plan:
    """Up to eight steps, each depending on earlier ones by any expression; some fan out, some take items on.

    Some run a workflow, some choose among steps of their own.
    """
    steps: list[dict[str, Any]] = []
    fans: list[str] = []
    picked: list[dict[str, Any]] = []
    for index in range(draw(st.integers(1, 8))):
        name = f"s{index}"
        step: dict[str, Any] = {"name": name, "dependency": draw(st.sampled_from(["Hard", "Soft"]))}
        takes = draw(st.sampled_from([None, *fans]))
        if takes is not None:
            step |= {"depends": takes, "withParam": f"{{{{ steps.{takes}.results }}}}"}
            fans.append(name)
        else:
            if steps and draw(st.booleans()):
                step["depends"] = draw(_expressions([one["name"] for one in steps], fans))
            if draw(st.booleans()):
                step["withItems"] = list(range(draw(st.integers(0, 4))))
                fans.append(name)
        if draw(st.booleans()):
            step["maxParallel"] = draw(st.integers(1, 3))
        if draw(st.booleans()):
            step["retryStrategy"] = {"limit": draw(st.integers(0, 2)), "backoff": {"duration": "1s"}}
        match draw(st.sampled_from(["http", "http", "workflow", "choose"])):
            case "workflow":
                step["workflow"] = {"name": "sub"}
            case "choose":
                among = draw(_picked(name))
                picked += among
                names = [one["name"] for one in among]
                step["choose"] = {"pools": [{"name": "p"}], "among": names, "maxTurns": draw(st.integers(1, 4))}
        steps.append(step)
    steps += picked
    more: dict[str, Any] = {"failFast": draw(st.booleans())}
    if draw(st.booleans()):
        steps.append({"name": "bye"})
        more["onExit"] = "bye"
    return planned(*steps, **more)


@st.composite
def _picked(draw: st.DrawFn, chooser: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 3))):
        step: dict[str, Any] = {
            "name": f"{chooser}_{number}",
            "dependency": draw(st.sampled_from(["Hard", "Soft", "Soft"])),
        }
        if draw(st.booleans()):
            step["withItems"] = [1, 2]
        if draw(st.booleans()):
            step["workflow"] = {"name": "sub"}
        found.append(step)
    return found


@st.composite
def _expressions(draw: st.DrawFn, names: list[str], fans: list[str]) -> str:
    words = ["", ".Succeeded", ".Failed", ".Errored", ".Skipped", ".Omitted"]
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(names))
        word = draw(st.sampled_from([*words, ".AnySucceeded", ".AllFailed"] if name in fans else words))
        parts.append(f"{draw(st.sampled_from(['', '!']))}{name}{word}")
    return f" {draw(st.sampled_from(['&&', '||']))} ".join(parts)


@dataclass
class Rim:
    """Answers calls by `luck`, which knows each try's fate beforehand, in an order that `order` shuffles."""

    plan: Plan
    luck: int
    order: random.Random
    cancel_after: int | None = None
    restart_after: int | None = None
    deadline: float = 1000.0
    now: float = 0.0
    run: Run = field(init=False)
    open: dict[Key, Call] = field(default_factory=dict)
    asked: list[Effect] = field(default_factory=list)
    calls: Counter[tuple[Key, int]] = field(default_factory=Counter)
    journal: dict[Key, Ending] = field(default_factory=dict)
    finishes: int = 0

    def fate(self, key: Key, attempt: int) -> Phase:
        """How this try goes, whenever it is made."""
        roll = random.Random(f"{self.luck} {key} {attempt}").random()
        return Phase.SUCCEEDED if roll < 0.6 else Phase.FAILED if roll < 0.85 else Phase.SKIPPED

    def go(self, most: int = 10_000) -> "Rim":
        """Until the run has finished."""
        self.run = Run(self.plan, deadline=self.deadline, ended_before=self.journal)
        self._take(self.run.begin(self.now))
        for step in range(most):
            if self.run.finished:
                return self
            if step == self.cancel_after:
                self._take(self.run.cancel("asked to", self.now))
            elif step == self.restart_after:
                self.open.clear()
                self.asked.clear()
                self.run = Run(self.plan, deadline=self.deadline, ended_before=self.journal)
                self._take(self.run.begin(self.now))
            else:
                self._one()
        raise AssertionError(f"the run does not end: {self.run.works}")

    def _one(self) -> None:
        choices: list[Any] = [*self.open.values(), *self.asked]
        if not choices:
            wake = self.run.next_wake()
            assert wake is not None
            self.now = max(self.now, wake)
            self._take(self.run.tick(self.now))
            return
        chosen = self.order.choice(choices)
        if isinstance(chosen, Call):
            self._answer(chosen)
        else:
            self.asked.remove(chosen)
            if isinstance(chosen, Keep):
                self._keep(chosen.key, chosen.ending)
            elif isinstance(chosen, Compose):
                self._take(self.run.composed("done", self.now, chosen.within))
            else:
                self._take(self.run.expanded(chosen.step, [1, 2], self.now, chosen.within))

    def _answer(self, call: Call) -> None:
        del self.open[call.key]
        self.now += 0.001
        fate = self.fate(call.key, call.attempt)
        step = self.run.step(call.key)
        assert step is not None
        data: Any = None
        if call.turn:
            assert step.step.choose is not None
            fate = Phase.SUCCEEDED if fate is Phase.SKIPPED else fate
            picks = [*step.step.choose.among, None]
            data = {"step": random.Random(f"{self.luck} {call.key}").choice(picks), "x": 1}
        elif step.kind in ("workflow", "choose") and fate is Phase.SUCCEEDED:
            entry = Entry(SUB if step.kind == "workflow" else None)
            self._take(self.run.entered(call.key, call.attempt, entry, self.now))
            return
        again = self.run.retry_at(call.key, call.attempt, self.now) if fate is Phase.FAILED else None
        if again is not None:
            self._take(self.run.failed(call.key, call.attempt, again))
            return
        self._keep(call.key, Ending(fate, "" if fate is Phase.SUCCEEDED else "luck", Output(str(call.key), data)))

    def _keep(self, key: Key, ending: Ending) -> None:
        assert key not in self.journal, "committed twice"
        self.journal[key] = ending
        self._take(self.run.ended(key, ending, self.now))

    def _take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Call():
                    assert effect.key not in self.open, "called while it is called"
                    assert effect.key not in self.journal, "called after it has ended"
                    over = self.run.verdict is not Verdict.RUNNING
                    assert not over or effect.key.step == "bye", "called when the run is over"
                    self.calls[effect.key, effect.attempt] += 1
                    self.open[effect.key] = effect
                case Stop(key) | TimeOut(key, _):
                    self.open.pop(key, None)
                    self.asked = [one for one in self.asked if not (isinstance(one, Keep) and one.key == key)]
                case Finish():
                    self.finishes += 1
                case Expand() | Compose() | Keep():
                    self.asked.append(effect)

    def result(self) -> dict[str, Any]:
        """What became of each step, and of the run."""
        steps = {name: (work.phase, work.reason) for name, work in self.run.works.items()}
        return {"verdict": self.run.verdict, **steps}


def begun(*steps: dict[str, Any], deadline: float = 60.0, **more: Any) -> tuple[Run, list[Effect]]:
    """A run of such steps, and what it asks at first."""
    run = Run(planned(*steps, **more), deadline=deadline)
    return run, run.begin(0.0)


def called(effects: list[Effect]) -> list[str]:
    """The units that are called."""
    return [str(effect.key) for effect in effects if isinstance(effect, Call)]
