"""From a ModelPool to the objects that serve it, as server-side apply wants them."""

import json
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Final

from tidepool_api import contract
from tidepool_api.modelpool import ModelPool
from tidepool_api.routing import FleetPool, FleetPrefill, SidecarSettings
from tidepool_api.trust import subject_of
from tidepool_api.units import duration_seconds
from tidepool_operator.pool import adapters, engine_args, groups, prefill, sidecar_tls
from tidepool_operator.pool.model import Object, RenderSettings
from tidepool_operator.pool.pod import pod_template, settings_config_map
from tidepool_operator.pool.podtemplate import merge_template
from tidepool_operator.pool.prefill import headless
from tidepool_operator.pool.revision import ROUTER_ANNOTATION, RouterPart, apart, revision_of, together

_NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a pool's spec asks for of one role, but for the replica counts."""

    role: str
    revision: str
    deployment: str
    template: Object
    engine_args: tuple[str, ...]
    objects: tuple[Object, ...]  # everything but Deployments
    variant: str = ""  # of scaling.variants


def role_of(pool: ModelPool) -> str:
    """The role of the pods that spec.replicas counts."""
    return contract.ROLE_MIXED if pool.spec.disaggregation is None else contract.ROLE_DECODE


def render(
    pool: ModelPool,
    settings: RenderSettings,
    there: Set[str] = frozenset(),
    variant: str = "",
    *,
    any_role: bool = False,
) -> Rendered:
    """What spec.replicas counts, and the objects of a pool with a sound spec.

    `there` are paths of adapters that have been fetched. `variant` names the kind of accelerator, which the pool
    then has in its spec (variants.pool_of). `any_role`: pods of another role than the spec's serve, and the
    Services lead to them too.
    """
    role = role_of(pool)
    made = _rendered(pool, settings, role, variant)
    objects = (
        _service_account(pool),
        _config_map(pool, settings, there),
        _network_policy(pool, settings),
        *_services(pool, settings, None if any_role else role),
        _disruption_budget(pool),
    )
    apart = () if role == contract.ROLE_MIXED else prefill.objects(pool, _object, tls=settings.tls is not None)
    return replace(made, objects=(*objects, *apart))


def render_prefill(pool: ModelPool, settings: RenderSettings) -> Rendered | None:
    """The prefill pods; None where every pod does both."""
    return None if pool.spec.disaggregation is None else _rendered(pool, settings, contract.ROLE_PREFILL)


def _rendered(pool: ModelPool, settings: RenderSettings, role: str, variant: str = "") -> Rendered:
    made = pod_template(pool, settings.router_image, variant, role)
    if settings.tls is not None:
        sidecar_tls.with_tls(made, pool.metadata.name, pool.metadata.namespace, settings.tls)
        if role == contract.ROLE_PREFILL:
            prefill.find_peers_by_tls(made, pool)
    template = merge_template(made, pool.spec.pod_template)
    # What the selectors and the gateways rely on cannot be merged away.
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    labels |= _labels(pool) | {contract.ROLE_LABEL: role} | _variant_label(variant)
    revision = revision_of(template, pool, settings.tls)
    labels[contract.REVISION_LABEL] = revision
    return Rendered(
        role=role,
        revision=revision,
        deployment=f"{pool.metadata.name}-{revision}",
        template=template,
        engine_args=engine_args.arguments(pool, role),
        objects=(),
        variant=variant,
    )


def deployment(pool: ModelPool, rendered: Rendered, replicas: int, router: RouterPart | None = None) -> Object:
    """What makes the rendered revision's pods; `router`: the part that they have, None: the newest."""
    engine, newest = apart(rendered.template)
    router = router or newest
    template = together(engine, router)
    deadline = int(duration_seconds(pool.spec.rollout.progress_deadline))
    labels = {contract.REVISION_LABEL: rendered.revision, contract.ROLE_LABEL: rendered.role}
    labels |= _variant_label(rendered.variant)
    hosts = pool.spec.parallelism.hosts
    if hosts > 1:
        grouped = groups.spec_of(template, hosts, replicas)
        made = _object(pool, groups.API_VERSION, groups.KIND, rendered.deployment, labels=labels, spec=grouped)
        return _noted(made, router)
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": 1,
        "progressDeadlineSeconds": max(1, deadline),
        "selector": {"matchLabels": _labels(pool) | {contract.REVISION_LABEL: rendered.revision}},
        # Its template never changes; only a repaired drift makes this strategy act.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": template,
    }
    return _noted(_object(pool, "apps/v1", "Deployment", rendered.deployment, labels=labels, spec=spec), router)


def _noted(workload: Object, router: RouterPart) -> Object:
    return {**workload, "metadata": {**workload["metadata"], "annotations": {ROUTER_ANNOTATION: router.encode()}}}


def sidecar_settings(pool: ModelPool, settings: RenderSettings, there: Set[str] = frozenset()) -> SidecarSettings:
    """What the pool's sidecars are to know; changes restart nothing."""
    trust = settings.trust
    if trust is not None:
        trust = trust.model_copy(update={"peers": (subject_of(pool.metadata.namespace, _account(pool)),)})
    return SidecarSettings(
        pool=pool.metadata.name,
        namespace=pool.metadata.namespace,
        model=pool.served_name,
        aliases=pool.spec.model.aliases,
        routing=pool.spec.routing,
        drain_timeout=pool.spec.rollout.drain_timeout,
        engine_priority=True,  # as engine_args has it
        trust=trust,
        adapters=adapters.wanted(pool, there),
    )


def _account(pool: ModelPool) -> str:
    """Name of the service account by which the pool's pods run."""
    spec = pool.spec.pod_template.get("spec")
    given = spec.get("serviceAccountName") if isinstance(spec, dict) else None
    return given if isinstance(given, str) and given else pool.metadata.name


def fleet_pool(pool: ModelPool) -> FleetPool:
    """The pool as gateways see it."""
    traffic, apart = pool.spec.traffic, pool.spec.disaggregation
    name, namespace = pool.metadata.name, pool.metadata.namespace
    return FleetPool(
        name=pool.key,
        models=pool.served_names,
        adapters=tuple(adapter.name for adapter in pool.spec.model.adapters),
        endpoints=(contract.peers_url(name, namespace),),
        prefill=None
        if apart is None
        else FleetPrefill(endpoints=(contract.prefill_url(name, namespace),), min_tokens=apart.prefill.min_tokens),
        routing=pool.spec.routing,
        traffic=None if traffic is None else traffic.within(pool.metadata.namespace),
        wakes=pool.spec.scaling is not None or pool.spec.replicas > 0,
    )


def url(pool: ModelPool) -> str:
    """Base address of the pool's own OpenAI API inside the cluster."""
    return f"http://{pool.metadata.name}.{pool.metadata.namespace}.svc/v1"


def selector(pool: ModelPool) -> str:
    """Label selector of the pods that spec.replicas counts, for the scale subresource."""
    own = ",".join(f"{key}={value}" for key, value in sorted(_labels(pool).items()))
    others = f",{contract.ROLE_LABEL} notin ({contract.ROLE_PREFILL})"
    return own if pool.spec.disaggregation is None else own + others


def owned(pool: ModelPool, api_version: str, kind: str, name: str, labels: dict[str, str] | None = None) -> Object:
    """The frame of an object that goes with the pool, also when the operator is away at that moment."""
    return _object(pool, api_version, kind, name, labels=labels)


def _object(
    pool: ModelPool,
    api_version: str,
    kind: str,
    name: str,
    *,
    labels: dict[str, str] | None = None,
    **rest: object,
) -> Object:
    owner = {
        "apiVersion": contract.API_VERSION,
        "kind": "ModelPool",
        "name": pool.metadata.name,
        "uid": pool.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "name": name,
        "namespace": pool.metadata.namespace,
        "labels": _labels(pool) | (labels or {}),
        "ownerReferences": [owner],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def _variant_label(variant: str) -> dict[str, str]:
    return {contract.VARIANT_LABEL: variant} if variant else {}


def _labels(pool: ModelPool) -> dict[str, str]:
    return {contract.MANAGED_BY_LABEL: contract.MANAGED_BY, contract.POOL_LABEL: pool.metadata.name}


def _service_account(pool: ModelPool) -> Object:
    name = pool.metadata.name
    return _object(pool, "v1", "ServiceAccount", name, automountServiceAccountToken=False)


def _config_map(pool: ModelPool, settings: RenderSettings, there: Set[str]) -> Object:
    document = sidecar_settings(pool, settings, there).model_dump(by_alias=True, mode="json", exclude_none=True)
    text = json.dumps(document, indent=1, sort_keys=True)
    name = settings_config_map(pool.metadata.name)
    return _object(pool, "v1", "ConfigMap", name, data={contract.SETTINGS_KEY: text})


def _services(pool: ModelPool, settings: RenderSettings, role: str | None) -> tuple[Object, ...]:
    selected = {contract.POOL_LABEL: pool.metadata.name} | ({} if role is None else {contract.ROLE_LABEL: role})
    own = {
        "selector": selected,
        "ports": [
            {
                "name": "http",
                "port": contract.SERVICE_PORT,
                "targetPort": contract.TRAFFIC_PORT,
                "protocol": "TCP",
                "appProtocol": "http",
            }
        ],
    }
    name = pool.metadata.name
    return (
        _object(pool, "v1", "Service", name, spec=own),
        _object(pool, "v1", "Service", contract.peers_service(name), spec=headless(selected)),
        *([] if settings.tls is None else [_tls_service(pool, selected)]),
    )


def _tls_service(pool: ModelPool, selected: dict[str, str]) -> Object:
    name = contract.tls_peers_service(pool.metadata.name)
    return _object(pool, "v1", "Service", name, spec=sidecar_tls.peers_spec(selected))


def _disruption_budget(pool: ModelPool) -> Object:
    spec = {
        "maxUnavailable": pool.spec.disruption.max_unavailable,
        "selector": prefill.selector_of_others(pool),
        # A pod that serves nobody must not hold up the drain of a node.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return _object(pool, "policy/v1", "PodDisruptionBudget", pool.metadata.name, spec=spec)


def _network_policy(pool: ModelPool, settings: RenderSettings) -> Object:
    def part(component: str) -> Object:
        return {
            "namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: settings.operator_namespace}},
            "podSelector": {"matchLabels": {contract.COMPONENT_LABEL: component}},
        }

    gateways, operator = part(contract.COMPONENT_GATEWAY), part(contract.COMPONENT_OPERATOR)
    peers: Object = {"podSelector": {"matchLabels": {contract.POOL_LABEL: pool.metadata.name}}}
    chosen = [
        peer.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True, mode="json")
        for peer in pool.spec.access.from_
    ]
    callers: list[Object] = chosen or [{"podSelector": {}}]
    spec = {
        "podSelector": {"matchLabels": {contract.POOL_LABEL: pool.metadata.name}},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [*callers, peers, gateways, operator], "ports": [_port(contract.TRAFFIC_PORT)]},
            *([] if settings.tls is None else [{"from": [gateways, peers], "ports": [_port(contract.TLS_PORT)]}]),
            {"from": [gateways, operator], "ports": [_port(contract.CONTROL_PORT)]},
            # Whoever scrapes is not known here; the page holds figures only.
            {"ports": [_port(contract.METRICS_PORT)]},
            *prefill.ingress(pool, peers),
            *groups.ingress(pool, peers),
        ],
    }
    return _object(pool, "networking.k8s.io/v1", "NetworkPolicy", pool.metadata.name, spec=spec)


def _port(number: int) -> Object:
    return {"protocol": "TCP", "port": number}
