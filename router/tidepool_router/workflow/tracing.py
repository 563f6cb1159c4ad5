"""Runs as traces: one a run, with a span of the whole, of each step and tool, and the requests' own below them.

Names and attributes are those of OpenTelemetry's conventions for generative AI (invoke_workflow, execute_tool,
chat); what they have no word for is under `tidepool.`. Ids follow from the run's, so a gateway that takes a run
over goes on with its trace. No prompt, answer or argument stands in a span.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from tidepool_router.tracing.context import TRACEPARENT, Parent, parse, written
from tidepool_router.tracing.sight import Sight
from tidepool_router.tracing.spans import Attributes, Span, Trace
from tidepool_router.workflow.core.plan import StepPlan
from tidepool_router.workflow.core.states import Ending, Key, Phase

HEADER: Final = TRACEPARENT.decode()
_GOOD: Final = frozenset((Phase.SUCCEEDED, Phase.SKIPPED))


@dataclass(frozen=True, slots=True)
class Whole:
    """What a run's own span says. `measures`: what it did without for a budget, a comma between them."""

    verdict: str
    tokens: int
    measures: str = ""


class RunTrace:
    """One run's. `caller` may hold the traceparent of who began it, and then it is that trace's part."""

    def __init__(self, sight: Sight, run: str, workflow: str, caller: Mapping[str, str]) -> None:
        self._sight = sight
        self._run = run
        self._workflow = workflow
        self._parent: Parent | None = parse(caller[HEADER].encode()) if HEADER in caller else None
        self.trace_id = _number(16, run) if self._parent is None else self._parent.trace_id
        self.sampled = sight.samples(self.trace_id) if self._parent is None else self._parent.sampled

    def header(self, key: Key) -> dict[str, str]:
        """The traceparent of what a unit asks for."""
        return {HEADER: written(self.trace_id, self._span(key), sampled=self.sampled).decode()}

    def unit(self, step: StepPlan, key: Key, ending: Ending, times: tuple[float, float], tries: int) -> None:
        """A unit has ended; `times` are its beginning and end, of the monotonic clock."""
        attributes: Attributes = {
            "gen_ai.workflow.name": self._workflow,
            "tidepool.run": self._run,
            "tidepool.step": key.path,
            "tidepool.phase": ending.phase.value,
            "tidepool.tries": tries,
        }
        name = f"{step.kind} {key.step}"
        if step.step.mcp is not None:
            name = f"execute_tool {step.step.mcp.tool}"
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": step.step.mcp.tool}
        elif step.step.http is not None:
            name = f"execute_tool {key.step}"
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": key.step}
        elif step.step.workflow is not None:
            name = f"invoke_workflow {step.step.workflow.name}"
            attributes["gen_ai.operation.name"] = "invoke_workflow"
        if key.item is not None:
            attributes["tidepool.item"] = key.item
        if ending.output.tokens:
            attributes["tidepool.tokens"] = ending.output.tokens
        self._put(Span(name, "internal", self._span(key), self._above(key), *times, attributes, _error(ending)))

    def whole(self, times: tuple[float, float], whole: Whole, *, failed: bool) -> None:
        """The run is over here."""
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": self._workflow,
            "tidepool.run": self._run,
            "tidepool.verdict": whole.verdict,
            "tidepool.tokens": whole.tokens,
        }
        if whole.measures:
            attributes["tidepool.degraded"] = whole.measures
        parent = None if self._parent is None else self._parent.span_id
        name = f"invoke_workflow {self._workflow}"
        error = whole.verdict if failed else ""
        self._put(Span(name, "internal", _number(8, self._run), parent, *times, attributes, error))

    def _span(self, key: Key) -> int:
        return _number(8, f"{self._run} {key}")

    def _above(self, key: Key) -> int:
        owners = list(key.owners())
        return _number(8, f"{self._run} {owners[-1]}" if owners else self._run)

    def _put(self, span: Span) -> None:
        if self.sampled and self._sight.lives is not None:
            self._sight.lives.put(Trace(self.trace_id, (span,)))


def _number(size: int, text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=size).digest()) or 1


def _error(ending: Ending) -> str:
    return "" if ending.phase in _GOOD else ending.phase.value
