"""Whether a request starts now, waits or is refused. No I/O and no clock: `now` is passed in, in seconds."""

from tidepool_router.admission.drain import DrainRate
from tidepool_router.admission.entrance import Entrance, Turned
from tidepool_router.admission.queue import Queue
from tidepool_router.admission.room import Load, Room
from tidepool_router.admission.ticket import Limits, Refusal, Ticket

__all__ = ["DrainRate", "Entrance", "Limits", "Load", "Queue", "Refusal", "Room", "Ticket", "Turned"]
