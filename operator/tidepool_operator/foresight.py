"""Owner of what pools' demand was: fills it from Prometheus and from each look, and forecasts in turn.

An operator that starts anew asks for each pool once: for its demand of past days, and for how its engines worked
of late, which tells what a replica can serve.

A forecast is due when a bin is over, for all pools at the same time. A few pools are forecast at each look, those
whose forecast is oldest first, so that no look is long.
"""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from tidepool_operator.errors import OperatorError
from tidepool_operator.scaling import capacity, record
from tidepool_operator.scaling.ahead import arriving, demand_now, requests_now, startup_p90
from tidepool_operator.scaling.capacity import Capacity
from tidepool_operator.scaling.model import Forecast, Memory, PoolReading, ScaledPool
from tidepool_operator.scaling.record import Question, Rates, Record
from tidepool_operator.telemetry.history import POOLS_AT_ONCE, Past, Work

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

    async def work(self, now: float, pools: Sequence[ScaledPool]) -> Work:
        """How the engines of at most POOLS_AT_ONCE pools worked of late. Raises OperatorError."""
        ...


class Foresight:
    """Records and forecasts of all pools that predict; bounded by pools and by the season of each."""

    def __init__(self, archive: Archive, interval_seconds: float) -> None:
        self._archive = archive
        self._interval_seconds = interval_seconds
        self._records: dict[str, Record] = {}
        self._forecasts: dict[str, Forecast] = {}
        self._tried: dict[str, int] = {}  # the bin after which a forecast was last made, or failed
        self._filled: dict[str, float] = {}  # season that the past was asked for
        self._recalled: dict[str, Capacity] = {}  # until somebody takes it
        self._retry_at = 0.0

    def get(self, key: str) -> Forecast | None:
        """The forecast for a pool, None before there is any."""
        return self._forecasts.get(key)

    def record(self, key: str) -> Record | None:
        """A pool's demand of the past, None where none is kept."""
        return self._records.get(key)

    def recalled(self, key: str) -> Capacity | None:
        """What the past taught of a pool's replicas, once."""
        return self._recalled.pop(key, None)

    def keep(self, keys: Collection[str]) -> None:
        """Forget every pool that is not among `keys`."""
        for key in self._records.keys() - set(keys):
            del self._records[key]
            self._forecasts.pop(key, None)
            self._tried.pop(key, None)
            self._filled.pop(key, None)
            self._recalled.pop(key, None)

    def coverage(self) -> Mapping[str, float]:
        """Share of recent outcomes within the 90 % band, by pool, where there were any."""
        found = ((key, forecast.coverage) for key, forecast in self._forecasts.items())
        return {key: share for key, share in found if math.isfinite(share)}

    async def look(
        self, now: float, read: Sequence[tuple[ScaledPool, PoolReading]], memories: Mapping[str, Memory]
    ) -> None:
        """Add what was read of the pools, ask for the past of some, forecast some."""
        wanted = [(pool, reading) for pool, reading in read if pool.spec.predicts]
        self.keep([pool.key for pool, _ in wanted])
        for pool, reading in wanted:
            rates = _rates(now, pool, reading, memories.get(pool.key, Memory()))
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
            found, work = await self._archive.past(now, asked), await self._archive.work(now, asked)
        except OperatorError as error:
            self._retry_at = now + RETRY_SECONDS
            log.warning("the past demand of %d pools is not known yet: %s", len(lacking), error)
            return
        for pool in asked:
            self._filled[pool.key] = season
            if pool.key in found:
                bins, last = found[pool.key]
                self._records[pool.key] = record.joined(self._records[pool.key], bins, last, season)
                self._tried.pop(pool.key, None)
            self._recalled[pool.key] = _recalled(pool, work)

    def _forecast(self, pools: Sequence[ScaledPool], memories: Mapping[str, Memory]) -> None:
        due = [pool for pool in pools if self._tried_at(pool.key) < self._records[pool.key].last]
        due = sorted(due, key=lambda pool: self._tried_at(pool.key))[:FORECASTS_A_LOOK]
        questions = {
            pool.key: Question(
                self._records[pool.key],
                startup_p90(memories.get(pool.key, Memory())),
                self._interval_seconds,
                pool.spec.season_seconds,
            )
            for pool in due
        }
        made = _made(questions)
        for key in questions:
            self._tried[key] = self._records[key].last
            if key in made:
                self._forecasts[key] = made[key]
            else:
                # An old one would soon be of the past.
                self._forecasts.pop(key, None)

    def _tried_at(self, key: str) -> int:
        return self._tried.get(key, -2)


def _made(questions: Mapping[str, Question]) -> Mapping[str, Forecast]:
    """Forecasts; where one of several cannot be made, which would be a defect, the others are made all."""
    try:
        return record.forecasts(questions)
    except Exception:
        if len(questions) == 1:
            log.exception("no forecast for pool %s, which does not shrink without one", next(iter(questions)))
            return {}
        return {name: made for key in questions for name, made in _made({key: questions[key]}).items()}


def _recalled(pool: ScaledPool, work: Work) -> Capacity:
    """From what was seen since the oldest pod that lives was made: those before it may be another model's."""
    since = min((pod.created_at for pod in pool.pods if pod.created_at is not None), default=math.inf)
    loads = [load for at, load in work.get(pool.key, ()) if at > since]
    return capacity.taught(pool.identity, loads)


def _rates(now: float, pool: ScaledPool, reading: PoolReading, memory: Memory) -> Rates | None:
    """What a record keeps of a look. A pool at zero is there because nobody asks; else a gap is no zero."""
    if pool.replicas == 0 and not pool.pods:
        return (0.0, 0.0, 0.0)
    served = demand_now(now, reading)
    if served is None:
        return None
    come = arriving(reading, memory, served)
    return come.prompt_tokens, come.output_tokens, requests_now(reading)
