"""What sidecars are told while engines of several revisions serve: each must match the engine beside it."""

from collections.abc import Iterator, Sequence
from typing import Final

from tidepool_api.contract import ENGINE_CONTAINER, REVISION_LABEL
from tidepool_api.routing import SidecarSettings
from tidepool_operator.pool import adapters
from tidepool_operator.pool.groups import WORKLOADS, template_of
from tidepool_operator.pool.model import Object, Observed
from tidepool_operator.pool.preload import there
from tidepool_operator.pool.render import render, sidecar_settings

_SERVED_NAME: Final = "--served-model-name="


def settings_by_pods(observed: Observed) -> Iterator[tuple[SidecarSettings, Sequence[Object]]]:
    """Settings, and the pods that are to have them.

    An engine of an earlier revision keeps the name that it was started with. Its sidecar must look for that one,
    or it would leave the Service at the moment of a change of `spec.model.name`; the new name is an alias to it.
    Nor is it told of adapters that it was not started for, or cannot see.
    """
    wanted = sidecar_settings(observed.pool, observed.settings, there(observed))
    made = {
        item["metadata"]["labels"].get(REVISION_LABEL, ""): item
        for item in observed.objects
        if item["kind"] in WORKLOADS
    }
    groups: dict[str, tuple[SidecarSettings, list[Object]]] = {}
    told: dict[str, SidecarSettings] = {}
    for pod in observed.pods:
        revision = (pod["metadata"].get("labels") or {}).get(REVISION_LABEL, "")
        if revision not in told:
            told[revision] = _for_revision(observed, wanted, made.get(revision))
        groups.setdefault(told[revision].digest(), (told[revision], []))[1].append(pod)
    yield from groups.values()


def _for_revision(observed: Observed, wanted: SidecarSettings, deployment: Object | None) -> SidecarSettings:
    if deployment is None:
        return wanted
    name = served_name(deployment) or wanted.model
    found = wanted if name == wanted.model else _under(wanted, name)
    if wanted.adapters is None:
        return found
    new, old = render(observed.pool, observed.settings).template, template_of(deployment)
    return found.model_copy(update={"adapters": adapters.reachable(wanted.adapters, new, old)})


def served_name(deployment: Object) -> str | None:
    """The name that a Deployment's engines are started with; None where a podTemplate has its own arguments."""
    containers = template_of(deployment)["spec"]["containers"]
    engine: Object = next((one for one in containers if one["name"] == ENGINE_CONTAINER), {})
    found = (argument for argument in engine.get("args") or [] if argument.startswith(_SERVED_NAME))
    return next((argument.removeprefix(_SERVED_NAME) for argument in found), None)


def _under(wanted: SidecarSettings, name: str | None) -> SidecarSettings:
    names = (*([wanted.model] if wanted.model else []), *wanted.aliases)
    return wanted.model_copy(update={"model": name, "aliases": tuple(one for one in names if one != name)})
