"""Whether a request starts now, waits or is refused. No I/O and no clock: `now` is passed in, in seconds."""

from tidepool_router.admission.queue import Limits, Queue, Refusal, Ticket, Verdict

__all__ = ["Limits", "Queue", "Refusal", "Ticket", "Verdict"]
