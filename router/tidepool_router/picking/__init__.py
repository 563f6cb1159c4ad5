"""Which pod takes a request: one policy, one file. No I/O and no clock; unfit pods are left out before."""

from tidepool_router.picking.least_load import LeastLoad
from tidepool_router.picking.policies import make_picker
from tidepool_router.picking.policy import Candidate, Pick, Picker
from tidepool_router.picking.round_robin import RoundRobin

__all__ = ["Candidate", "LeastLoad", "Pick", "Picker", "RoundRobin", "make_picker"]
