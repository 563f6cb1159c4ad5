"""Whatever the interleaving of edits, faults and restarts: the world converges to the last spec, and on the way no
invariant breaks.

The operator's real reconcile runs against a scripted API server. It is killed at any of its writes, its requests
meet any fault, its watches lag, other people edit what is its own; pods come, fail and go by themselves.
"""

from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from faults.script import Asked, Verb
from pools.cluster import POOL, Cluster, Killed, is_event
from pools.objects import condition
from scripted.examples import examples
from tidepool_api.contract import MANAGED_BY, MANAGED_BY_LABEL, REVISION_LABEL
from tidepool_operator.cluster.kinds import DEPLOYMENT, MODEL_POOL, OWNED, POD, SERVICE, Kind
from tidepool_operator.cluster.store import Key
from tidepool_operator.errors import ApiError, Conflict, Expired, NotFound, TooManyRequests, Unavailable

ENGINES: Final[list[dict[str, object]]] = [{}, {"args": ["--max-num-seqs=8"]}, {"args": ["--max-num-seqs=16"]}]
REFUSED: Final = {"spec": {"containers": [{"name": "engine", "imagine": 1}]}}
ERRORS: Final[list[ApiError]] = [
    Conflict("moved on", status=409),
    Expired("too old", status=410),
    TooManyRequests("busy", retry_after_seconds=10.0),
    Unavailable("etcd has no leader", status=500),
    Unavailable("no answer"),
]
STRANGER: Final = {"spec": {"ports": [{"port": 5432}]}}


class AnyFault(RuleBasedStateMachine):
    """One pool, one operator after another."""

    @initialize(accelerators=st.integers(2, 8), replicas=st.integers(1, 4), sees=st.booleans())
    def begin(self, accelerators: int, replicas: int, sees: bool) -> None:
        self.cluster = Cluster(max(accelerators, replicas), {"replicas": replicas}, sees=sees)
        self.cluster.settle()
        self.cluster.server.before = self._look_at

    # The operator, and what it meets.

    @rule()
    def reconcile(self) -> None:
        self._reconcile()

    @rule(number=st.integers(1, 12), done=st.booleans())
    def reconcile_and_die(self, number: int, done: bool) -> None:
        self._reconcile(Killed(), number, done=done)

    @rule(error=st.sampled_from(ERRORS), number=st.integers(1, 12), done=st.booleans(), reads=st.booleans())
    def reconcile_in_trouble(self, error: ApiError, number: int, done: bool, reads: bool) -> None:
        # An answer that is lost looks like a server that did nothing.
        self._reconcile(error, number, done=done and isinstance(error, Unavailable), reads=reads)

    @rule(kinds=st.sets(st.sampled_from([MODEL_POOL, DEPLOYMENT, SERVICE, POD]), min_size=1))
    def reconcile_behind(self, kinds: set[Kind]) -> None:
        """Only some watches have told what there is by now."""
        self.cluster.publish()
        self.cluster.deliver(*kinds)
        self._act()

    @rule()
    def restart(self) -> None:
        self.cluster.publish()
        self.cluster.begin_life()

    @rule(rounds=st.integers(1, 20))
    def away_for_an_hour(self, rounds: int) -> None:
        """The cluster goes on by itself, and the next operator finds what has become of it."""
        cluster = self.cluster
        for _ in range(rounds):
            cluster.now += 3600.0 / rounds
            cluster.sync_replicas()
            cluster.schedule()
            cluster.start_one()
            cluster.finish_one()
        self.restart()

    # The cluster.

    @rule(times=st.integers(1, 3))
    def cluster_works(self, times: int) -> None:
        for _ in range(times):
            self.cluster.sync_replicas()
            self.cluster.schedule()
            self.cluster.start_one()

    @rule()
    def pods_end(self) -> None:
        while any(found.deleting for found in self.cluster.pods.values()):
            self.cluster.finish_one()

    @rule(index=st.integers(0, 9))
    def pod_fails(self, index: int) -> None:
        self.cluster.fail_one(index)
        # What has failed is not known to serve: bounds are of what an operator can know.
        self.cluster.publish()
        self.cluster.deliver(POD)

    @rule()
    def collect(self) -> None:
        self.cluster.collect()

    @rule(seconds=st.sampled_from([1.0, 60.0, 4000.0]))
    def wait(self, seconds: float) -> None:
        self.cluster.now += seconds

    # People.

    @rule(engine=st.sampled_from(ENGINES))
    def change(self, engine: dict[str, object]) -> None:
        self.cluster.change(engine=engine, podTemplate={})

    @rule()
    def change_to_what_is_refused(self) -> None:
        self.cluster.change(podTemplate=REFUSED)

    @rule(replicas=st.integers(0, 4))
    def scale(self, replicas: int) -> None:
        if replicas <= self.cluster.accelerators:
            self.cluster.change(replicas=replicas)

    @rule(data=st.data())
    def meddle(self, data: st.DataObject) -> None:
        """Somebody changes, or deletes, what is the operator's."""
        server = self.cluster.server
        owned = sorted((kind.kind, key) for kind in OWNED if kind != DEPLOYMENT for key in server.items[kind])
        if not owned:
            return
        name, key = data.draw(st.sampled_from(owned))
        kind = next(kind for kind in OWNED if kind.kind == name)
        if data.draw(st.booleans()):
            server.remove(kind, key)
        else:
            server.edit(
                kind, key, {"spec": {"selector": {"else": "where"}}, "metadata": {"labels": {"mine": "1"}}}
            )

    @rule()
    def delete_pool(self) -> None:
        self.cluster.server.remove(MODEL_POOL, POOL)

    @precondition(lambda self: self.cluster.pool() is None)
    @rule()
    def make_pool_again(self) -> None:
        self.cluster.make_pool()

    @rule()
    def stranger(self) -> None:
        """Somebody else is quicker with a name that the pool wants."""
        server = self.cluster.server
        if server.get(SERVICE, POOL) is None:
            server.put(SERVICE, {"metadata": {"name": POOL.name, "namespace": POOL.namespace}, **STRANGER})
            self.cluster.deliver(SERVICE)

    # What must hold.

    def _reconcile(
        self, error: BaseException | None = None, number: int = 0, *, done: bool = False, reads: bool = False
    ) -> None:
        """On all that has happened; `error` comes at the request of that number, after it where it is `done`."""
        cluster = self.cluster
        cluster.publish()
        cluster.deliver()
        wanted = ((cluster.pool() or {}).get("spec") or {}).get("replicas", 0)
        serving = cluster.serving()
        self._act(error, number, done=done, reads=reads)
        # Auto leaves at most one place empty. Where fewer serve already, nothing that serves goes.
        assert cluster.serving() >= min(serving, wanted - 1)

    def _act(
        self, error: BaseException | None = None, number: int = 0, *, done: bool = False, reads: bool = False
    ) -> None:
        cluster, left = self.cluster, number

        def met(one: Asked) -> None:
            nonlocal left
            if error is not None and (one.writes or reads) and not is_event(one):
                left -= 1
                if left == 0:
                    raise error

        def before(one: Asked) -> None:
            if not done:
                met(one)
            self._look_at(one)

        cluster.server.before = before
        cluster.server.after = met if done else _nothing
        try:
            found = cluster.work()
        except Killed:
            cluster.begin_life()
        else:
            assert found is None or found is error or isinstance(found, Conflict | NotFound), found
        finally:
            cluster.server.before, cluster.server.after = self._look_at, _nothing
        self._one_owner()

    def _look_at(self, one: Asked) -> None:
        """Each write as it comes."""
        if not one.writes or is_event(one):
            return
        key, server = Key(one.namespace, one.name), self.cluster.server
        assert (one.resource, one.verb) != ("pods", Verb.DELETE), "pods go by their Deployment, which drains them"
        if one.verb is Verb.DELETE and one.resource == "deployments":
            item = server.get(DEPLOYMENT, key)
            if item is not None:
                revision = item["metadata"]["labels"][REVISION_LABEL]
                assert item["spec"]["replicas"] == 0
                assert all(found.revision != revision for found in self.cluster.pods.values()), "it has pods"
        if one.resource == "services":
            item = server.get(SERVICE, key)
            assert item is None or item.get("spec") != STRANGER["spec"], "it is somebody else's"

    def _one_owner(self) -> None:
        for kind in OWNED:
            for item in self.cluster.server.items[kind].values():
                if (item["metadata"].get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGED_BY:
                    assert len(item["metadata"]["ownerReferences"]) == 1

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        try:
            self._converges()
        finally:
            self.cluster.close()

    def _converges(self) -> None:
        cluster = self.cluster
        if cluster.pool() is None:
            cluster.collect()
            cluster.settle()
            assert all(not cluster.server.items[kind] for kind in OWNED if kind != SERVICE)
            cluster.make_pool()
        if (stranger := cluster.server.get(SERVICE, POOL)) and stranger.get("spec") == STRANGER["spec"]:
            cluster.server.remove(SERVICE, POOL)
        if cluster.spec.get("podTemplate"):
            cluster.change(podTemplate={})
        self._settle()
        if condition(cluster.status, "Progressing")["reason"] == "ProgressDeadlineExceeded":
            # Stopped, since a pod was late: the pool is whole, and the next change is rolled out.
            assert cluster.serving() == cluster.spec["replicas"]
            cluster.change(engine={"args": ["--max-num-seqs=32"]})
            self._settle()
        replicas = cluster.spec["replicas"]
        assert [count for count in cluster.replicas().values() if count] == [replicas] * (replicas > 0)
        assert cluster.serving() == replicas == len(cluster.pods)
        pool: Any = cluster.pool()
        assert pool["status"]["observedGeneration"] == pool["metadata"]["generation"]
        assert condition(cluster.status, "Ready")["status"] == "True"
        assert condition(cluster.status, "Progressing")["reason"] == "Complete"
        before = cluster.server.changes
        cluster.begin_life()
        cluster.reconcile()
        assert cluster.server.changes == before, "a new operator finds nothing to do"
        self._as_made_anew()

    def _settle(self) -> None:
        for _ in range(6):
            self.cluster.collect()
            self.cluster.settle(80)
            self.cluster.now += 60.0  # what was changed back and forth is left alone for a minute

    def _as_made_anew(self) -> None:
        """No edit of anybody is left in a field that the operator asks for."""
        made = Cluster(8, self.cluster.spec, sees=False)
        made.settle()
        for kind in OWNED:
            if kind == DEPLOYMENT:
                continue
            wanted = {key: item.get("spec") for key, item in made.server.items[kind].items()}
            found = {key: item.get("spec") for key, item in self.cluster.server.items[kind].items()}
            assert found == wanted
        made.close()


def _nothing(_: Asked) -> None:
    """No fault."""


TestAnyFault = AnyFault.TestCase
TestAnyFault.pytestmark = [pytest.mark.timeout(3000)]  # the soak's many examples
TestAnyFault.settings = examples(3, stateful_step_count=30)
