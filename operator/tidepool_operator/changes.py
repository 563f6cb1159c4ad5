"""What follows from a change in the store: what is due, and who else must hear of it."""

from collections.abc import Callable
from dataclasses import dataclass

from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, AGENT_WORKFLOW_RUN, MODEL_POOL, Kind, Object
from tidepool_operator.cluster.names import Names
from tidepool_operator.cluster.store import Key, key_of, pool_of
from tidepool_operator.due import Due, Work
from tidepool_operator.workflow_figures import only_figures_changed


def asks_classifier(pool: Object | None) -> bool:
    """Whether a ModelPool has a rule that asks one."""
    traffic = ((pool or {}).get("spec") or {}).get("traffic") or {}
    return any(rule.get("classifier") for rule in traffic.get("rules") or ())


@dataclass(frozen=True, slots=True)
class Changes:
    """Listens to the store. `fleet`: what gateways are told is due; `hosts`: so is what administrators allow;
    `run_gone`: the object of a run was deleted."""

    due: Due
    names: Names
    fleet: Callable[[], None]
    hosts: Callable[[], None]
    run_gone: Callable[[Object], None]

    def __call__(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        """An object has changed, come (`before` is None) or gone (`after` is)."""
        item = after or before
        if item is None:
            return
        if kind == AGENT_WORKFLOW:
            # Figures move once a minute of each that runs, and would have its whole namespace looked at.
            if not only_figures_changed(before, after):
                self._workflow_changed(key_of(item), new=before is None, gone=after is None)
        elif kind == AGENT_WORKFLOW_RUN:
            self._run_changed(item, gone=after is None)
        elif (pool := pool_of(kind, item)) is not None:
            self.due.pool(pool)
        if kind == MODEL_POOL:
            self.fleet()
            if asks_classifier(after) and not asks_classifier(before):
                self.hosts()
            for other in self.names.changed(before, after):
                self.due.pool(other)
            if before is None or after is None:
                self.due.workflows(key_of(item).namespace)

    def _workflow_changed(self, key: Key, *, new: bool, gone: bool) -> None:
        if new:
            self.hosts()
        if gone:
            self.due.forget(Work.WORKFLOW, key)
        if new or gone:
            self.due.namesakes(key)
        # Workflows may run one another.
        self.due.workflows(key.namespace)
        self.fleet()

    def _run_changed(self, raw: Object, *, gone: bool) -> None:
        key = key_of(raw)
        if gone:
            self.due.forget(Work.RUN, key)
            self.run_gone(raw)
        else:
            self.due.run(key)
