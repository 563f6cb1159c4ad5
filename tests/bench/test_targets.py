"""The targets: missed by a figure that is too bad, and silent where something is not measured."""

from typing import Any

from bench import report, targets


def run(candidate: str, work: str, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"candidate": candidate, "work": work, "requests": 1000, "events": 1000, "errors": 0}
    base |= {"seconds": 1.0, "p50_ms": 0.5, "p99_ms": 2.0, "resident_bytes": 0, "wall_seconds": 1.0}
    return base | {"cpu_seconds": 0.1, "core_share": 1.0, "foreign_share": 0.0, "grown_bytes": 0} | changes


def judged(*runs: dict[str, Any], **more: Any) -> dict[str, bool]:
    return {target.name: held for target, _, _, held in targets.judge({"runs": runs, **more})}


def test_cpu_a_request_is_held_against_both_peers() -> None:
    peers = [run("vllm-router", "rate", cpu_seconds=0.1), run("envoy", "rate", cpu_seconds=0.045)]

    assert judged(*peers, run("gateway", "rate", cpu_seconds=0.044)) == {"gateway: CPU a request": True}
    assert judged(*peers, run("gateway", "rate", cpu_seconds=0.047)) == {"gateway: CPU a request": False}
    cheap_envoy = [peers[0], run("envoy", "rate", cpu_seconds=0.06)]
    assert judged(*cheap_envoy, run("gateway", "rate", cpu_seconds=0.055)) == {"gateway: CPU a request": False}


def test_without_a_peer_nothing_is_said_of_it() -> None:
    assert judged(run("gateway", "rate"), run("vllm-router", "rate")) == {}


def test_a_peak_must_be_twice_the_peers_and_counts_only_on_a_full_core() -> None:
    peer = run("vllm-router", "peak", requests=1000)

    assert judged(peer, run("sidecar", "peak", requests=2001)) == {"sidecar: peak of one core": True}
    assert judged(peer, run("sidecar", "peak", requests=1999)) == {"sidecar: peak of one core": False}
    assert judged(peer, run("sidecar", "peak", requests=9000, core_share=0.5)) == {}


def test_latency_added_is_the_chains_over_the_direct_runs() -> None:
    direct = run("direct", "half", p50_ms=0.2, p99_ms=1.0)

    assert judged(direct, run("chain", "half", p50_ms=0.6, p99_ms=4.5)) == {
        "gateway and sidecar: latency added, p50": True,
        "gateway and sidecar: latency added, p99": False,
    }


def test_memory_is_a_held_requests_share_of_the_growth() -> None:
    held = run("gateway", "idle", requests=2000, grown_bytes=2000 * 33 * 1024)
    body = run("gateway", "bodies", requests=16, grown_bytes=16 * 2**20)

    assert judged(held, body) == {
        "gateway: memory an idle stream": False,
        "gateway: memory an 8 MB body": True,
    }


def test_many_pods_have_limits_of_their_own() -> None:
    pods = {
        "pods": 100,
        "pick_us": {"Predicted": [{"median": 250.0, "p99": 300.0}]},
        "idle_core_share": {"gateway": [0.2, 0.05, 0.06], "sidecar": []},
    }

    assert judged(pods=pods) == {"gateway: idle, 100 pods": True, "a pick among 100 pods": False}


def test_a_miss_is_said_in_capitals() -> None:
    lines = report.verdicts({"runs": [run("vllm-router", "paced"), run("gateway", "paced", cpu_seconds=0.2)]})

    assert lines == ["gateway: CPU a paced chunk: 200.0 us, target at most 100.0 (vllm-router's): MISSED"]
