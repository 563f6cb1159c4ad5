"""LoRA adapters: what engines are started with so that they can take them, where they lie, how far each has come.

Sidecars load them into running engines (SidecarSettings.adapters). What makes new pods is only what a pod cannot
get while it runs: the switch that lets an engine take adapters at all, and the mount of a claim.
"""

import hashlib
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

from tidepool_api.engine import Adapter
from tidepool_api.load import LoadReport
from tidepool_api.modelpool import ModelPool
from tidepool_api.routing import WantedAdapter
from tidepool_api.status import AdapterState
from tidepool_operator.pool.cache import MODEL_MOUNT, Files, model_claim, preloads
from tidepool_operator.pool.engine_signs import SIGNS
from tidepool_operator.pool.log_tail import scrubbed
from tidepool_operator.pool.model import Object
from tidepool_operator.pool.reasons import Reason, explain

MOUNT: Final = "/adapters"
_SLOTS: Final = 4
_ENABLE: Final = "--enable-lora"
_OF_ADAPTERS: Final = (Reason.ADAPTER_NOT_FOUND, Reason.ADAPTER_REFUSED)
# How vLLM wraps what a worker says (vllm/v1/engine/core_client.py, vllm/v1/executor).
_WRAPPED: Final = re.compile(
    r"^Call to add_lora method failed: (Worker failed with error '(?P<worker>.*)', please check)?"
)


def enabled(pool: ModelPool) -> bool:
    """Whether the pool's engines take adapters."""
    return bool(pool.spec.model.adapters) or pool.spec.model.adapter_slots is not None


def arguments(pool: ModelPool) -> tuple[str, ...]:
    """Of the engine; the same whichever adapters there are."""
    slots = pool.spec.model.adapter_slots or _SLOTS
    return (_ENABLE, f"--max-loras={slots}") if enabled(pool) else ()


def variables(pool: ModelPool) -> dict[str, str]:
    """Environment of the engine: it opens what loads adapters, on its port that only the router reaches."""
    return {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"} if enabled(pool) else {}


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine finds an adapter, and what has to be fetched before it does."""

    path: str
    files: Files | None = None


def place(pool: ModelPool, adapter: Adapter) -> Place:
    """A path in the pod, or a repository that the engine downloads by itself."""
    scheme, _, rest = adapter.uri.partition("://")
    if scheme == "file":
        return Place(rest)
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        root = MODEL_MOUNT if claim == model_claim(pool) else f"{MOUNT}/{claim}"
        return Place(f"{root}/{path}".rstrip("/"))
    if preloads(pool):
        files = Files(adapter.uri)
        return Place(files.path, files)
    return Place(rest)


def fetched(pool: ModelPool) -> list[Files]:
    """What Jobs fetch into the cache."""
    places = [place(pool, adapter) for adapter in pool.spec.model.adapters]
    return list(dict.fromkeys(one.files for one in places if one.files is not None))


def wanted(pool: ModelPool, there: Set[str]) -> tuple[WantedAdapter, ...] | None:
    """What sidecars are to load; `there` are the paths of what was fetched. None: nothing is theirs to decide."""
    if not enabled(pool):
        return None
    places = [(adapter.name, place(pool, adapter)) for adapter in pool.spec.model.adapters]
    return tuple(
        WantedAdapter(name=name, path=one.path) for name, one in places if one.files is None or one.path in there
    )


def reachable(
    adapters: tuple[WantedAdapter, ...] | None, new: Object, old: Object
) -> tuple[WantedAdapter, ...] | None:
    """Those of the `new` pod template's adapters that a pod of the `old` one can load: a path must lie on the same
    volume in both."""
    if adapters is None or _ENABLE not in _engine(old).get("args", ()):
        return None
    news, olds = _volumes(new), _volumes(old)
    return tuple(one for one in adapters if _volume(one.path, news) == _volume(one.path, olds))


def mounts(pool: ModelPool) -> tuple[list[Object], list[Object]]:
    """Volumes and mounts of claims that only adapters lie on."""
    claims = {
        adapter.uri.removeprefix("pvc://").partition("/")[0]
        for adapter in pool.spec.model.adapters
        if adapter.uri.startswith("pvc://")
    }
    volumes, made = [], []
    for claim in sorted(claims - {model_claim(pool)}):
        name = f"adapters-{hashlib.sha256(claim.encode()).hexdigest()[:10]}"
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
        made.append({"name": name, "mountPath": f"{MOUNT}/{claim}", "readOnly": True})
    return volumes, made


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one adapter has come."""

    name: str
    state: AdapterState
    loaded: int
    reason: Reason | None = None
    message: str = ""

    def status(self) -> Object:
        """Its entry in the pool's status."""
        said = {"reason": str(self.reason), "message": self.message} if self.reason else {}
        return {"name": self.name, "state": str(self.state), "loadedReplicas": self.loaded, **said}


def progress(
    pool: ModelPool, loads: Mapping[str, LoadReport], pods: Set[str], waits: Mapping[str, tuple[Reason, str]]
) -> list[Progress]:
    """Of every adapter of the spec. `pods` are those of the newest revision that are up; `waits` says by address
    what is fetched still: why it takes its time, or why it does not come."""
    reports = [report for name, report in loads.items() if name in pods]
    return [_progress(adapter, reports, len(pods), waits.get(adapter.uri)) for adapter in pool.spec.model.adapters]


def _progress(
    adapter: Adapter, reports: list[LoadReport], pods: int, waits: tuple[Reason, str] | None
) -> Progress:
    name = adapter.name
    loaded = sum(name in report.served_adapters for report in reports)
    if waits is not None:
        reason, what = waits
        if reason is Reason.PRELOADING:
            return Progress(name, AdapterState.FETCHING, loaded)
        return Progress(name, AdapterState.FAILED, loaded, reason, explain(reason, what))
    failures = [said for report in reports for failed, said in report.adapters_failed if failed == name]
    if failures:
        reason = reason_of(failures[0])
        what = f"{len(failures)} of {pods} engines do not take adapter {name}: {scrubbed(failures[0])}"
        return Progress(name, AdapterState.FAILED, loaded, reason, explain(reason, what))
    if not pods:
        return Progress(name, AdapterState.WAITING, 0)
    return Progress(name, AdapterState.LOADED if loaded >= pods else AdapterState.LOADING, loaded)


def reason_of(said: str) -> Reason:
    """By the table of what engines say at their end, where they say the same."""
    wrapped = _WRAPPED.match(said)
    text = said if wrapped is None else wrapped["worker"] or said[wrapped.end() :]
    found = (sign.reason for sign in SIGNS if sign.reason in _OF_ADAPTERS and re.match(sign.text, text))
    return next(found, Reason.ADAPTER_FAILED)


def _engine(template: Object) -> Object:
    found: Object = next(one for one in template["spec"]["containers"] if one["name"] == "engine")
    return found


def _volumes(template: Object) -> dict[str, Object]:
    """Volumes by where the engine has them."""
    named = {volume["name"]: volume for volume in template["spec"].get("volumes") or ()}
    return {one["mountPath"]: named.get(one["name"], {}) for one in _engine(template).get("volumeMounts") or ()}


def _volume(path: str, volumes: Mapping[str, Object]) -> Object | None:
    """The volume that a path lies on."""
    holders = [mount for mount in volumes if path == mount or path.startswith(f"{mount}/")]
    found = volumes[max(holders, key=len)] if holders else None
    # The API server adds defaults to what it stores.
    return (
        None
        if found is None
        else {key: found[key] for key in ("persistentVolumeClaim", "hostPath") if key in found}
    )
