"""Reasons: each from what a kubelet, a scheduler or a controller really says."""

from typing import Any

import pytest

from pools.objects import pod
from tidepool_api.load import Health
from tidepool_operator.pool.clues import Question, wanted
from tidepool_operator.pool.diagnosis import deployment_finding, diagnose, foremost
from tidepool_operator.pool.log_tail import log_tail
from tidepool_operator.pool.model import Clues, Happening
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
            {
                "engine": crashed(
                    "Traceback\n  File x\nValueError: Invalid repository ID or local directory specified: '/m'.\n"
                )
            },
            Reason.MODEL_FILES_INCOMPLETE,
            "ValueError: Invalid repository ID",
        ),
        ({"engine": crashed("ValueError: something new")}, Reason.ENGINE_CRASHED, "ValueError: something new"),
        ({"engine": crashed(reason="OOMKilled", code=137)}, Reason.ENGINE_OUT_OF_MEMORY, "memory limit"),
        ({"router": crashed("Bad flag")}, Reason.ROUTER_CRASHED, "Bad flag"),
        ({"scheduled": False}, Reason.INSUFFICIENT_ACCELERATORS, f"wants 4 {GPU}: "),
        (
            {"scheduled": False, "unplaced": "0/2 nodes are available: 2 Insufficient memory."},
            Reason.INSUFFICIENT_RESOURCES,
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


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint {a: b}.",
            Reason.INSUFFICIENT_ACCELERATORS,
        ),
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu-shared.", Reason.INSUFFICIENT_RESOURCES),
        (
            "0/3 nodes are available: 1 node(s) had untolerated taint {gpu: true}, "
            "2 node(s) didn't match Pod's node affinity/selector.",
            Reason.TAINT_NOT_TOLERATED,
        ),
        (
            "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
            "2 node(s) didn't match Pod's node affinity/selector.",
            Reason.NODE_SELECTOR_UNMATCHED,
        ),
        (
            "0/3 nodes are available: 3 node(s) had untolerated taint {node.kubernetes.io/not-ready: }.",
            Reason.UNSCHEDULABLE,
        ),
        ("0/2 nodes are available: 2 Insufficient cpu, 1 Insufficient memory.", Reason.INSUFFICIENT_RESOURCES),
        ("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.", Reason.VOLUME_PENDING),
        ('persistentvolumeclaim "models" not found', Reason.VOLUME_PENDING),
        ("0/2 nodes are available: 2 node(s) had volume node affinity conflict.", Reason.VOLUME_PENDING),
        (
            'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded',
            Reason.VOLUME_PENDING,
        ),
        ("0/2 nodes are available: 2 node(s) were unschedulable.", Reason.UNSCHEDULABLE),
        (  # the one that has the labels may be the one that is cordoned
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match Pod's node "
            "affinity/selector.",
            Reason.UNSCHEDULABLE,
        ),
        (
            "0/3 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }, "
            "2 node(s) didn't match Pod's node affinity/selector.",
            Reason.UNSCHEDULABLE,
        ),
        ("", Reason.UNSCHEDULABLE),
    ],
)
def test_why_a_pod_finds_no_node(message: str, expected: Reason) -> None:
    found = diagnose(pod("p1", "r", scheduled=False, unplaced=message), GPU)

    assert found is not None
    assert found.reason is expected


@pytest.mark.parametrize(
    ("message", "events", "expected"),
    [
        (
            'failed to resolve reference "docker.io/acme/x:9": docker.io/acme/x:9: not found',
            (),
            Reason.IMAGE_NOT_FOUND,
        ),
        ("reading manifest 9 in quay.io/acme/x: manifest unknown", (), Reason.IMAGE_NOT_FOUND),
        (
            "failed to authorize: failed to fetch anonymous token: unexpected status: 401 Unauthorized",
            (),
            Reason.IMAGE_PULL_DENIED,
        ),
        (
            "pull access denied, repository does not exist or may require authorization: server message: "
            "insufficient_scope: authorization failed",
            (),
            Reason.IMAGE_PULL_DENIED,
        ),
        ("dial tcp 10.0.0.1:443: i/o timeout", (), Reason.IMAGE_PULL_FAILED),
        ('Back-off pulling image "x"', (), Reason.IMAGE_PULL_FAILED),
        (
            'Back-off pulling image "x"',
            (Happening("Failed", 'Failed to pull image "x": rpc error: x: not found'),),
            Reason.IMAGE_NOT_FOUND,
        ),
    ],
)
def test_why_an_image_cannot_be_had(message: str, events: tuple[Happening, ...], expected: Reason) -> None:
    found = diagnose(pod("p1", "r", engine=waiting("ImagePullBackOff", message)), GPU, Clues(events=events))

    assert found is not None
    assert found.reason is expected


PREPARING = {"router": waiting("PodInitializing"), "engine": waiting("PodInitializing")}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            Happening("FailedMount", 'MountVolume.SetUp failed for volume "model" : mount failed: exit status 32'),
            Reason.VOLUME_NOT_MOUNTED,
        ),
        (
            Happening(
                "FailedAttachVolume", 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) x'
            ),
            Reason.VOLUME_NOT_MOUNTED,
        ),
        (
            Happening("FailedMount", 'MountVolume.SetUp failed for volume "keys" : secret "keys" not found'),
            Reason.SECRET_MISSING,
        ),
        (
            Happening("FailedMount", 'MountVolume.SetUp failed for volume "c" : configmap "c" not found'),
            Reason.CONFIG_MISSING,
        ),
        (Happening("FailedCreatePodSandBox", "plugin type calico failed (add)"), Reason.SANDBOX_FAILED),
        (
            Happening("Unhealthy", "Startup probe failed: connection refused", "spec.initContainers{router}"),
            Reason.ROUTER_NOT_READY,
        ),
        (Happening("Scheduled", "Successfully assigned"), Reason.STARTING),
        (Happening("SomethingNew", "FailedMount"), Reason.STARTING),
    ],
)
def test_a_pod_that_cannot_be_prepared_says_why(event: Happening, expected: Reason) -> None:
    found = diagnose(pod("p1", "r", **PREPARING), GPU, Clues(events=(Happening("Pulled", "ok"), event)))

    assert found is not None
    assert found.reason is expected
    assert expected is Reason.STARTING or event.message in found.what


def test_a_volume_that_was_late_is_forgotten_when_the_pod_runs() -> None:
    late = Clues(events=(Happening("FailedMount", "timed out"),))
    found = diagnose(pod("p1", "r"), GPU, late)

    assert found is not None
    assert found.reason is Reason.LOADING


KILLED = Happening(
    "Killing", "Container engine failed startup probe, will be restarted", "spec.containers{engine}"
)


@pytest.mark.parametrize(
    ("code", "log", "events", "expected"),
    [
        (137, "", (KILLED,), Reason.PROBE_ENDS_ENGINE),
        (143, "", (KILLED,), Reason.PROBE_ENDS_ENGINE),
        (1, "ValueError: x", (KILLED,), Reason.ENGINE_CRASHED),  # it ended by itself before the kubelet came to it
        (137, "", (), Reason.ENGINE_CRASHED),
        (137, "", (Happening("Killing", "Stopping container engine"),), Reason.ENGINE_CRASHED),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried", (KILLED,), Reason.ACCELERATOR_OUT_OF_MEMORY),
    ],
)
def test_a_probe_that_ends_a_slow_load_is_told_from_a_crash(
    code: int, log: str, events: tuple[Happening, ...], expected: Reason
) -> None:
    found = diagnose(pod("p1", "r", engine=crashed(code=code)), GPU, Clues(log=log, events=events))

    assert found is not None
    assert found.reason is expected


def test_the_whole_log_goes_before_the_two_kilobytes_of_the_termination_message() -> None:
    log = (
        "ValueError: Unknown quantization method: awqq. Must be\nRuntimeError: Engine core initialization failed."
    )
    found = diagnose(pod("p1", "r", engine=crashed("RuntimeError: Engine core")), GPU, Clues(log=log))

    assert found is not None
    assert found.reason is Reason.QUANTIZATION_UNFIT


SERVED = {"engine": {**started("2020-01-01T00:00:00Z"), "restartCount": 0}}
# What its kubelet last said, before somebody else said that it is not ready.
SILENT = {"engine": {**SERVED["engine"], "ready": True}}


@pytest.mark.parametrize(
    ("clues", "expected"),
    [
        (Clues(health=Health.HUNG), Reason.ENGINE_HUNG),
        (Clues(health=Health.DOWN), Reason.ENGINE_NOT_READY),
        (Clues(), Reason.ENGINE_NOT_READY),
        (
            Clues("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus", health=Health.HUNG),
            Reason.ACCELERATOR_ERROR,
        ),
        (Clues("ValueError: Unknown quantization method: x"), Reason.ENGINE_NOT_READY),
        (Clues(events=(Happening("NodeNotReady", "Node is not ready"),)), Reason.ENGINE_NOT_READY),
    ],
)
def test_an_engine_that_was_ready_and_is_not_now(clues: Clues, expected: Reason) -> None:
    found = diagnose(pod("p1", "r", **SERVED), GPU, clues)

    assert found is not None
    assert found.reason is expected


def test_a_node_that_does_not_answer_leaves_its_pods_as_they_last_were() -> None:
    engine = {"ready": True, "started": True, "state": {"running": {"startedAt": "2020-01-01T00:00:00Z"}}}
    found = diagnose(
        pod("p1", "r", engine=engine), GPU, Clues(events=(Happening("NodeNotReady", "Node is not ready"),))
    )

    assert found is not None
    assert found.reason is Reason.NODE_LOST
    assert "n1" in found.what


def test_what_the_node_list_says_holds_when_events_are_forgotten() -> None:
    engine = {"ready": True, "started": True, "state": {"running": {"startedAt": "2020-01-01T00:00:00Z"}}}
    found = diagnose(pod("p1", "r", engine=engine), GPU, Clues(node="node n1 is gone"))

    assert found is not None
    assert (found.reason, found.what) == (Reason.NODE_LOST, "Pod p1: node n1 is gone")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}, Reason.EVICTED),
        ({"reason": "NodeShutdown", "message": "Pod was terminated"}, Reason.NODE_LOST),
        ({"conditions": [{"type": "DisruptionTarget", "reason": "DeletionByPodGC"}]}, Reason.NODE_LOST),
        ({"reason": "UnexpectedAdmissionError", "message": "Allocate failed"}, Reason.POD_FAILED),
    ],
)
def test_a_pod_that_failed(status: dict[str, Any], expected: Reason) -> None:
    failed = pod("p1", "r")
    failed["status"] = {"phase": "Failed", **status}
    found = diagnose(failed, GPU)

    assert found is not None
    assert found.reason is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ready": True}, None),
        ({"deleting": True}, None),
        ({"scheduled": False}, None),
        ({}, None),  # loads
        ({"engine": crashed()}, {Question.LOG, Question.EVENTS}),
        (
            {"engine": {**crashed(), "state": {"running": {}}}},
            {Question.LOG_BEFORE, Question.EVENTS},
        ),
        (SERVED, {Question.LOG, Question.EVENTS, Question.HEALTH}),
        (SILENT, {Question.NODE, Question.LOG, Question.EVENTS, Question.HEALTH}),
        (PREPARING, {Question.EVENTS}),
        ({"engine": waiting("ImagePullBackOff")}, {Question.EVENTS}),
    ],
    ids=[
        "well",
        "going",
        "unplaced",
        "loads",
        "ended",
        "tries again",
        "fell",
        "stands still",
        "prepared",
        "image",
    ],
)
def test_only_a_pod_in_trouble_is_asked_about(given: dict[str, Any], expected: set[Question] | None) -> None:
    found = wanted(pod("p1", "r", **given))

    assert (set(found.questions) if found else None) == expected


def test_an_image_whose_name_the_kubelet_does_not_tell_yet_is_none_of_none() -> None:
    engine = {"state": {"waiting": {"reason": "ErrImagePull", "message": 'pull "acme/x:1": not found'}}}
    told = diagnose(pod("p", "", engine=engine), GPU)

    assert told is not None
    assert "None" not in told.what
    assert told.what.endswith('container engine: pull "acme/x:1": not found')
