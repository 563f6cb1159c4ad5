"""Whether an AgentWorkflow makes sense. PURE: no I/O, no clock, nothing is rendered or run here."""

from tidepool_operator.workflow.problems import Problem, Reason
from tidepool_operator.workflow.review import review

__all__ = ["Problem", "Reason", "review"]
