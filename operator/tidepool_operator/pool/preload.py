"""Jobs that load files into a pool's cache: the model's before there are pods, adapters' beside them.

A Job is named after what is asked of it, so that another one is made where that changes: the files that it loads,
the account and variables that it does so with, the nodes where it may. It starts again by itself until it is done,
as an engine does, and stays as the record of that until nobody wants it any more: no timer takes it away, or it
would be made again each time. Its pods are none of the pool's: no Service, budget or count sees them.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidepool_api import contract
from tidepool_api.modelpool import ModelPool
from tidepool_operator.pool import adapters, cache, loader
from tidepool_operator.pool.cache import Files, Way
from tidepool_operator.pool.clues import NO_CLUES
from tidepool_operator.pool.diagnosis import TROUBLES, Finding, diagnose, foremost
from tidepool_operator.pool.evict import evict, eviction_of, is_done, is_eviction
from tidepool_operator.pool.groups import WORKLOADS, template_of
from tidepool_operator.pool.model import Doomed, Object, Observed
from tidepool_operator.pool.ownership import is_own, may_take
from tidepool_operator.pool.pod_parts import pod_security
from tidepool_operator.pool.pod_status import condition
from tidepool_operator.pool.podtemplate import merge_template
from tidepool_operator.pool.reasons import Reason
from tidepool_operator.pool.render import owned

JOB_LABEL: Final = "batch.kubernetes.io/job-name"
_HASH: Final = 7  # with the longest name of a pool a label's 63 characters are full
# The kubelet starts the container again, slower and slower up to every five minutes; the Job never gives up.
_TRIES: Final = 2**31 - 1
_GRACE_SECONDS: Final = 30
# Of spec.podTemplate what decides whether a pod may be made, is placed, and finds its way to a store.
_TAKEN_OVER: Final = (
    "affinity",
    "dnsConfig",
    "dnsPolicy",
    "hostAliases",
    "imagePullSecrets",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
    "serviceAccountName",
    "tolerations",
)


@dataclass(frozen=True, slots=True)
class Preload:
    """`makes`: Jobs to make; `garbage`: those that nobody wants; `waits`: why pods cannot be made yet; `adapters`:
    the same of adapters, by address, which pods do not wait for."""

    makes: tuple[Object, ...] = ()
    garbage: tuple[Doomed, ...] = ()
    waits: Finding | None = None
    adapters: Mapping[str, Finding] = field(default_factory=dict)


def preload(observed: Observed) -> Preload:
    """What to do about Jobs now."""
    pool, jobs = observed.pool, _jobs(observed)
    wanted = {item["metadata"]["name"]: (item, files) for item, files in _wanted(observed)}
    unwanted = [job for name, job in jobs.items() if name not in wanted]
    places = {(_claim(item), files.path) for item, files in wanted.values()}
    dropped = evict(pool, unwanted, places, _in_use(observed))
    # Wanted again while it is being dropped: nobody knows what is there. One that a pool of the same name left
    # would not go with this one, and cannot be applied over.
    stale = {
        name
        for name in wanted
        if name in jobs and (_failed(jobs[name]) or eviction_of(name) in jobs or not is_own(pool, jobs[name]))
    }
    waits = {
        files: _waits(observed, name, files)
        for name, (_, files) in wanted.items()
        if name in stale or not is_done(jobs.get(name))
    }
    return Preload(
        makes=(*(item for name, (item, _) in wanted.items() if name not in jobs), *dropped.makes),
        garbage=tuple(_doomed(job) for job in (*(jobs[name] for name in sorted(stale)), *dropped.garbage)),
        waits=waits.pop(cache.files(pool), None),
        adapters={files.uri: finding for files, finding in waits.items()},
    )


def there(observed: Observed) -> frozenset[str]:
    """Paths of what Jobs have brought into the cache; what lies on a claim of before is not there."""
    spec = observed.pool.spec.cache
    claim = (spec.persistent_volume_claim if spec is not None else None) or ""
    done = [job for job in _jobs(observed).values() if is_done(job) and not is_eviction(job)]
    return frozenset(loader.target(job["spec"]["template"]) for job in done if _claim(job) == claim)


def _claim(job: Object) -> str:
    return cache.claim_of(job["spec"]["template"])


def _in_use(observed: Observed) -> frozenset[tuple[str, str]]:
    """Claims and arguments of all revisions that there are, those kept for a change back too."""
    templates = [template_of(item) for item in observed.objects if item["kind"] in WORKLOADS]
    return frozenset(
        (cache.claim_of(template), argument)
        for template in templates
        for one in template["spec"]["containers"]
        for argument in one.get("args") or ()
    )


def unready(observed: Observed) -> tuple[str, ...]:
    """Names of the Jobs whose pods are worth a look: they load, are not done, and nothing runs."""
    return tuple(
        item["metadata"]["name"]
        for item in observed.objects
        if item["kind"] == "Job"
        and not (is_done(item) or is_eviction(item) or (item.get("status") or {}).get("ready"))
    )


def _jobs(observed: Observed) -> dict[str, Object]:
    return {
        item["metadata"]["name"]: item
        for item in observed.objects
        if item["kind"] == "Job" and may_take(observed.pool, item)
    }


def _wanted(observed: Observed) -> list[tuple[Object, Files]]:
    pool = observed.pool
    model = [cache.files(pool)] if cache.way(pool) is Way.JOB else []
    found = dict.fromkeys([*model, *adapters.fetched(pool)])
    return [(job(pool, files, observed.settings.router_image), files) for files in found]


def job(pool: ModelPool, files: Files, image: str) -> Object:
    """The Job that loads `files` by the router's image."""
    name = f"{pool.metadata.name}-load-{_digest(pool, files)}"
    template = _template(pool, files, image)
    spec = {"backoffLimit": _TRIES, "completions": 1, "parallelism": 1, "template": template}
    return owned(pool, "batch/v1", "Job", name) | {"spec": spec}


def _template(pool: ModelPool, files: Files, image: str) -> Object:
    accelerator = pool.spec.accelerator
    spec: Object = {
        "restartPolicy": "OnFailure",
        "serviceAccountName": pool.metadata.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": pod_security(),
        # It needs no device, but a volume that only some nodes reach must be one that the engines' nodes reach.
        "nodeSelector": dict(accelerator.node_selector),
        "tolerations": [one.model_dump(by_alias=True, exclude_none=True) for one in accelerator.tolerations],
        "containers": [loader.container(pool, files, image)],
        "volumes": [{"name": "tmp", "emptyDir": {}}, cache.volume(pool)],
    }
    if pool.spec.scheduling.priority_class_name:
        spec["priorityClassName"] = pool.spec.scheduling.priority_class_name
    labels = {contract.MANAGED_BY_LABEL: contract.MANAGED_BY, contract.LOADS_FOR_LABEL: pool.metadata.name}
    return merge_template({"metadata": {"labels": labels}, "spec": spec}, _own(pool.spec.pod_template))


def _own(patch: Mapping[str, Any]) -> Object:
    spec = patch.get("spec")
    if not isinstance(spec, Mapping):
        return {}
    return {"spec": {key: spec[key] for key in _TAKEN_OVER if key in spec}}


def _digest(pool: ModelPool, files: Files) -> str:
    """Of what is asked for, not of what a release makes of it: an upgrade of the operator loads nothing anew."""
    accelerator, spec = pool.spec.accelerator, pool.spec.cache
    asked = {
        **loader.asked(pool, files),
        "variables": loader.shared(pool),
        "claim": spec and spec.persistent_volume_claim,
        "nodeSelector": dict(accelerator.node_selector),
        "tolerations": [one.model_dump(mode="json", exclude_none=True) for one in accelerator.tolerations],
        "priorityClass": pool.spec.scheduling.priority_class_name,
        "podTemplate": _own(pool.spec.pod_template),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:_HASH]


def _failed(job: Object) -> bool:
    """Somebody gave it a limit, or its pods were ended by force too often: it is made anew."""
    return condition(job, "Failed").get("status") == "True"


def _waits(observed: Observed, name: str, files: Files) -> Finding:
    """What its pod is in trouble with, or else that it takes its time."""
    pods = [pod for pod in observed.loaders if (pod["metadata"].get("labels") or {}).get(JOB_LABEL) == name]
    accelerator, clues = observed.pool.spec.accelerator.resource, observed.clues
    found = [diagnose(pod, accelerator, clues.get(pod["metadata"]["name"], NO_CLUES)) for pod in pods]
    # A pod that starts or goes is no trouble of its files.
    return foremost([one for one in found if one and one.reason in TROUBLES]) or Finding(
        Reason.PRELOADING, f"Job {name} loads {files.uri} into the cache"
    )


def _doomed(job: Object) -> Doomed:
    metadata = job["metadata"]
    return Doomed(job["apiVersion"], job["kind"], metadata["name"], metadata["uid"])
