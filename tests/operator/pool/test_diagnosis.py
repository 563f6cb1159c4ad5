"""Reasons: each from what a kubelet, a scheduler or a controller really says."""

from typing import Any

import pytest

from pools.objects import pod
from tidepool_operator.pool.diagnosis import deployment_finding, diagnose, foremost, log_tail
from tidepool_operator.pool.reasons import REMEDIES, Reason, explain

GPU = "nvidia.com/gpu"


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}, "image": "vllm:x"}


def crashed(message: str = "", reason: str = "Error", code: int = 1) -> dict[str, Any]:
    ended = {"exitCode": code, "reason": reason, "message": message}
    return {
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
        "lastState": {"terminated": ended},
        "restartCount": 3,
        "ready": False,
        "started": False,
    }


def started(at: str) -> dict[str, Any]:
    """An engine that has started and is not ready; the pod is not ready since 2023."""
    return {"started": True, "ready": False, "state": {"running": {"startedAt": at}}}


@pytest.mark.parametrize(
    ("given", "expected", "says"),
    [
        ({"engine": waiting("ErrImagePull", "not found")}, Reason.IMAGE_PULL_FAILED, "vllm:x"),
        ({"engine": waiting("ImagePullBackOff")}, Reason.IMAGE_PULL_FAILED, "ImagePullBackOff"),
        ({"router": waiting("InvalidImageName")}, Reason.IMAGE_PULL_FAILED, "router"),
        (
            {"engine": waiting("CreateContainerConfigError", 'secret "hf" not found')},
            Reason.SECRET_MISSING,
            'secret "hf"',
        ),
        (
            {"engine": waiting("CreateContainerConfigError", "couldn't find key token in Secret default/hf")},
            Reason.SECRET_MISSING,
            "key token",
        ),
        (
            {"engine": waiting("CreateContainerConfigError", 'configmap "c" not found')},
            Reason.CONFIG_MISSING,
            'configmap "c"',
        ),
        (
            {
                "engine": waiting(
                    "CreateContainerConfigError", "container has runAsNonRoot and image will run as root"
                )
            },
            Reason.CONTAINER_CONFIG_INVALID,
            "runAsNonRoot",
        ),
        (
            {"engine": waiting("RunContainerError", 'exec: "vlm": executable file not found in $PATH')},
            Reason.CONTAINER_START_FAILED,
            "vlm",
        ),
        (
            {"engine": crashed("Traceback\n  File x\nValueError: No supported config format found in /m\n")},
            Reason.ENGINE_CRASHED,
            "ValueError: No supported config",
        ),
        ({"engine": crashed(reason="OOMKilled", code=137)}, Reason.ENGINE_OUT_OF_MEMORY, "memory limit"),
        ({"router": crashed("Bad flag")}, Reason.ROUTER_CRASHED, "Bad flag"),
        ({"scheduled": False}, Reason.INSUFFICIENT_ACCELERATORS, f"wants 4 {GPU}: "),
        (
            {"scheduled": False, "unplaced": "0/2 nodes are available: 2 Insufficient memory."},
            Reason.UNSCHEDULABLE,
            "Insufficient memory",
        ),
        ({"engine": started("2020-01-01T00:00:00Z")}, Reason.ENGINE_NOT_READY, "not ready now"),
        ({"engine": started("2030-01-01T00:00:00Z")}, Reason.LOADING, "loads its model"),
        ({}, Reason.LOADING, "loads its model"),
        ({"engine": waiting("PodInitializing")}, Reason.STARTING, "starts"),
        ({"engine": waiting("SomethingNew", "secret sauce")}, Reason.STARTING, "starts"),
        ({"deleting": True, "ready": True}, Reason.DRAINING, "finishes"),
    ],
)
def test_diagnose(given: dict[str, Any], expected: Reason, says: str) -> None:
    found = diagnose(pod("p1", "r", **given), GPU)

    assert found is not None
    assert found.reason is expected
    assert says in found.what


def test_a_pod_that_serves_has_nothing_the_matter() -> None:
    assert diagnose(pod("p1", "r", ready=True, router={"restartCount": 4}), GPU) is None


def test_the_kernel_kill_of_an_earlier_life_does_not_count_when_the_engine_serves_again() -> None:
    engine = {
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        "ready": True,
        "started": True,
    }

    assert diagnose(pod("p1", "r", ready=True, engine=engine), GPU) is None


@pytest.mark.parametrize(
    ("log", "hidden"),
    [
        ("ValueError: token hf_abcdefghijklmnop is no good", "hf_abcdefghijklmnop"),
        ("RuntimeError: header Authorization: Bearer sk-12345 refused", "sk-12345"),
        ("ValueError: api_key='sk-999' refused", "sk-999"),
    ],
)
def test_what_looks_like_a_token_goes_no_further(log: str, hidden: str) -> None:
    assert hidden not in log_tail(log)
    assert "Error" in log_tail(log)


def test_the_engine_cores_own_error_is_told_and_not_that_there_was_one() -> None:
    log = "(EngineCore pid=9) ValueError: no memory for blocks\nRuntimeError: Engine core initialization failed. "

    assert "no memory for blocks" in log_tail(f"{log}See root cause above. Failed core proc(s): {{}}")


def test_a_log_tail_is_one_bounded_line() -> None:
    tail = log_tail("\n".join(f"line {number} " + "x" * 300 for number in range(50)))

    assert "\n" not in tail
    assert len(tail) <= 600


def test_refused_pods_show_in_the_deployment() -> None:
    def failing(message: str) -> dict[str, Any]:
        return {"status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]}}

    quota = deployment_finding(failing('pods "x" is forbidden: exceeded quota: q'))
    other = deployment_finding(failing('pods "x" is forbidden: violates PodSecurity "restricted"'))

    assert quota is not None
    assert other is not None
    assert (quota.reason, other.reason) == (Reason.QUOTA_EXCEEDED, Reason.PODS_REFUSED)
    assert deployment_finding({"status": {}}) is None


def test_the_cause_speaks_before_what_follows_from_it() -> None:
    found = [diagnose(pod("a", "r"), GPU), diagnose(pod("b", "r", engine=waiting("ErrImagePull")), GPU)]
    chosen = foremost([entry for entry in found if entry])

    assert chosen is not None
    assert chosen.reason is Reason.IMAGE_PULL_FAILED


@pytest.mark.parametrize("reason", REMEDIES)
def test_every_reason_that_needs_a_person_says_what_to_do(reason: Reason) -> None:
    assert explain(reason, "It broke").startswith("It broke. ")
