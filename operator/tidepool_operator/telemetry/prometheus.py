"""What Prometheus knows of all pools, in a bounded number of queries a tick however many pools there are."""

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.util.retry import Retry

from tidepool_api.rules import RATE_WINDOW, Rule, asked_rules
from tidepool_operator.scaling.experts import Series
from tidepool_operator.scaling.model import PoolReading, ScaledPool
from tidepool_operator.scaling.record import BIN_SECONDS
from tidepool_operator.telemetry import history
from tidepool_operator.telemetry.errors import PrometheusAway
from tidepool_operator.telemetry.history import WORK_STEP_SECONDS, Counts, Past, Work
from tidepool_operator.telemetry.reading import Adapter
from tidepool_operator.telemetry.series import Place, Snapshot, parse, readings

# Queries at the same time. prometheus-api-client blocks, so each takes a thread.
THREADS: Final = 4
# Steps of one range query; Prometheus allows 11,000.
POINTS: Final = 10_000
QUERIES: Final = 32  # under way or waiting for a thread; a tick asks fewer


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """How Prometheus is asked.

    `stale_after_seconds` bounds the age of a scrape that is acted on: it must exceed the interval of scrapes and
    of rule evaluation together. `rate_window` is used where no recording rules are installed.
    """

    url: str
    timeout_seconds: float = 4.0
    stale_after_seconds: float = 120.0
    rate_window: str = RATE_WINDOW
    verify_tls: bool = True


class Prometheus:
    """Asks the recorded series in one query, and for records that are absent their expressions, one query each."""

    def __init__(self, settings: PrometheusSettings) -> None:
        self._settings = settings
        self._name = f"Prometheus at {_host(settings.url)}"
        self._rules: tuple[Rule, ...] = asked_rules(settings.rate_window)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prometheus")
        self._asking: list[asyncio.Future[Any]] = []
        self._last = Snapshot(time=0.0)
        url, asks = settings.url.rstrip("/"), requests.Session()
        asks.verify = settings.verify_tls
        self._client = PrometheusConnect(url=url, session=asks)
        # No retries: the next tick asks again. With read=False a timeout stays one to tell from other failures.
        asks.mount(url, Adapter(max_retries=Retry(total=0, read=False)))

    async def read(self, now: float, pools: Sequence[ScaledPool]) -> dict[str, PoolReading]:
        """A reading for every pool by its key, without the gateways' demand; never raises for Prometheus' sake."""
        trouble: str | None = None
        if any(pool.pods for pool in pools):
            try:
                self._last = await self._snapshot(now)
            except PrometheusAway as error:
                trouble = str(error)
        stale_after_seconds = self._settings.stale_after_seconds
        return readings(pools, self._last, now=now, stale_after_seconds=stale_after_seconds, trouble=trouble)

    async def seen(self, now: float, at_most_old_seconds: float) -> Snapshot:
        """All answers of pools and pods: those of the last read, where they are young enough, else asked for now.

        Raises PrometheusAway.
        """
        if not 0 <= now - self._last.time <= at_most_old_seconds:
            self._last = await self._snapshot(now)
        return self._last

    async def past(self, now: float, pools: Sequence[ScaledPool]) -> Past:
        """Recorded demand of past days of a few pools that share a season. Raises PrometheusAway."""
        begin, end = history.span(now, pools[0].spec.season_seconds)
        answer = await self._queued(partial(self._ask_range, history.query(pools), begin, end, BIN_SECONDS))
        return history.past(answer, begin, end)

    async def work(self, now: float, pools: Sequence[ScaledPool]) -> Work:
        """How the engines of a few pools worked within the last hour. Raises PrometheusAway."""
        begin, end = history.work_span(now)
        ask = partial(self._ask_range, history.work_query(pools), begin, end, WORK_STEP_SECONDS)
        return history.work(await self._queued(ask), begin, end)

    async def demand(
        self, now: float, pool: ScaledPool, since_seconds: float, step_seconds: float
    ) -> tuple[float, Series]:
        """Demand of one pool as it was recorded: when it begins, and SERIES by step. Raises PrometheusAway."""
        first, last = (math.floor(at / step_seconds) * step_seconds for at in (now - since_seconds, now))
        found = []
        for at in np.arange(first, last, POINTS * step_seconds):
            begin = datetime.fromtimestamp(at, UTC)
            end = datetime.fromtimestamp(min(at + (POINTS - 1) * step_seconds, last), UTC)
            ask = partial(self._ask_range, history.demand_query(pool), begin, end, step_seconds)
            found.append(history.demand(await self._queued(ask), pool.key, begin, end, step_seconds))
        return first, np.concatenate(found, axis=1)

    async def scraped_pods(self, now: float, pool: str, since_seconds: float, step_seconds: float) -> Counts:
        """Pods of a pool ("namespace/name") that were scraped, by time, as recorded. Raises PrometheusAway."""
        first, last = (math.floor(at / step_seconds) * step_seconds for at in (now - since_seconds, now))
        begin, end = datetime.fromtimestamp(first, UTC), datetime.fromtimestamp(last, UTC)
        answer = await self._queued(partial(self._ask_range, history.pods_query(pool), begin, end, step_seconds))
        return history.counts(answer)

    async def close(self) -> None:
        """Drop the connections; a query that still runs ends with its timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def _snapshot(self, now: float) -> Snapshot:
        """Raises PrometheusAway when it does not answer; single records that fail are noted in the snapshot."""
        names = "|".join(rule.record for rule in self._rules)
        recorded = parse(await self._query(f'{{__name__=~"{names}"}}', now))
        absent = [rule for rule in self._rules if not recorded.get(rule.record)]
        answers = await asyncio.gather(
            *(self._query(rule.expression, now) for rule in absent), return_exceptions=True
        )
        series: dict[str, dict[Place, float]] = dict(recorded)
        failed: dict[str, str] = {}
        for rule, answer in zip(absent, answers, strict=True):
            if isinstance(answer, PrometheusAway):
                failed[rule.record] = str(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                series[rule.record] = parse(answer).get("", {})
        return Snapshot(now, series, failed)

    async def _query(self, query: str, now: float) -> list[Any]:
        return await self._queued(partial(self._ask, query, now))

    async def _queued(self, ask: Callable[[], list[Any]]) -> list[Any]:
        # A thread cannot be cancelled: while those of an earlier tick hang, no new ones are piled up.
        self._asking = [future for future in self._asking if not future.done()]
        if len(self._asking) >= QUERIES:
            raise PrometheusAway(f"{self._name} is still busy with earlier queries")
        future = asyncio.get_running_loop().run_in_executor(self._threads, ask)
        future.add_done_callback(_seen)
        self._asking.append(future)
        # The client's timeout is between two bytes; this one is for the whole answer and the wait for a thread.
        try:
            async with asyncio.timeout(2 * self._settings.timeout_seconds):
                return await asyncio.shield(future)
        except TimeoutError as error:
            raise PrometheusAway(f"{self._name} answers too slowly") from error

    def _ask(self, query: str, now: float) -> list[Any]:
        """One instant query, in a thread. Raises PrometheusAway."""
        timeout_seconds = self._settings.timeout_seconds
        params = {"time": f"{now:.3f}", "timeout": f"{timeout_seconds:g}s"}
        return self._answer(lambda: self._client.custom_query(query, params=params, timeout=timeout_seconds))

    def _ask_range(self, query: str, begin: datetime, end: datetime, step_seconds: float) -> list[Any]:
        """One range query, in a thread. Raises PrometheusAway."""
        timeout_seconds = self._settings.timeout_seconds
        params = {"timeout": f"{timeout_seconds:g}s"}
        step = f"{step_seconds:.0f}s"
        ask = self._client.custom_query_range
        return self._answer(lambda: ask(query, begin, end, step, params=params, timeout=timeout_seconds))

    def _answer(self, ask: Callable[[], Any]) -> list[Any]:
        """What the client answers. Raises PrometheusAway, never with more of the URL than host and port."""
        timeout_seconds = self._settings.timeout_seconds
        try:
            result = ask()
        except requests.Timeout as error:
            raise PrometheusAway(f"{self._name} did not answer within {timeout_seconds:g} s") from error
        except requests.ConnectionError as error:
            raise PrometheusAway(f"{self._name} cannot be reached") from error
        except PrometheusApiClientException as error:
            raise PrometheusAway(f"{self._name} refused a query: {str(error)[:200]}") from error
        except (requests.RequestException, ValueError, KeyError, TypeError) as error:
            raise PrometheusAway(f"{self._name} gave an answer that is none of Prometheus' API") from error
        if not isinstance(result, list):
            raise PrometheusAway(f"{self._name} gave an answer that is none of Prometheus' API")
        return result


class NoPrometheus:
    """Stands for Prometheus where none is configured: every figure is missing, and the reason says what to do."""

    async def read(self, now: float, pools: Sequence[ScaledPool]) -> dict[str, PoolReading]:
        """Readings without a figure."""
        trouble = "no Prometheus is configured; set TIDEPOOL_PROMETHEUS_URL"
        return readings(pools, Snapshot(time=now), now=now, stale_after_seconds=0.0, trouble=trouble)

    async def seen(self, now: float, at_most_old_seconds: float) -> Snapshot:  # noqa: ARG002 - the same for all
        """Raises PrometheusAway."""
        raise PrometheusAway("no Prometheus is configured; set prometheus.url of the chart")

    async def past(self, now: float, pools: Sequence[ScaledPool]) -> Past:  # noqa: ARG002 - the same for all
        """No past: demand is known from now on."""
        return {}

    async def work(self, now: float, pools: Sequence[ScaledPool]) -> Work:  # noqa: ARG002 - the same for all
        """Nothing that engines could be known by."""
        return {}

    async def scraped_pods(self, now: float, pool: str, since_seconds: float, step_seconds: float) -> Counts:  # noqa: ARG002
        """None are known."""
        return ()

    async def close(self) -> None:
        """Nothing to let go of."""


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def _seen(future: asyncio.Future[Any]) -> None:
    """Takes note of the outcome of a query that nobody waits for any more."""
    if not future.cancelled():
        future.exception()
