"""Owner of what pools' demand was: fills it from Prometheus and from each look, and forecasts in turn.

A forecast is due when a bin is over, for all pools at the same time. A few pools are forecast at each look, those
whose forecast is oldest first, so that no look is long.
"""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from tidepool_operator.errors import OperatorError
from tidepool_operator.scaling import record
from tidepool_operator.scaling.ahead import demand_now, requests_now, startup_p90
from tidepool_operator.scaling.model import Forecast, Memory, PoolReading, ScaledPool
from tidepool_operator.scaling.record import Question, Rates, Record
from tidepool_operator.telemetry.history import POOLS_AT_ONCE, Past

log = logging.getLogger(__name__)

# With one look in 5 s, 500 pools have their turn within a bin of 300 s.
FORECASTS_A_LOOK: Final = 10
# Prometheus that could not be asked for the past is asked again after so long.
RETRY_SECONDS: Final = 60.0


class Archive(Protocol):
    """Prometheus' memory."""

    async def past(self, now: float, pools: Sequence[ScaledPool]) -> Past:
        """Demand of past days of at most POOLS_AT_ONCE pools of one season. Raises OperatorError."""
        ...


class Foresight:
    """Records and forecasts of all pools that predict; bounded by pools and by the season of each."""

    def __init__(self, archive: Archive, interval_seconds: float) -> None:
        self._archive = archive
        self._interval_seconds = interval_seconds
        self._records: dict[str, Record] = {}
        self._forecasts: dict[str, tuple[int, Forecast]] = {}
        self._filled: dict[str, float] = {}  # season that the past was asked for
        self._retry_at = 0.0

    def get(self, key: str) -> Forecast | None:
        """The forecast for a pool, None before there is any."""
        found = self._forecasts.get(key)
        return None if found is None else found[1]

    def keep(self, keys: Collection[str]) -> None:
        """Forget every pool that is not among `keys`."""
        for key in self._records.keys() - set(keys):
            del self._records[key]
            self._forecasts.pop(key, None)
            self._filled.pop(key, None)

    def coverage(self) -> Mapping[str, float]:
        """Share of recent outcomes within the 90 % band, by pool, where there were any."""
        found = ((key, forecast.coverage) for key, (_, forecast) in self._forecasts.items())
        return {key: share for key, share in found if math.isfinite(share)}

    async def look(
        self, now: float, read: Sequence[tuple[ScaledPool, PoolReading]], memories: Mapping[str, Memory]
    ) -> None:
        """Add what was read of the pools, ask for the past of some, forecast some."""
        wanted = [(pool, reading) for pool, reading in read if pool.spec.predicts]
        self.keep([pool.key for pool, _ in wanted])
        for pool, reading in wanted:
            rates = _rates(now, pool, reading)
            before = self._records.get(pool.key, Record())
            self._records[pool.key] = record.added(before, now, rates, pool.spec.season_seconds)
        await self._fill(now, [pool for pool, _ in wanted])
        self._forecast([pool for pool, _ in wanted], memories)

    async def _fill(self, now: float, pools: Sequence[ScaledPool]) -> None:
        lacking = [pool for pool in pools if self._filled.get(pool.key) != pool.spec.season_seconds]
        if not lacking or now < self._retry_at:
            return
        season = lacking[0].spec.season_seconds
        asked = [pool for pool in lacking if pool.spec.season_seconds == season][:POOLS_AT_ONCE]
        try:
            found = await self._archive.past(now, asked)
        except OperatorError as error:
            self._retry_at = now + RETRY_SECONDS
            log.warning("the past demand of %d pools is not known yet: %s", len(lacking), error)
            return
        for pool in asked:
            self._filled[pool.key] = season
            if pool.key in found:
                bins, last = found[pool.key]
                self._records[pool.key] = record.joined(self._records[pool.key], bins, last, season)
                self._forecasts.pop(pool.key, None)

    def _forecast(self, pools: Sequence[ScaledPool], memories: Mapping[str, Memory]) -> None:
        due = [pool for pool in pools if self._made_at(pool.key) < self._records[pool.key].last]
        due = sorted(due, key=lambda pool: self._made_at(pool.key))[:FORECASTS_A_LOOK]
        questions = {
            pool.key: Question(
                self._records[pool.key],
                startup_p90(memories.get(pool.key, Memory())),
                self._interval_seconds,
                pool.spec.season_seconds,
            )
            for pool in due
        }
        for key, forecast in record.forecasts(questions).items():
            self._forecasts[key] = (self._records[key].last, forecast)

    def _made_at(self, key: str) -> int:
        found = self._forecasts.get(key)
        return -2 if found is None else found[0]


def _rates(now: float, pool: ScaledPool, reading: PoolReading) -> Rates | None:
    """What a record keeps of a look. A pool at zero is there because nobody asks; else a gap is no zero."""
    if pool.replicas == 0 and not pool.pods:
        return (0.0, 0.0, 0.0)
    present = demand_now(now, reading)
    return None if present is None else (present.prompt_tokens, present.output_tokens, requests_now(reading))
