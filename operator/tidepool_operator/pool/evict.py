"""What becomes of Jobs, and of what they have loaded, when the spec wants other files.

A finished Job is the record of a folder. Where files are to go, it stays until another Job, made from its own pod
so that it finds the same volume, has dropped the folder; one that cannot is given up after an hour, and the files
stay.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from tidepool_api import contract
from tidepool_api.modelpool import ModelPool
from tidepool_api.placement import Retention
from tidepool_operator.pool import cache, loader
from tidepool_operator.pool.model import Object
from tidepool_operator.pool.pod_status import condition
from tidepool_operator.pool.render import owned

_LOADS, _DROPS = "-load-", "-drop-"
_TRIES: Final = 10
_SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class Evictions:
    """Jobs to make, and Jobs to delete."""

    makes: tuple[Object, ...] = ()
    garbage: tuple[Object, ...] = ()


def is_done(job: Object | None) -> bool:
    """Whether a Job has done what it is for."""
    return job is not None and condition(job, "Complete").get("status") == "True"


def is_eviction(job: Object) -> bool:
    """Whether a Job drops files."""
    found = next(
        one for one in job["spec"]["template"]["spec"]["containers"] if one["name"] == contract.LOADER_CONTAINER
    )
    return bool(found["args"][0] == "drop")


def eviction_of(job: str) -> str:
    """Name of the Job that drops what another has loaded."""
    pool, _, digest = job.rpartition(_LOADS)
    return f"{pool}{_DROPS}{digest}"


def evict(
    pool: ModelPool, unwanted: Sequence[Object], wanted: Set[tuple[str, str]], used: Set[tuple[str, str]]
) -> Evictions:
    """`unwanted` are Jobs of the pool that its spec asks for no more, `wanted` the claims and folders that it asks
    for, `used` claims and arguments of engines of all revisions that are kept."""
    drops = {job["metadata"]["name"]: job for job in unwanted if is_eviction(job)}
    makes: list[Object] = []
    garbage: list[Object] = []
    kept: set[str] = set()
    for job in (job for job in unwanted if not is_eviction(job)):
        name = eviction_of(job["metadata"]["name"])
        claim, path = cache.claim_of(job["spec"]["template"]), loader.target(job["spec"]["template"])
        if not _goes(pool) or not is_done(job) or (claim, path) in wanted:
            garbage.append(job)
        elif any(claim == place and path in argument for place, argument in used):
            continue
        elif name not in drops:
            makes.append(_drop(pool, job, name, path))
        elif _over(drops[name]):
            garbage.append(job)
        else:
            kept.add(name)
    garbage += [job for name, job in drops.items() if name not in kept]
    return Evictions(tuple(makes), tuple(garbage))


def _goes(pool: ModelPool) -> bool:
    cache = pool.spec.cache
    return cache is not None and cache.retention is Retention.DELETE


def _over(drop: Object) -> bool:
    return is_done(drop) or condition(drop, "Failed").get("status") == "True"


def _drop(pool: ModelPool, job: Object, name: str, path: str) -> Object:
    template = job["spec"]["template"]
    (container,) = template["spec"]["containers"]
    # It needs no credentials, and their Secret may be gone.
    plain = [entry for entry in container.get("env") or () if "valueFrom" not in entry]
    args = ["drop", path, "--user", loader.user(pool)]
    # The API server has added labels that are the other Job's.
    labels = {contract.MANAGED_BY_LABEL: contract.MANAGED_BY, contract.LOADS_FOR_LABEL: pool.metadata.name}
    spec = {**template["spec"], "containers": [{**container, "env": plain, "args": args}]}
    return owned(pool, "batch/v1", "Job", name) | {
        "spec": {
            "backoffLimit": _TRIES,
            "activeDeadlineSeconds": _SECONDS,
            "completions": 1,
            "parallelism": 1,
            "template": {"metadata": {"labels": labels}, "spec": spec},
        }
    }
