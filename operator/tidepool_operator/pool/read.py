"""From the API server's object to a ModelPool that plans can be made for."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tidepool_api.engine import Model
from tidepool_api.modelpool import ModelPool, ModelPoolSpec
from tidepool_api.problems import problems, unknown_fields
from tidepool_operator.pool import engine_flags
from tidepool_operator.scaling import schedules


def read(raw: Mapping[str, Any]) -> tuple[ModelPool, tuple[str, ...]]:
    """The pool, and why its spec cannot be served (nothing: it can).

    Fields that this release does not know are left aside: a newer CRD must not stop it. A spec that cannot be read
    at all gives a pool with an empty spec and the reasons; its metadata and replicas are right.
    """
    name = raw["metadata"]["name"]
    spec = raw.get("spec") or {}
    found = tuple(str(problem) for problem in problems(spec, name))
    known = {"metadata": raw["metadata"], "status": raw.get("status") or {}}
    try:
        pool = ModelPool.model_validate({**known, "spec": spec})
    except ValidationError as error:
        reasons = found or tuple(str(error).splitlines()[:1])
    else:
        return pool, found or tuple(_faults(pool))
    replicas = spec.get("replicas", 1) if isinstance(spec, Mapping) else 1
    empty = ModelPoolSpec(
        model=Model(uri="hf://unreadable/spec"), replicas=replicas if isinstance(replicas, int) else 1
    )
    return ModelPool.model_validate({**known, "spec": empty}), reasons


def _faults(pool: ModelPool) -> list[str]:
    """What only a closer look finds."""
    found = [] if pool.spec.scaling is None else schedules.faults(pool.spec.scaling)
    return found + (engine_flags.faults(pool) if engine_flags.certain(pool) else [])


def strangers(raw: Mapping[str, Any]) -> list[str]:
    """Paths of fields of the spec that this release does not know."""
    return unknown_fields(ModelPoolSpec, raw.get("spec") or {})


def doubts(pool: ModelPool) -> list[str]:
    """What the engine may refuse, where its image is not one whose flags are known for certain."""
    return [] if engine_flags.certain(pool) else engine_flags.faults(pool)
