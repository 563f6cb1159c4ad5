"""Which policy runs for a pool's setting."""

from collections.abc import Callable
from typing import Final

from tidepool_api.routing import Policy
from tidepool_router.picking.least_load import LeastLoad
from tidepool_router.picking.policy import Picker
from tidepool_router.picking.predicted import Predicted
from tidepool_router.picking.prefix_hash import PrefixHash
from tidepool_router.picking.round_robin import RoundRobin

_PICKERS: Final[dict[Policy, Callable[[], Picker]]] = {
    Policy.PREDICTED: Predicted,
    Policy.LEAST_LOAD: LeastLoad,
    Policy.PREFIX_HASH: PrefixHash,
    Policy.ROUND_ROBIN: RoundRobin,
}


def make_picker(policy: Policy) -> Picker:
    """A picker with a state of its own."""
    return _PICKERS[policy]()
