"""Which pod takes a request: one policy, one file. No I/O and no clock; unfit pods are left out before."""

from tidepool_router.picking.candidate import Candidate
from tidepool_router.picking.least_load import LeastLoad
from tidepool_router.picking.policies import make_picker
from tidepool_router.picking.policy import NO_MATCHES, Matches, Pick, Picker
from tidepool_router.picking.predicted import Predicted
from tidepool_router.picking.prefix_hash import PrefixHash
from tidepool_router.picking.round_robin import RoundRobin

__all__ = [
    "NO_MATCHES",
    "Candidate",
    "LeastLoad",
    "Matches",
    "Pick",
    "Picker",
    "Predicted",
    "PrefixHash",
    "RoundRobin",
    "make_picker",
]
