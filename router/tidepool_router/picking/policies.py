"""Which policy runs for a pool's setting."""

from tidepool_api.routing import Policy
from tidepool_router.picking.least_load import LeastLoad
from tidepool_router.picking.policy import Picker
from tidepool_router.picking.round_robin import RoundRobin


def make_picker(policy: Policy) -> Picker:
    """A picker with a state of its own.

    Predicted runs as LeastLoad, visibly: the reason of each pick says so. PrefixHash, which the operator refuses
    as not built, does the same where a fleet file names it.
    """
    return RoundRobin() if policy is Policy.ROUND_ROBIN else LeastLoad()
