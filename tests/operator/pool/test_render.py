"""What a spec becomes: arguments, objects, revisions."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from pools.objects import SETTINGS, observe, raw_pool
from tidepool_api.routing import SidecarSettings
from tidepool_api.trust import PublicKey, TrustedCallers
from tidepool_api.units import quantity_value
from tidepool_operator.pool.model import SidecarTLS
from tidepool_operator.pool.render import Rendered, deployment, fleet_pool, render, sidecar_settings
from tidepool_router.proxy.limits import Limits
from tidepool_router.settings import parse


def rendered(**spec: Any) -> Rendered:
    return render(observe(raw_pool(**spec)).pool, SETTINGS)


BASE_ARGS = (
    "--model=acme/llama",
    "--served-model-name=llama",
    "--host=127.0.0.1",
    "--port=8000",
    "--scheduling-policy=priority",
    "--enable-prompt-tokens-details",
)


@pytest.mark.parametrize(
    ("spec", "added"),
    [
        ({}, ()),
        ({"engine": {"preset": "LowLatency"}}, ("--performance-mode=interactivity",)),
        ({"engine": {"preset": "HighThroughput"}}, ("--performance-mode=throughput",)),
        (
            {"engine": {"maxModelLen": 2048, "gpuMemoryUtilization": "0.8", "quantization": "awq"}},
            ("--max-model-len=2048", "--gpu-memory-utilization=0.8", "--quantization=awq"),
        ),
        (
            {"engine": {"prefixCaching": False, "chunkedPrefill": True}},
            ("--no-enable-prefix-caching", "--enable-chunked-prefill"),
        ),
        (
            {"engine": {"speculative": {"method": "ngram", "tokens": 3}}},
            ('--speculative-config={"method":"ngram","num_speculative_tokens":3}',),
        ),
        (
            {"parallelism": {"tensor": 2, "pipeline": 2}, "accelerator": {"count": 4}},
            ("--tensor-parallel-size=2", "--pipeline-parallel-size=2"),
        ),
        ({"engine": {"args": ["--max-num-seqs=4"], "maxModelLen": 9}}, ("--max-model-len=9", "--max-num-seqs=4")),
    ],
)
def test_arguments_of_the_engine(spec: dict[str, Any], added: tuple[str, ...]) -> None:
    assert rendered(**spec).engine_args == (*BASE_ARGS, *added)


@pytest.mark.parametrize(
    ("uri", "path", "claim"),
    [
        ("hf://acme/llama", "--model=acme/llama", None),
        ("file:///opt/model", "--model=/opt/model", None),
        ("pvc://models/llama/v1", "--model=/models/llama/v1", "models"),
        ("pvc://models", "--model=/models", "models"),
        ("oci://registry.local:5000/acme/llama:v1", "--model=/models", None),
        ("oci://registry.local:5000/acme/llama@sha256:abc#weights/fp8", "--model=/models/weights/fp8", None),
    ],
)
def test_where_the_model_lies(uri: str, path: str, claim: str | None) -> None:
    made = rendered(model={"uri": uri})
    volumes = [entry for entry in made.template["spec"]["volumes"] if "persistentVolumeClaim" in entry]

    assert made.engine_args[0] == path
    assert [entry["persistentVolumeClaim"]["claimName"] for entry in volumes] == ([claim] if claim else [])


def volumes(made: Rendered) -> dict[str, Any]:
    return {entry["name"]: entry for entry in made.template["spec"]["volumes"]}


def by_name(entries: list[Any]) -> dict[str, Any]:
    return {entry["name"]: entry for entry in entries}


def test_an_image_of_files_is_mounted_and_pulled_with_the_named_secret() -> None:
    made = rendered(model={"uri": "oci://registry/acme/llama:v1#fp8", "authSecretRef": {"name": "registry"}})
    (engine,) = made.template["spec"]["containers"]

    assert volumes(made)["model"] == {"name": "model", "image": {"reference": "registry/acme/llama:v1"}}
    assert by_name(engine["volumeMounts"])["model"] == {"name": "model", "mountPath": "/models", "readOnly": True}
    assert made.template["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert "registry" not in str(engine["env"])


@pytest.mark.parametrize(
    ("uri", "variables"),
    [
        (
            "s3://models/llama",
            {
                "AWS_ACCESS_KEY_ID": {"name": "store", "key": "AWS_ACCESS_KEY_ID"},
                "AWS_SECRET_ACCESS_KEY": {"name": "store", "key": "AWS_SECRET_ACCESS_KEY"},
                "AWS_SESSION_TOKEN": {"name": "store", "key": "AWS_SESSION_TOKEN", "optional": True},
            },
        ),
        ("gs://models/llama", {"GOOGLE_SERVICE_ACCOUNT_KEY": {"name": "store", "key": "account.json"}}),
    ],
)
def test_a_loader_before_the_engine_fetches_from_a_store_and_alone_has_the_credentials(
    uri: str, variables: dict[str, Any]
) -> None:
    secret = {"name": "store", "key": "account.json"}
    env = [{"name": "AWS_ENDPOINT_URL", "value": "http://minio:9000"}, {"name": "VLLM_X", "value": "1"}]
    made = rendered(model={"uri": uri, "authSecretRef": secret}, engine={"env": env})
    router, loader = made.template["spec"]["initContainers"]
    (engine,) = made.template["spec"]["containers"]
    given = by_name(loader["env"])

    assert (router["name"], loader["name"]) == ("router", "loader"), (
        "the router is up before, so that gateways know"
    )
    assert {name: given[name]["valueFrom"]["secretKeyRef"] for name in variables} == variables
    assert "secretKeyRef" not in str(engine["env"]) + str(router["env"])
    assert given["AWS_ENDPOINT_URL"]["value"] == "http://minio:9000", (
        "how to reach a store stands in spec.engine.env"
    )
    assert "VLLM_X" not in given
    assert volumes(made)["cache"] == {"name": "cache", "emptyDir": {}}
    assert engine["args"][0] == f"--model={loader['args'][2]}"
    assert by_name(engine["volumeMounts"])["cache"]["readOnly"]
    assert "readOnly" not in by_name(loader["volumeMounts"])["cache"]


def test_an_engine_that_downloads_by_itself_keeps_that_in_the_cache() -> None:
    made = rendered(
        model={"uri": "hf://acme/llama", "authSecretRef": {"name": "hf"}, "revision": "v1"},
        cache={"persistentVolumeClaim": "models", "preload": False},
    )
    (engine,) = made.template["spec"]["containers"]
    given = by_name(engine["env"])

    assert made.engine_args[0] == "--model=acme/llama"
    assert "--revision=v1" in made.engine_args
    assert given["HF_HOME"]["value"].startswith(by_name(engine["volumeMounts"])["cache"]["mountPath"])
    assert "valueFrom" in given["HF_TOKEN"]
    assert "HF_HUB_OFFLINE" not in given
    assert "readOnly" not in by_name(engine["volumeMounts"])["cache"]


def test_a_nodes_folder_is_filled_by_the_first_pod_there() -> None:
    made = rendered(cache={"hostPath": "/var/cache/models"})
    _, loader = made.template["spec"]["initContainers"]

    assert volumes(made)["cache"]["hostPath"] == {"path": "/var/cache/models", "type": "Directory"}
    assert loader["args"][:2] == ["load", "hf://acme/llama"]


def test_models_of_one_address_at_two_revisions_lie_beside_each_other() -> None:
    cache = {"persistentVolumeClaim": "models"}
    paths = {
        rendered(model={"uri": uri, **more}, cache=cache).engine_args[0]
        for uri, more in (
            ("hf://acme/llama", {}),
            ("hf://acme/llama", {"revision": "v1"}),
            ("hf://acme/llama-v1", {}),
            ("s3://acme/llama", {}),
        )
    }

    assert len(paths) == 4


def test_the_token_is_referred_to_and_never_read() -> None:
    made = rendered(model={"uri": "hf://acme/llama", "authSecretRef": {"name": "hf"}})
    engine = made.template["spec"]["containers"][0]
    token = next(entry for entry in engine["env"] if entry["name"] == "HF_TOKEN")

    assert token["valueFrom"] == {"secretKeyRef": {"name": "hf", "key": "token"}}


def test_labels_that_selectors_rest_on_cannot_be_merged_away() -> None:
    template = {"metadata": {"labels": {"tidepool.dev/pool": "other", "mine": "1"}}}
    labels = rendered(podTemplate=template).template["metadata"]["labels"]

    assert (labels["tidepool.dev/pool"], labels["mine"]) == ("llama", "1")


def test_an_engine_that_still_loads_can_be_ended() -> None:
    """As process 1 it would never see a SIGTERM that it has no handler for yet."""
    assert rendered().template["spec"]["shareProcessNamespace"] is True


def test_an_engine_that_is_not_root_can_write_where_it_caches() -> None:
    """Its root is read-only: what vLLM, Hugging Face, Triton and torch keep goes to HOME, TMPDIR and /dev/shm."""
    spec = rendered().template["spec"]
    engine = spec["containers"][0]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    writable = {
        one["mountPath"]: volumes[one["name"]] for one in engine["volumeMounts"] if not one.get("readOnly")
    }
    home = next(entry["value"] for entry in engine["env"] if entry["name"] == "HOME")

    assert engine["securityContext"]["readOnlyRootFilesystem"] is True
    assert {home, "/tmp", "/dev/shm"} <= set(writable)
    assert writable["/dev/shm"]["emptyDir"] == {"medium": "Memory"}, "in memory, without a bound of its own"
    assert not {entry["name"] for entry in engine["env"]} & {
        "HF_HOME",
        "VLLM_CACHE_ROOT",
        "XDG_CACHE_HOME",
        "TMPDIR",
    }


def test_every_object_goes_with_the_pool() -> None:
    pool = observe(raw_pool()).pool
    made = rendered()
    items = [*made.objects, deployment(pool, made, 1)]

    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in items} == {"uid-llama"}
    assert all(item["metadata"]["ownerReferences"][0]["controller"] for item in items)


def test_settings_of_the_mounted_file_are_those_that_are_pushed() -> None:
    pool = observe(raw_pool(routing={"retries": 5})).pool
    config = next(item for item in rendered(routing={"retries": 5}).objects if item["kind"] == "ConfigMap")

    text = config["data"]["settings.json"]
    assert SidecarSettings.model_validate_json(text) == sidecar_settings(pool, SETTINGS)


TRUST = TrustedCallers(
    issuer="https://cluster", keys=(PublicKey(kty="EC", kid="one"),), gateways=("system:serviceaccount:t:gateway",)
)


@pytest.mark.parametrize(
    ("spec", "account", "why"),
    [
        ({}, "llama", "the account that is made for the pool"),
        ({"podTemplate": {"spec": {"serviceAccountName": "own"}}}, "own", "pods run as what podTemplate says"),
    ],
)
def test_sidecars_are_told_whom_to_believe_and_no_engine_restarts_for_it(
    spec: dict[str, Any], account: str, why: str
) -> None:
    pool = observe(raw_pool(**spec)).pool
    trusting = replace(SETTINGS, trust=TRUST)
    made = render(pool, trusting)
    config = next(item for item in made.objects if item["kind"] == "ConfigMap")
    told = SidecarSettings.model_validate_json(config["data"]["settings.json"]).trust

    assert told == TRUST.model_copy(update={"peers": (f"system:serviceaccount:default:{account}",)}), why
    assert told == sidecar_settings(pool, trusting).trust
    assert made.template == render(pool, SETTINGS).template


def test_the_router_keeps_large_bodies_on_disk_and_the_others_within_its_memory() -> None:
    spec = rendered().template["spec"]
    router = spec["initContainers"][0]
    flags = dict(itertools.pairwise(router["args"]))
    (mount,) = [entry for entry in router["volumeMounts"] if entry["mountPath"] == flags["--bodies-folder"]]
    volume = by_name(spec["volumes"])[mount["name"]]
    limit = quantity_value(router["resources"]["limits"]["memory"])

    assert router["securityContext"]["readOnlyRootFilesystem"] is True
    assert not mount.get("readOnly")
    assert quantity_value(volume["emptyDir"]["sizeLimit"]) > int(flags["--max-stored-bytes"])
    assert int(flags["--max-bodies-bytes"]) + Limits().replay_total_bytes < limit / 2


def test_the_router_alone_has_the_pods_proof() -> None:
    spec = rendered().template["spec"]
    router, engine = spec["initContainers"][0], spec["containers"][0]
    (volume,) = [entry for entry in spec["volumes"] if "projected" in entry]
    (source,) = volume["projected"]["sources"]
    (mount,) = [entry for entry in router["volumeMounts"] if entry["name"] == volume["name"]]
    told = router["args"][router["args"].index("--proof-file") + 1]

    assert source["serviceAccountToken"]["audience"] == "tidepool"
    assert told == f"{mount['mountPath']}/{source['serviceAccountToken']['path']}"
    assert all(entry["name"] != volume["name"] for entry in engine["volumeMounts"])


def test_nobody_but_the_named_ones_reaches_the_traffic_port() -> None:
    made = rendered(access={"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]})
    policy = next(item for item in made.objects if item["kind"] == "NetworkPolicy")
    sources = policy["spec"]["ingress"][0]["from"]
    ports = {entry["port"] for entry in policy["spec"]["ingress"][0]["ports"]}

    assert ports == {8080}
    assert {"podSelector": {}} not in sources
    assert {"podSelector": {"matchLabels": {"app": "web"}}} in sources


def test_nobody_reaches_an_engine_and_only_gateways_and_the_operator_reach_control() -> None:
    (policy,) = [item["spec"] for item in rendered().objects if item["kind"] == "NetworkPolicy"]
    sources = {entry["port"]: rule.get("from") for rule in policy["ingress"] for entry in rule["ports"]}

    assert policy["podSelector"]["matchLabels"] == {"tidepool.dev/pool": "llama"}, "every pod of the pool"
    assert policy["policyTypes"] == ["Ingress"], "what no rule names is closed"
    assert set(sources) == {8080, 8081, 8082}, "not the engine's 8000"
    components = [peer["podSelector"]["matchLabels"] for peer in sources[8082]]
    assert components == [{"tidepool.dev/component": "gateway"}, {"tidepool.dev/component": "operator"}]


TLS = replace(SETTINGS, tls=SidecarTLS("pod-tls", "tidepool-sidecar"))


def test_with_tls_the_router_serves_it_by_the_mounted_secret_beside_the_plain_port() -> None:
    made = render(observe(raw_pool()).pool, TLS)
    spec = made.template["spec"]
    router, engine = spec["initContainers"][0], spec["containers"][0]
    options = parse(router["args"], {})
    (volume,) = [entry for entry in spec["volumes"] if "secret" in entry]
    (mount,) = [entry for entry in router["volumeMounts"] if entry["name"] == volume["name"]]

    assert volume["secret"]["secretName"] == "pod-tls"
    assert {str(options.tls_cert), str(options.tls_key), str(options.pod_ca)} == {
        f"{mount['mountPath']}/{item['path']}" for item in volume["secret"]["items"]
    }
    assert (options.port, options.tls_port, options.control_port) == (8080, 8443, 8082), "probes stay plain"
    assert (options.pod_server_name, options.peers) == (
        "tidepool-sidecar",
        "dns+https://llama-peers-tls.default.svc:8443",
    )
    assert all(entry["name"] != volume["name"] for entry in engine["volumeMounts"])
    assert made.template["metadata"]["labels"]["tidepool.dev/tls"] == "true"
    assert made.revision != rendered().revision


def test_with_tls_a_service_names_the_pods_that_have_it_and_gateways_and_peers_reach_them() -> None:
    plain = {(item["kind"], item["metadata"]["name"]): item for item in rendered().objects}
    made = {
        (item["kind"], item["metadata"]["name"]): item for item in render(observe(raw_pool()).pool, TLS).objects
    }
    service = made.pop(("Service", "llama-peers-tls"))["spec"]
    rules = made.pop(("NetworkPolicy", "llama"))["spec"]["ingress"]
    before = plain.pop(("NetworkPolicy", "llama"))["spec"]["ingress"]
    (added,) = [rule for rule in rules if rule not in before]

    assert made == plain, "all else is as without"
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["selector"]["tidepool.dev/tls"] == "true"
    assert service["ports"][0]["port"] == added["ports"][0]["port"] == 8443
    components = [peer["podSelector"]["matchLabels"] for peer in added["from"]]
    assert components == [{"tidepool.dev/component": "gateway"}, {"tidepool.dev/pool": "llama"}]


def test_gateways_see_names_and_aliases() -> None:
    pool = observe(raw_pool(model={"uri": "hf://acme/llama", "aliases": ["chat"]})).pool
    found = fleet_pool(pool)

    assert found.name == "default/llama"
    assert found.models == ("llama", "chat")
    assert found.endpoints == ("dns+http://llama-peers.default.svc:8080",)


def test_gateways_hear_of_the_pools_that_its_traffic_names_by_their_full_names() -> None:
    traffic = {
        "rules": [
            {"name": "long", "when": {"minPromptTokens": 8000}, "pool": "long"},
            {"name": "hard", "classifier": {"url": "http://a.b/", "classes": [{"name": "hard", "pool": "big"}]}},
        ],
        "split": [{"pool": "next", "percent": 5}],
        "mirror": {"pool": "next"},
        "fallback": ["small"],
    }
    found = fleet_pool(observe(raw_pool(traffic=traffic)).pool).traffic

    assert found is not None
    assert set(found.targets) == {f"default/{name}" for name in ("long", "big", "next", "small")}
    assert found.rules[0].when.min_prompt_tokens == 8000
    assert fleet_pool(observe(raw_pool()).pool).traffic is None
