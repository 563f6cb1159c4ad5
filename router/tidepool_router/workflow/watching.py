"""What is seen of runs from outside: metrics by workflow and step, and a trace of each where somebody traces."""

from collections.abc import Mapping
from time import monotonic
from types import MappingProxyType
from typing import Final

from tidepool_api import contract
from tidepool_api.workflow import Measure
from tidepool_router.metrics import LATENCY_BUCKETS, Registry
from tidepool_router.workflow.core.plan import StepPlan
from tidepool_router.workflow.core.spent import Part, Spent
from tidepool_router.workflow.core.states import Ending, Key, Verdict
from tidepool_router.workflow.tracing import RunTrace, Whole

# Series of one family. Workflows that come and go, under new names each time, must not fill memory.
_MOST_SERIES: Final = 4096
_REST: Final = "others"


class WorkflowMetrics:
    """Of all runs of a gateway. Steps inside others count under the workflow and step that they are written in."""

    def __init__(self, registry: Registry) -> None:
        self._runs = registry.counter(
            contract.METRIC_WORKFLOW_RUNS, "Runs that ended, by how they did.", "workflow", "phase"
        )
        self._run_seconds = registry.histogram(
            contract.METRIC_WORKFLOW_RUN_TIME, "Seconds from a run to its end.", LATENCY_BUCKETS, "workflow"
        )
        self._steps = registry.counter(
            contract.METRIC_WORKFLOW_STEPS, "Units of steps that ended.", "workflow", "step", "phase"
        )
        self._step_seconds = registry.histogram(
            contract.METRIC_WORKFLOW_STEP_TIME,
            "Seconds from a unit's first try to its end.",
            LATENCY_BUCKETS,
            "workflow",
            "step",
        )
        self._parts = registry.counter(
            contract.METRIC_WORKFLOW_STEP_PARTS,
            "Seconds of units of steps that ended, by what took them.",
            "workflow",
            "step",
            "part",
        )
        self._tokens = registry.counter(
            contract.METRIC_WORKFLOW_TOKENS, "Tokens of prompts and answers.", "workflow", "step"
        )
        self._saving = registry.counter(
            contract.METRIC_WORKFLOW_SAVING,
            "Times that a run began to do without, for its budget.",
            "workflow",
            "measure",
        )
        self._warmed = registry.counter(
            contract.METRIC_WORKFLOW_WARMED, "Tokens of prompts that were computed ahead.", "workflow"
        )
        self._known: set[tuple[str, str]] = set()

    def unit(
        self,
        workflow: str,
        step: str,
        ending: Ending,
        seconds: float,
        parts: Mapping[Part, float] = MappingProxyType({}),
    ) -> None:
        """A unit has ended; `parts` of its seconds, by what took them."""
        workflow, step = self._bounded(workflow, step)
        self._steps.labels(workflow, step, ending.phase.value).inc()
        self._step_seconds.labels(workflow, step).observe(seconds)
        for part, took in parts.items():
            self._parts.labels(workflow, step, part.value).inc(took)
        if ending.output.tokens:
            self._tokens.labels(workflow, step).inc(ending.output.tokens)

    def run(self, workflow: str, verdict: Verdict, seconds: float) -> None:
        """A run has ended."""
        workflow, _ = self._bounded(workflow, "")
        self._runs.labels(workflow, verdict.value).inc()
        self._run_seconds.labels(workflow).observe(seconds)

    def warmed(self, workflow: str, tokens: int) -> None:
        """Tokens of a prompt were computed ahead."""
        workflow, _ = self._bounded(workflow, "")
        self._warmed.labels(workflow).inc(tokens)

    def saves(self, workflow: str, measure: Measure) -> None:
        """A run takes a measure."""
        workflow, _ = self._bounded(workflow, "")
        self._saving.labels(workflow, measure.value).inc()

    def _bounded(self, workflow: str, step: str) -> tuple[str, str]:
        key = workflow, step
        if key not in self._known:
            if len(self._known) >= _MOST_SERIES:
                return _REST, _REST if step else ""
            self._known.add(key)
        return key


class Watch:
    """One run's."""

    def __init__(self, workflow: str, metrics: WorkflowMetrics | None, trace: RunTrace | None) -> None:
        self._workflow = workflow
        self._metrics = metrics
        self._trace = trace
        self._began = monotonic()
        self._measures: list[str] = []
        self._under_way: dict[Key, Spent] = {}

    def tries(self, key: Key) -> tuple[dict[str, str], Spent]:
        """A try of a unit begins: what it adds to its requests, and where its time is written down."""
        now = monotonic()
        spent = self._under_way.setdefault(key, Spent(now))
        spent.tried(now)
        return {} if self._trace is None else self._trace.header(key), spent

    def unit(self, workflow: str, step: StepPlan, key: Key, ending: Ending) -> None:
        """A unit of a step of a workflow has ended."""
        now = monotonic()
        spent = self._under_way.pop(key, None) or Spent(now)
        if self._metrics is not None:
            self._metrics.unit(workflow, key.step, ending, now - spent.began, spent.parts(now))
        if self._trace is not None:
            self._trace.unit(step, key, ending, (spent.began, now), spent.tries)

    def warmed(self, workflow: str, tokens: int) -> None:
        """Tokens of a prompt were computed ahead."""
        if self._metrics is not None:
            self._metrics.warmed(workflow, tokens)

    def saves(self, workflow: str, measure: Measure) -> None:
        """The run takes a measure, for the budget of this workflow, which is its own or one inside."""
        self._measures.append(measure.value)
        if self._metrics is not None:
            self._metrics.saves(workflow, measure)

    def run(self, verdict: Verdict, tokens: int) -> None:
        """The run has ended."""
        now = monotonic()
        if self._metrics is not None:
            self._metrics.run(self._workflow, verdict, now - self._began)
        if self._trace is not None:
            whole = Whole(verdict.value, tokens, ",".join(dict.fromkeys(self._measures)))
            self._trace.whole((self._began, now), whole, failed=verdict is Verdict.FAILED)
