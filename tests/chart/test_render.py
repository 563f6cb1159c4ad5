"""What the chart renders, as the user of an installation would meet it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.programs import CHART, NAMESPACE, ROOT, Object, Program, Render, sets
from documents.manifests import shown
from tidepool_api import contract
from tidepool_operator.settings import read
from tidepool_router.door import Writer
from tidepool_router.settings import parse
from tidepool_router.tracing.settings import Watching

pytestmark = pytest.mark.apiserver  # helm is built first

GATEWAY, OPERATOR = "demo-tidepool-gateway", "demo-tidepool-operator"
EVERYTHING: dict[str, Any] = {
    "operator.replicas": 2,
    "prometheus.url": "http://prometheus.monitoring.svc:9090",
    "watchNamespaces": ["team-a", "team-b"],
    "podMonitor": {"enabled": True, "labels": {"release": "stack"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "stack"}},
    "imagePullSecrets": [{"name": "registry"}],
    "gateway.nodeSelector": {"disk": "fast"},
    "gateway.tolerations": [{"key": "gpu", "operator": "Exists"}],
    "gateway.affinity": {"nodeAffinity": {}},
    "gateway.priorityClassName": "high",
    "gateway.extraArgs": ["--verbose"],
    "gateway.keys.secretName": "tidepool-keys",
    "gateway.tracing": {"endpoint": "http://collector.monitoring:4318", "ratio": 0.05, "prompts": True},
    "gateway.accessLog": True,
    "gateway.tls.secretName": "gateway-tls",
    "gateway.podTLS": {"caSecretName": "pods-tls", "serverName": "pods.example"},
    "router.tls.secretName": "pods-tls",
    "gateway.extraEnv": [{"name": "A", "value": "1"}],
    "gateway.service.annotations": {"a": "b"},
    "gateway.networkPolicy.from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}],
    "operator.extraArgs": ["--verbose"],
    "operator.console": {"hosts": ["tidepool.example"], "service": {"enabled": True, "annotations": {"a": "b"}}},
    "operator.serviceAccount.annotations": {"a": "b"},
    "trust.enabled": True,
    "gateway.workers": 2,
    "test.model": "small",
}


def _container(pod: Object) -> Object:
    return pod["spec"]["containers"][0]


def _env(pod: Object) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in _container(pod)["env"]}


@pytest.mark.parametrize("values", [{}, EVERYTHING, {"gateway.enabled": False, "crds.enabled": False}])
def test_lint_finds_nothing(helm: Program, values: dict[str, Any]) -> None:
    printed = helm("lint", "--strict", str(CHART), *sets(values))

    assert "0 chart(s) failed" in printed
    assert "[WARNING]" not in printed


@pytest.mark.parametrize("values", [{}, EVERYTHING])
def test_every_reference_between_objects_leads_somewhere(render: Render, values: dict[str, Any]) -> None:
    chart = render(values)

    for deployment in chart.all("Deployment"):
        pod = deployment["spec"]["template"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        ports = {port["name"] for port in _container(pod)["ports"]}
        probes = [_container(pod)[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
        assert {probe["port"] for probe in probes} <= ports
        chart.one("ServiceAccount", pod["spec"]["serviceAccountName"])
        assert {mount["name"] for mount in _container(pod)["volumeMounts"]} == {
            volume["name"] for volume in pod["spec"]["volumes"]
        }
    pods = chart.pods()
    for item in (*chart.all("Service"), *chart.all("PodDisruptionBudget"), *chart.all("NetworkPolicy")):
        selector = item["spec"].get("selector") or item["spec"]["podSelector"]
        wanted = selector.get("matchLabels", selector)
        chosen = [name for name, pod in pods.items() if wanted.items() <= pod["metadata"]["labels"].items()]
        assert chosen == [item["metadata"]["name"]]
    for service in chart.all("Service"):
        ports = {port["name"] for port in _container(pods[service["metadata"]["name"]])["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for binding in (*chart.all("RoleBinding"), *chart.all("ClusterRoleBinding")):
        roles = {(role["metadata"]["name"], role["metadata"].get("namespace")) for role in chart.all("Role")}
        roles |= {(role["metadata"]["name"], None) for role in chart.all("ClusterRole")}
        assert (binding["roleRef"]["name"], binding["metadata"].get("namespace")) in roles
        chart.one("ServiceAccount", binding["subjects"][0]["name"])


def test_the_gateway_is_wired_as_the_contract_says(render: Render) -> None:
    pod = render({}).pods()[GATEWAY]
    container = _container(pod)

    assert pod["metadata"]["labels"][contract.COMPONENT_LABEL] == contract.COMPONENT_GATEWAY
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {
        "http": contract.TRAFFIC_PORT,
        "metrics": contract.METRICS_PORT,
        "control": contract.CONTROL_PORT,
    }
    assert container["lifecycle"]["preStop"]["httpGet"] == {"path": contract.PATH_DRAIN, "port": "control"}
    assert container["readinessProbe"]["httpGet"] == {"path": contract.PATH_READY, "port": "control"}
    assert container["livenessProbe"]["httpGet"] == {"path": contract.PATH_HEALTH, "port": "control"}
    assert container["args"][:4] == ["gateway", "--fleet", contract.FLEET_FILE, "--wait-for-file"]
    assert contract.SCRAPE_ANNOTATIONS.items() <= pod["metadata"]["annotations"].items()
    fleet = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "fleet")
    assert fleet["configMap"] == {"name": contract.FLEET_CONFIGMAP, "optional": False}


def test_a_gateway_is_watched_where_that_is_wanted_and_only_there(render: Render) -> None:
    tracing = {"gateway.tracing": {"endpoint": "http://otel:4318", "ratio": 0.05, "prompts": True}}
    watched = _container(render(tracing | {"gateway.accessLog": True}).pods()[GATEWAY])["args"]
    plain = _container(render().pods()[GATEWAY])["args"]

    at = watched.index("--otlp-endpoint")
    assert watched[at : at + 5] == [
        "--otlp-endpoint",
        "http://otel:4318",
        "--trace-ratio",
        "0.05",
        "--trace-prompts",
    ]
    assert parse(watched, {}).watching == Watching(
        spans=True, endpoint="http://otel:4318", ratio=0.05, prompts=True, access_log=True
    )
    assert parse(plain, {}).watching == Watching()


def test_a_gateway_asks_for_keys_where_a_secret_has_them_and_does_not_start_without(render: Render) -> None:
    pod = render({"gateway.keys.secretName": "tidepool-keys"}).pods()[GATEWAY]
    container = _container(pod)

    assert container["args"][container["args"].index("--keys") + 1] == contract.KEYS_FILE
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    name = mounts[str(Path(contract.KEYS_FILE).parent)]
    volume = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == name)
    assert volume["secret"] == {"secretName": "tidepool-keys"}
    assert "--keys" not in _container(render().pods()[GATEWAY])["args"]


def test_a_gateway_serves_tls_where_a_secret_has_its_certificate(render: Render) -> None:
    chart = render({"gateway.tls.secretName": "gateway-tls", "gateway.service.port": 443})
    pod = chart.pods()[GATEWAY]
    arguments = _container(pod)["args"]
    folder = next(mount for mount in _container(pod)["volumeMounts"] if mount["name"] == "tls")["mountPath"]

    assert arguments[arguments.index("--tls-cert") + 1] == f"{folder}/tls.crt"
    assert arguments[arguments.index("--tls-key") + 1] == f"{folder}/tls.key"
    assert {"name": "tls", "secret": {"secretName": "gateway-tls"}} in pod["spec"]["volumes"]
    assert chart.one("Service", GATEWAY)["spec"]["ports"][0]["appProtocol"] == "https"
    assert _env(chart.one("Pod", "demo-tidepool-test"))["TIDEPOOL_URL"].startswith("https://")


def test_a_gateway_learns_whom_to_believe_and_gets_no_key_of_pods(render: Render) -> None:
    pod = render({"gateway.podTLS": {"caSecretName": "pods-tls", "serverName": "pods.example"}}).pods()[GATEWAY]
    arguments = _container(pod)["args"]
    volume = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "pod-ca")

    assert arguments[arguments.index("--pod-ca") + 1] == "/etc/tidepool-pod-ca/ca.crt"
    assert arguments[arguments.index("--pod-server-name") + 1] == "pods.example"
    assert [item["key"] for item in volume["secret"]["items"]] == ["ca.crt"]
    parse(arguments, {})  # the program takes them


def test_plain_http_is_what_an_installation_begins_with(render: Render) -> None:
    arguments = _container(render().pods()[GATEWAY])["args"]

    assert not {"--tls-cert", "--tls-key", "--pod-ca", "--pod-server-name"} & set(arguments)


def test_one_value_switches_tls_on_between_gateways_and_sidecars(render: Render) -> None:
    chart = render({"router.tls.secretName": "pod-tls"})
    gateway, operator = chart.pods()[GATEWAY], chart.pods()[OPERATOR]
    options = parse(_container(gateway)["args"], {})
    (volume,) = [each for each in gateway["spec"]["volumes"] if each["name"] == "pod-ca"]
    settings = read(_container(operator)["args"], _env(operator))

    assert volume["secret"] == {"secretName": "pod-tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    assert (str(options.pod_ca), options.pod_server_name) == ("/etc/tidepool-pod-ca/ca.crt", "tidepool-sidecar")
    assert (settings.sidecar_tls_secret, settings.sidecar_tls_server_name) == ("pod-tls", "tidepool-sidecar")
    rules = [item["rules"] for item in (*chart.all("Role"), *chart.all("ClusterRole"))]
    assert "secrets" not in str(rules), "it is never read"

    own = render({"router.tls.secretName": "pod-tls", "gateway.podTLS": {"caSecretName": "ca", "serverName": "n"}})
    gateway = own.pods()[GATEWAY]
    (volume,) = [each for each in gateway["spec"]["volumes"] if each["name"] == "pod-ca"]
    assert (volume["secret"]["secretName"], parse(_container(gateway)["args"], {}).pod_server_name) == ("ca", "n")

    without = render({})
    assert not read(["run"], _env(without.pods()[OPERATOR])).sidecar_tls_secret
    assert parse(_container(without.pods()[GATEWAY])["args"], {}).pod_server_name is None


def test_a_gateway_is_given_its_whole_drain(render: Render) -> None:
    pod = render({"gateway.drainSeconds": 1000}).pods()[GATEWAY]

    arguments = _container(pod)["args"]
    assert arguments[arguments.index("--drain-seconds") + 1] == "1000"
    assert pod["spec"]["terminationGracePeriodSeconds"] > 1000


def test_helm_never_owns_what_the_operator_writes(render: Render) -> None:
    assert render(EVERYTHING).all("ConfigMap") == []


def test_the_operator_learns_what_it_must_know(render: Render) -> None:
    values = {
        **EVERYTHING,
        "router.image": {"repository": "r.example/router", "tag": "1.2", "pullPolicy": "Never"},
    }
    pods = render(values).pods()

    assert _env(pods[OPERATOR]) == {
        "POD_NAME": "",
        "POD_NAMESPACE": "",
        "TIDEPOOL_ROUTER_IMAGE": "r.example/router:1.2",
        "TIDEPOOL_PROMETHEUS_URL": "http://prometheus.monitoring.svc:9090",
        "TIDEPOOL_WATCH_NAMESPACES": "team-a,team-b",
        "TIDEPOOL_TRUST": "true",
        "TIDEPOOL_GATEWAY_SERVICE_ACCOUNT": GATEWAY,
        "POD_SERVICE_ACCOUNT": "",
        "TIDEPOOL_READ_NODES": "false",
        "TIDEPOOL_SIDECAR_TLS_SECRET": "pods-tls",
        "TIDEPOOL_SIDECAR_TLS_SERVER_NAME": "tidepool-sidecar",
        "TIDEPOOL_CONSOLE": "true",
        "TIDEPOOL_CONSOLE_HOST": "0.0.0.0",
        "TIDEPOOL_CONSOLE_HOSTS": "tidepool.example",
    }
    # The gateways and the sidecars are one program and one image.
    assert _container(pods[GATEWAY])["image"] == "r.example/router:1.2"
    assert _container(pods[GATEWAY])["imagePullPolicy"] == "Never"


def test_images_follow_the_chart_unless_told_otherwise(render: Render) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]

    images = {_container(pod)["image"] for pod in render({}).pods().values()}

    assert images == {f"localhost/tidepool-router:{version}", f"localhost/tidepool-operator:{version}"}


@pytest.mark.parametrize("component", ["gateway", "operator"])
def test_placement_reaches_the_pods(render: Render, component: str) -> None:
    placement = {
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
        },
        "priorityClassName": "high",
    }
    values = {f"{component}.{name}": value for name, value in placement.items()}

    spec = render({**values, "imagePullSecrets": [{"name": "reg"}]}).pods()[f"demo-tidepool-{component}"]["spec"]

    assert {name: spec[name] for name in placement} == placement
    assert spec["imagePullSecrets"] == [{"name": "reg"}]


def test_a_release_named_after_the_chart_does_not_repeat_it(render: Render) -> None:
    names = set(render({}, release="tidepool").pods())

    assert names == {"tidepool-gateway", "tidepool-operator", "tidepool-test"}


def test_long_names_stay_within_the_limit_of_labels_and_hosts(render: Render) -> None:
    chart = render({"fullnameOverride": "a" * 44, "watchNamespaces": ["b" * 63]}, release="c" * 53)

    names = [item["metadata"]["name"] for kind in ("Service", "Deployment", "Pod") for item in chart.all(kind)]
    assert len(names) == 4
    assert max(map(len, names)) <= 63
    labels = [value for pod in chart.pods().values() for value in pod["metadata"]["labels"].values()]
    assert max(map(len, labels)) <= 63


# Roles


def test_the_chart_carries_the_generated_crds(render: Render) -> None:
    rendered = {crd["metadata"]["name"]: crd for crd in render({}).all("CustomResourceDefinition")}
    generated = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds" / "manifests").glob("*.yaml")]

    assert {name: crd["spec"] for name, crd in rendered.items()} == {
        crd["metadata"]["name"]: crd["spec"] for crd in generated
    }
    assert {crd["metadata"]["annotations"]["helm.sh/resource-policy"] for crd in rendered.values()} == {"keep"}


def test_crds_can_be_left_to_somebody_else(render: Render) -> None:
    assert render({"crds.enabled": False}).all("CustomResourceDefinition") == []


# Network


def test_control_of_the_gateway_is_the_operators_alone(render: Render) -> None:
    policy = render({}).one("NetworkPolicy", GATEWAY)

    by_port = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["spec"]["ingress"]}
    assert by_port[contract.TRAFFIC_PORT] is None
    (peer,) = by_port[contract.CONTROL_PORT]
    assert peer["podSelector"]["matchLabels"][contract.COMPONENT_LABEL] == contract.COMPONENT_OPERATOR


def test_clients_of_the_gateway_can_be_narrowed(render: Render) -> None:
    team = [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]

    policy = render({"gateway.networkPolicy.from": team}).one("NetworkPolicy", GATEWAY)

    assert policy["spec"]["ingress"][0]["from"] == team


def test_policies_budgets_and_gateways_are_switches(render: Render) -> None:
    chart = render(
        {
            "gateway.networkPolicy.enabled": False,
            "operator.networkPolicy.enabled": False,
            "gateway.podDisruptionBudget.enabled": False,
        }
    )
    assert chart.all("NetworkPolicy") == chart.all("PodDisruptionBudget") == []

    without = render({"gateway.enabled": False})
    assert list(without.pods()) == [OPERATOR]
    assert without.all("Service") == []


# The test


def test_the_test_pod_carries_the_script_to_the_letter(render: Render) -> None:
    pod = render({"test.model": "small"}).one("Pod", "demo-tidepool-test")

    assert _container(pod)["args"] == [(CHART / "files" / "tests" / "ask.py").read_text()]
    assert _env(pod)["TIDEPOOL_URL"] == f"http://demo-tidepool-gateway.{NAMESPACE}.svc:80"
    assert _env(pod)["TIDEPOOL_MODEL"] == "small"
    assert pod["metadata"]["annotations"] == {
        "helm.sh/hook": "test",
        # With hook-succeeded, `helm test --logs` finds no pod to read from, and fails.
        "helm.sh/hook-delete-policy": "before-hook-creation",
    }


def test_gateways_and_the_operator_prove_themselves_unless_that_is_switched_off(render: Render) -> None:
    chart = render({"trust.enabled": True})
    gateway, operator = chart.pods()[GATEWAY], chart.pods()[OPERATOR]
    for pod in (gateway, operator):
        (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "proof"]
        (mount,) = [each for each in _container(pod)["volumeMounts"] if each["name"] == "proof"]
        token = volume["projected"]["sources"][0]["serviceAccountToken"]
        assert f"{mount['mountPath']}/{token['path']}" == contract.PROOF_FILE
        assert (token["audience"], token["expirationSeconds"]) == (contract.PROOF_AUDIENCE, contract.PROOF_SECONDS)
    options = parse(_container(gateway)["args"], {})
    assert str(options.proof_file) == contract.PROOF_FILE
    assert (str(options.trust_file), options.fleet_writer) == (contract.TRUST_FILE, Writer.OPERATOR)
    assert options.control_host == "", "the kubelet and the operator reach it"
    (fleet,) = [each for each in gateway["spec"]["volumes"] if each["name"] == "fleet"]
    assert fleet["configMap"]["optional"] is False, "without the keys it would believe no operator for a minute"
    env = _env(operator) | {"POD_SERVICE_ACCOUNT": "o"}
    settings = read(_container(operator)["args"], env)
    assert settings.trust
    assert settings.gateway_service_account == gateway["spec"]["serviceAccountName"]
    account = next(one for one in _container(operator)["env"] if one["name"] == "POD_SERVICE_ACCOUNT")
    assert account["valueFrom"] == {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}

    chart = render({"trust.enabled": False})
    for pod in (chart.pods()[GATEWAY], chart.pods()[OPERATOR]):
        assert "proof" not in str(pod)
    assert not read(["run"], _env(chart.pods()[OPERATOR])).trust
    gateway = chart.pods()[GATEWAY]
    options = parse(_container(gateway)["args"], {})
    assert (options.trust_file, options.fleet_writer, options.control_host) == (None, Writer.EVERYBODY, "")
    (fleet,) = [each for each in gateway["spec"]["volumes"] if each["name"] == "fleet"]
    assert fleet["configMap"]["optional"] is True
    assert render({}).pods() == render({"trust.enabled": True}).pods()  # the default


def test_the_console_is_on_loopback_until_it_has_a_service(render: Render) -> None:
    plain, shared = render(), render({"operator.console": EVERYTHING["operator.console"]})
    off = render({"operator.console.enabled": False, "operator.console.service.enabled": True})

    def heard(chart: Any) -> tuple[bool, str, tuple[str, ...]]:
        settings = read(["run"], _env(chart.pods()[OPERATOR]))
        return settings.console, settings.console_host, settings.console_hosts

    assert heard(plain) == (True, "127.0.0.1", ())
    assert heard(shared) == (True, "0.0.0.0", ("tidepool.example",))
    assert heard(off)[0] is False
    assert shared.one("Service", OPERATOR)["spec"]["ports"][0]["targetPort"] == "console"
    assert _opened(shared) == {8080, contract.CONSOLE_PORT}
    for chart in (plain, off):
        assert _opened(chart) == {8080}
        assert [one for one in chart.all("Service") if one["metadata"]["name"] == OPERATOR] == []
    ports = {port["name"]: port["containerPort"] for port in _container(plain.pods()[OPERATOR])["ports"]}
    assert ports == {"health": 8080, "console": contract.CONSOLE_PORT}


def _opened(chart: Any) -> set[int]:
    rules = chart.one("NetworkPolicy", OPERATOR)["spec"]["ingress"]
    return {port["port"] for rule in rules for port in rule["ports"]}


def test_a_gateway_has_as_many_workers_as_asked_for(render: Render) -> None:
    found = [
        parse(_container(render(values).pods()[GATEWAY])["args"], {}).workers
        for values in ({}, {"gateway.workers": 4})
    ]

    assert found == [1, 4]


def test_large_bodies_lie_on_a_volume_that_is_larger_than_their_bound(render: Render) -> None:
    pod = render({"gateway.workers": 2, "gateway.largeBodies.bytes": 1 << 30}).pods()[GATEWAY]
    options = parse(_container(pod)["args"], {})
    (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "bodies"]
    mounts = {each["mountPath"]: each["name"] for each in _container(pod)["volumeMounts"]}

    assert options.limits.max_stored_bytes == (1 << 30) // 2  # each worker keeps a bound of its own
    assert mounts[str(options.bodies_folder)] == "bodies"
    assert int(volume["emptyDir"]["sizeLimit"]) > 1 << 30

    without = render({"gateway.largeBodies.bytes": 0}).pods()[GATEWAY]
    assert parse(_container(without)["args"], {}).limits.max_stored_bytes == 0
    assert "bodies" not in {each["name"] for each in without["spec"]["volumes"]}


def test_a_gateway_that_keeps_runs_in_a_file_is_one_alone(render: Render, helm: Program) -> None:
    keeping = {"persistentVolumeClaim": "runs", "allowedHosts": ["search.tools", "*.tools:8080"]}
    deployment = render({"gateway.workflows": keeping, "gateway.replicas": 1}).one("Deployment", GATEWAY)
    pod = deployment["spec"]["template"]["spec"]

    found = parse(pod["containers"][0]["args"], {}).workflows
    assert (found.store, found.lease_seconds) == ("sqlite:////var/lib/tidepool/workflows.db", 15.0)
    assert found.hosts == ("search.tools", "*.tools:8080")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}  # never two with the file open
    assert pod["securityContext"]["fsGroup"] == 65532
    for more in ({"gateway.replicas": 2}, {"gateway.replicas": 1, "gateway.workers": 2}):
        with pytest.raises(AssertionError, match=r"or keep runs in PostgreSQL"):
            helm("template", "demo", str(CHART), *sets({"gateway.workflows": keeping, **more}))


def test_gateways_that_share_a_server_are_as_many_as_wanted(render: Render, helm: Program) -> None:
    keeping = {"postgres": {"secretName": "runs-app", "key": "uri"}, "leaseSeconds": 30}
    chart = render({"gateway.workflows": keeping, "gateway.replicas": 3, "gateway.workers": 2})
    deployment = chart.one("Deployment", GATEWAY)
    pod = deployment["spec"]["template"]["spec"]

    found = parse(pod["containers"][0]["args"], {}).workflows
    assert (found.store, found.lease_seconds) == (Path("/etc/tidepool-store/url"), 30.0)
    mounts = pod["containers"][0]["volumeMounts"]
    assert {"name": "store", "mountPath": "/etc/tidepool-store", "readOnly": True} in mounts
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "store"]
    assert volume["secret"] == {"secretName": "runs-app", "items": [{"key": "uri", "path": "url"}]}
    assert deployment["spec"]["strategy"]["type"] == "RollingUpdate"
    both = {"gateway.workflows": {**keeping, "persistentVolumeClaim": "runs"}, "gateway.replicas": 1}
    with pytest.raises(AssertionError, match="not both"):
        helm("template", "demo", str(CHART), *sets(both))


def test_the_policy_that_closes_the_api_server_selects_gateways_alone(render: Render) -> None:
    (policy,) = [found for _, found in shown() if found["metadata"]["name"] == "gateway-not-to-the-api-server"]
    wanted = policy["spec"]["podSelector"]["matchLabels"].items()

    chart = render({})
    pods = {one["metadata"]["name"]: one["spec"]["template"] for one in chart.all("Deployment")}
    selected = {name for name, pod in pods.items() if wanted <= pod["metadata"]["labels"].items()}

    assert selected == {GATEWAY}
    assert policy["spec"]["policyTypes"] == ["Egress"]
