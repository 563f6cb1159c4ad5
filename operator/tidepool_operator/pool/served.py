"""What sidecars are told while engines of several revisions serve: each must match the engine beside it."""

from collections.abc import Iterator, Sequence
from typing import Final

from tidepool_api.contract import ENGINE_CONTAINER, REVISION_LABEL
from tidepool_api.routing import SidecarSettings
from tidepool_operator.pool.model import Object, Observed
from tidepool_operator.pool.render import sidecar_settings

_SERVED_NAME: Final = "--served-model-name="


def settings_by_pods(observed: Observed) -> Iterator[tuple[SidecarSettings, Sequence[Object]]]:
    """Settings, and the pods that are to have them.

    An engine of an earlier revision keeps the name that it was started with. Its sidecar must look for that one,
    or it would leave the Service at the moment of a change of `spec.model.name`; the new name is an alias to it.
    """
    wanted = sidecar_settings(observed.pool, observed.settings)
    names = {
        item["metadata"]["labels"].get(REVISION_LABEL, ""): served_name(item)
        for item in observed.objects
        if item["kind"] == "Deployment"
    }
    groups: dict[str | None, list[Object]] = {}
    for pod in observed.pods:
        revision = (pod["metadata"].get("labels") or {}).get(REVISION_LABEL, "")
        groups.setdefault(names.get(revision) or wanted.model, []).append(pod)
    for name, pods in groups.items():
        yield (wanted if name == wanted.model else _under(wanted, name)), pods


def served_name(deployment: Object) -> str | None:
    """The name that a Deployment's engines are started with; None where a podTemplate has its own arguments."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    engine: Object = next((one for one in containers if one["name"] == ENGINE_CONTAINER), {})
    found = (argument for argument in engine.get("args") or [] if argument.startswith(_SERVED_NAME))
    return next((argument.removeprefix(_SERVED_NAME) for argument in found), None)


def _under(wanted: SidecarSettings, name: str | None) -> SidecarSettings:
    names = (*([wanted.model] if wanted.model else []), *wanted.aliases)
    return wanted.model_copy(update={"model": name, "aliases": tuple(one for one in names if one != name)})
