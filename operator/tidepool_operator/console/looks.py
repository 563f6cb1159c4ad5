"""Gathers what the views are made from: the operator's cache and memory, and where needed Prometheus, sidecars and
gateways, each asked only while somebody looks."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from tidepool_api.load import LoadReport
from tidepool_api.scaling import Scaling
from tidepool_api.workflow_run import RunStory, RunSummary
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, AGENT_WORKFLOW_RUN, DEPLOYMENT, MODEL_POOL, POD, Object
from tidepool_operator.cluster.store import Key, Store, key_of
from tidepool_operator.console.asked import Asked
from tidepool_operator.console.hub import NothingThere, Topic, What
from tidepool_operator.console.views import demand, depth, flows, pools
from tidepool_operator.console.views.delta import Document
from tidepool_operator.console.views.figures import NOTHING, PoolFigures, by_pool
from tidepool_operator.console.views.pools import PoolFacts
from tidepool_operator.errors import OperatorError
from tidepool_operator.scaling.model import Decision, Demand, ScalingSpec
from tidepool_operator.scaling.record import BIN_SECONDS, Record, horizon_bins
from tidepool_operator.scaling.spec import from_api
from tidepool_operator.telemetry.history import Counts
from tidepool_operator.telemetry.series import Snapshot

# How often each kind of view is made anew while somebody looks.
EVERY_SECONDS: Final[Mapping[What, float]] = {
    What.POOLS: 2.0,
    What.POOL: 1.0,
    What.WORKFLOWS: 2.0,
    What.WORKFLOW: 2.0,
    What.RUN: 1.0,
}
# Where the autoscaler has asked Prometheus within its interval, that answer does; looked at twice in that time.
_FIGURES_SECONDS: Final = 6.0
_ASKED_SECONDS: Final = 3.0
# Pods over the past day are asked for so often, of as many pools as may be looked at.
_PODS_SECONDS: Final = 60.0
_MOST_PASTS: Final = 64


class Figures(Protocol):
    """Prometheus."""

    async def seen(self, now: float, at_most_old_seconds: float) -> Snapshot:
        """All answers. Raises OperatorError."""
        ...

    async def scraped_pods(self, now: float, pool: str, since_seconds: float, step_seconds: float) -> Counts:
        """Pods over time. Raises OperatorError."""
        ...


class Scaler(Protocol):
    """What the autoscaler remembers; nothing, in a process that does not lead."""

    def recorded(self, key: str) -> Record | None:
        """Demand of the past."""
        ...

    def startup_seconds(self, key: str) -> float:
        """How long a pod takes until it serves."""
        ...


class Runs(Protocol):
    """The gateways' memory of runs."""

    async def of(self, workflow: str) -> Sequence[RunSummary]:
        """Runs of a workflow. Raises OperatorError."""
        ...

    async def told(self, run: str) -> RunStory:
        """One run. Raises OperatorError."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Where everything is from."""

    store: Store
    figures: Figures
    scaler: Scaler
    decision: Callable[[str], Decision | None]
    demand: Callable[[str], Demand]
    loads: Callable[[Iterable[Object]], Awaitable[Mapping[str, LoadReport]]]
    runs: Runs
    leads: Callable[[], bool]
    clock: Callable[[], float]
    interval_seconds: float = 5.0


class Looks:
    """Makes views."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources
        self._snapshot = Asked(self._seen, Snapshot(time=0.0), _ASKED_SECONDS)
        self._indexed: tuple[float, dict[str, PoolFigures]] = (-1.0, {})
        self._pods: dict[str, Asked[Counts]] = {}
        self._demands: dict[str, tuple[object, Any]] = {}
        self._makes: Mapping[What, Callable[[str], Awaitable[Document]]] = {
            What.POOLS: self._all_pools,
            What.POOL: self._pool,
            What.WORKFLOWS: self._workflows,
            What.WORKFLOW: self._workflow,
            What.RUN: self._run,
        }

    async def __call__(self, topic: Topic) -> Document:
        """The view. Raises NothingThere, OperatorError."""
        return await self._makes[topic.what](topic.key)

    async def close(self) -> None:
        """Ask nobody any more."""
        every: list[Asked[Any]] = [self._snapshot, *self._pods.values()]
        for asked in every:
            await asked.close()

    async def _all_pools(self, _: str) -> Document:
        figures, trouble = await self._figures()
        facts = [self._facts(raw, figures) for raw in self._from.store.all(MODEL_POOL)]
        rows = {one.key: pools.row(one) for one in facts}
        return {"pools": dict(sorted(rows.items())), "about": self._about(trouble)}

    async def _pool(self, name: str) -> Document:
        key = _key(name)
        raw = self._from.store.get(MODEL_POOL, key)
        if raw is None:
            raise NothingThere(f"There is no ModelPool {name}.")
        shown = sorted(self._from.store.of_pool(POD, key), key=lambda pod: str(pod["metadata"]["name"]))
        (figures, trouble), loads = await asyncio.gather(
            self._figures(), self._from.loads(shown[: depth.MOST_PODS])
        )
        facts = self._facts(raw, figures)
        return {
            "pool": depth.head(facts),
            "conditions": depth.conditions(facts),
            "decisions": depth.decisions(facts),
            "rollouts": depth.rollouts(facts, list(self._from.store.of_pool(DEPLOYMENT, key))),
            "pods": depth.pods(facts, loads),
            "demand": self._demand(facts),
            "replicas": await self._replicas(facts),
            "about": self._about(trouble),
        }

    async def _workflows(self, _: str) -> Document:
        runs = defaultdict[Key, list[Object]](list)  # each is looked at once, however many workflows there are
        for raw in self._from.store.all(AGENT_WORKFLOW_RUN):
            runs[_workflow_of(raw)].append(raw)
        rows = {
            str(key): flows.row(raw, runs.get(key, []))
            for raw in self._from.store.all(AGENT_WORKFLOW)
            if (key := key_of(raw))
        }
        return {"workflows": dict(sorted(rows.items())), "about": self._about(None)}

    async def _workflow(self, name: str) -> Document:
        key = _key(name)
        raw = self._from.store.get(AGENT_WORKFLOW, key)
        if raw is None:
            raise NothingThere(f"There is no AgentWorkflow {name}.")
        trouble: str | None = None
        summaries: Sequence[RunSummary] = ()
        try:
            summaries = await self._from.runs.of(name)
        except OperatorError as error:
            trouble = f"The gateways tell no runs: {error}"
        head = flows.head(raw)
        return {
            "workflow": head,
            "graph": flows.graph(raw),
            "runs": flows.runs(summaries, self._objects(key), head.get("deadline")),
            "about": self._about(trouble),
        }

    async def _run(self, run: str) -> Document:
        try:
            told = await self._from.runs.told(run)
        except OperatorError as error:
            raise NothingThere(f"No gateway tells of the run {run}: {error}") from error
        namespace = told.summary.workflow.partition("/")[0]
        return {"run": flows.story(told, self._speeds(namespace)), "about": self._about(None)}

    def _speeds(self, namespace: str) -> Mapping[str, float]:
        """Prompt tokens a second of a replica, by pool of the namespace, where they have been learned."""
        found = {}
        for raw in self._from.store.all(MODEL_POOL):
            speed = ((raw.get("status") or {}).get("capacity") or {}).get("prefillTokensPerSecond")
            if raw["metadata"].get("namespace", "") == namespace and speed:
                found[str(key_of(raw))] = float(speed)
        return found

    def _objects(self, key: Key) -> list[Object]:
        return [raw for raw in self._from.store.all(AGENT_WORKFLOW_RUN) if _workflow_of(raw) == key]

    def _facts(self, raw: Object, figures: Mapping[str, PoolFigures]) -> PoolFacts:
        key = key_of(raw)
        found = tuple(self._from.store.of_pool(POD, key))
        name = str(key)
        return PoolFacts(
            raw, found, figures.get(name, NOTHING), self._from.demand(name), self._from.decision(name)
        )

    async def _seen(self) -> Snapshot:
        return await self._from.figures.seen(self._from.clock(), _FIGURES_SECONDS)

    async def _figures(self) -> tuple[Mapping[str, PoolFigures], str | None]:
        """Prometheus' figures by pool, and why there are none."""
        now = self._from.clock()
        snapshot = await self._snapshot.look(now)
        if self._snapshot.trouble is not None:
            return {}, self._snapshot.trouble
        if self._indexed[0] != snapshot.time:
            self._indexed = (snapshot.time, by_pool(snapshot.series, snapshot.time, now))
        return self._indexed[1], next(iter(snapshot.failed.values()), None)

    def _demand(self, facts: PoolFacts) -> object:
        """Made anew when a bin is over, which is when a forecast is."""
        record, spec = self._from.scaler.recorded(facts.key), _scaling(facts.raw)
        if record is None or spec is None:
            return None
        startup = self._from.scaler.startup_seconds(facts.key)
        bins = horizon_bins(startup, self._from.interval_seconds)
        made_of = (record.last, record.bins.shape[1], bins, spec.season_seconds, spec.predicts)
        known = self._demands.get(facts.key)
        if known is None or known[0] != made_of:
            told = demand.told(record, spec.season_seconds, bins * BIN_SECONDS, predicts=spec.predicts)
            known = (made_of, told)
            while len(self._demands) >= _MOST_PASTS:
                del self._demands[next(iter(self._demands))]
            self._demands[facts.key] = known
        return known[1]

    async def _replicas(self, facts: PoolFacts) -> object:
        """Pods over the past day, and the counts that were decided."""
        asked = self._pods.get(facts.key)
        if asked is None:
            while len(self._pods) >= _MOST_PASTS:
                await self._pods.pop(next(iter(self._pods))).close()
            asked = self._pods[facts.key] = Asked(partial(self._past_pods, facts.key), (), _PODS_SECONDS)
        counts = await asked.look(self._from.clock())
        return {"at": [round(time) for time, _ in counts], "pods": [round(value) for _, value in counts]}

    async def _past_pods(self, key: str) -> Counts:
        return await self._from.figures.scraped_pods(self._from.clock(), key, demand.SHOWN_SECONDS, BIN_SECONDS)

    def _about(self, trouble: str | None) -> dict[str, Any]:
        return {"leads": self._from.leads(), "trouble": trouble}


def _key(name: str) -> Key:
    namespace, _, own = name.partition("/")
    return Key(namespace, own)


def _workflow_of(run: Object) -> Key:
    return Key(run["metadata"].get("namespace", ""), str((run.get("spec") or {}).get("workflow", "")))


def _scaling(raw: Object) -> ScalingSpec | None:
    try:
        return from_api(Scaling.model_validate(raw["spec"]["scaling"]))
    except (KeyError, ValueError):  # none, or one that the conditions complain of
        return None
