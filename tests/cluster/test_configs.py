"""The files that programs of the cluster read: what the tests of pools depend on."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cluster import buildah, certificates, configs, control, gpus, images, loading, rootfs, volumes
from cluster.layout import NODES, Layout

LAYOUT = Layout(Path("/state"), 211)


def test_containerd_takes_the_pause_image_and_starts_without_sys_resource() -> None:
    plugins = tomllib.loads(configs.containerd_toml("localhost/pause:1"))["plugins"]
    runtime = plugins["io.containerd.cri.v1.runtime"]
    assert plugins["io.containerd.cri.v1.images"]["pinned_images"]["sandbox"] == "localhost/pause:1"
    assert runtime["restrict_oom_score_adj"] is True
    assert runtime["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] is False


def test_kubelets_of_two_nodes_share_nothing() -> None:
    configurations = [json.loads(configs.kubelet_config(LAYOUT, node, Path("/ca"), (1, 36))) for node in NODES]
    assert [one["cgroupRoot"] for one in configurations] == [f"/{node}" for node in NODES]
    networks = [json.loads(configs.cni_conflist(LAYOUT, node))["plugins"][0]["ipam"]["ranges"] for node in NODES]
    assert networks == [[[{"subnet": "10.212.1.0/24"}]], [[{"subnet": "10.212.2.0/24"}]]]
    assert all(one["clusterDNS"] == ["10.211.0.1"] for one in configurations)


@pytest.mark.parametrize(
    ("version", "gated"),
    [((1, 29), True), ((1, 31), False), ((1, 36), False)],
    ids=["a field that 1.29 does not know, and nftables behind a gate", "both are known from here on", "newest"],
)
def test_each_release_of_kubernetes_is_told_what_it_knows(version: tuple[int, int], gated: bool) -> None:
    kubelet = json.loads(configs.kubelet_config(LAYOUT, NODES[0], Path("/ca"), version))
    proxy = configs.kube_proxy_command(LAYOUT, NODES[0], version)

    assert ("failCgroupV1" not in kubelet) is gated
    assert any(word.startswith("--feature-gates=") for word in proxy) is gated


def _relabel(rules: list[dict[str, Any]], target: str) -> list[str]:
    return [source for rule in rules if rule.get("target_label") == target for source in rule["source_labels"]]


def test_prometheus_labels_what_the_autoscaler_groups_by() -> None:
    text = configs.prometheus_yaml(LAYOUT, Path("/token"), Path("/ca"), "/rules.yml")
    config = json.loads(text)
    rules = config["scrape_configs"][0]["relabel_configs"]
    assert config["rule_files"] == ["/rules.yml"]
    assert _relabel(rules, "namespace") == ["__meta_kubernetes_namespace"]
    assert _relabel(rules, "pod") == ["__meta_kubernetes_pod_name"]
    assert _relabel(rules, "pool") == ["__meta_kubernetes_pod_label_tidepool_dev_pool"]
    assert rules[0] == {
        "source_labels": ["__meta_kubernetes_pod_annotation_prometheus_io_scrape"],
        "regex": "true",
        "action": "keep",
    }


def test_prometheus_without_rules_names_no_file() -> None:
    assert "rule_files" not in json.loads(configs.prometheus_yaml(LAYOUT, Path("/token"), Path("/ca"), None))


def test_names_of_pods_may_change_within_two_seconds() -> None:
    corefile = configs.corefile(LAYOUT, Path("/kubeconfig"))
    assert "ttl 2" in corefile
    assert "bind 10.211.0.1" in corefile


def test_a_node_of_ours_without_gpus_is_lacking_and_a_foreign_one_is_not() -> None:
    def node(name: str, gpus_shown: str | None) -> dict[str, Any]:
        capacity = {"cpu": "2"} | ({"nvidia.com/gpu": gpus_shown} if gpus_shown else {})
        return {"metadata": {"name": name}, "status": {"capacity": capacity}}

    nodes = [node(NODES[0], "4"), node(NODES[1], "0"), node("foreign", None)]
    assert gpus.lacking(nodes) == [NODES[1]]
    assert gpus.lacking([node(NODES[0], None)]) == [NODES[0]]
    assert json.loads(configs.gpu_patch())[0]["path"] == "/status/capacity/nvidia.com~1gpu"


def test_a_user_without_a_group_has_no_third_field() -> None:
    lines = control.token_csv({"t1": control.ADMIN, "t2": control.SCHEDULER}).splitlines()
    assert lines == ['t1,admin,admin,"system:masters"', "t2,system:kube-scheduler,system:kube-scheduler"]


def test_the_certificate_covers_the_names_by_which_pods_call_the_api_server() -> None:
    names = certificates.subject_alternative_names(["10.213.0.1"])
    assert "DNS:kubernetes.default.svc" in names.split(",")
    assert "IP:10.213.0.1" in names.split(",")


def test_claim_and_volume_name_each_other() -> None:
    volume, claim = volumes.objects("demo")
    assert volume["spec"]["claimRef"]["name"] == claim["metadata"]["name"]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadOnlyMany"]
    shared, _ = volumes.objects("demo", "models", "/folder", "ReadWriteMany")
    assert shared["spec"]["hostPath"]["path"] == "/folder"
    assert shared["metadata"]["name"] != volume["metadata"]["name"], "two claims of a namespace"


@pytest.mark.parametrize(
    ("targets", "mirror", "why"),
    [
        ("http://mirror/debian bookworm main\n", "http://mirror/debian", "the machine's own source"),
        ("http://other bookworm non-free\n", None, "not the component we need"),
        ("http://other/apt cloud-sdk main\n", None, "somebody else's packages"),
        ("", None, "nothing is known"),
    ],
)
def test_the_base_comes_from_the_machines_own_source(targets: str, mirror: str | None, why: str) -> None:
    assert rootfs.choose_mirror(targets, "bookworm") == mirror, why


def test_pips_settings_reach_the_build_without_paths_of_this_machine() -> None:
    listing = (
        "global.index-url='https://packages.example/simple'\n:env:.find-links='/opt/wheels'\n:env:.timeout='9'\n"
    )
    lines = buildah.pip_conf(listing).splitlines()
    assert lines[0] == "[global]"
    assert "index-url = https://packages.example/simple" in lines
    assert "timeout = 9" in lines
    assert not any("/opt/wheels" in line for line in lines)


def test_an_image_is_named_after_its_sources(tmp_path: Path) -> None:
    (tmp_path / "package" / "__pycache__").mkdir(parents=True)
    module = tmp_path / "package" / "module.py"
    module.write_text("a = 1\n")
    before = images.source_key(tmp_path, ["package"], "base")

    (tmp_path / "package" / "__pycache__" / "module.pyc").write_bytes(b"cache")
    assert images.source_key(tmp_path, ["package"], "base") == before, "byte code is not a source"
    assert images.source_key(tmp_path, ["package"], "other base") != before
    module.write_text("a = 2\n")
    assert images.source_key(tmp_path, ["package"], "base") != before
    module.rename(tmp_path / "package" / "renamed.py")
    module_moved = images.source_key(tmp_path, ["package"], "base")
    (tmp_path / "package" / "renamed.py").rename(module)
    assert images.source_key(tmp_path, ["package"], "base") != module_moved, "a name is part of a source"


def test_only_images_that_nobody_needs_are_forgotten() -> None:
    on_node = ["localhost/router:1", "localhost/router:2", "localhost/router:3", "localhost/base:1"]
    old = loading.outdated(on_node, ["localhost/router:2"], ["router"], ["localhost/router:3"])
    assert old == ["localhost/router:1"]
