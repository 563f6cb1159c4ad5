"""Token estimates and the record of every live request. No I/O and no clock: `now` is passed in, in seconds."""

from tidepool_router.ledger.book import Entry, Ledger, LedgerListener, Outcome
from tidepool_router.ledger.chain import chain
from tidepool_router.ledger.estimate import Estimate, TokenEstimator, whole_blocks
from tidepool_router.ledger.forecast import KvForecast, foresee
from tidepool_router.ledger.lengths import OutputLengths
from tidepool_router.ledger.prefix import PrefixIndex
from tidepool_router.ledger.rates import RateMeter
from tidepool_router.ledger.speed import PodSpeed, PoolSpeed, Speed
from tidepool_router.ledger.sums import LedgerSums

__all__ = [
    "Entry",
    "Estimate",
    "KvForecast",
    "Ledger",
    "LedgerListener",
    "LedgerSums",
    "Outcome",
    "OutputLengths",
    "PodSpeed",
    "PoolSpeed",
    "PrefixIndex",
    "RateMeter",
    "Speed",
    "TokenEstimator",
    "chain",
    "foresee",
    "whole_blocks",
]
