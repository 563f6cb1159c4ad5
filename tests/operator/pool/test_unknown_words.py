"""Words of a kubelet, a scheduler, a registry or a controller that nobody knows have the general reason of their
place, whatever they remind of; and names that people give are no words of theirs."""

from collections.abc import Callable, Mapping
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pools.objects import pod
from tidepool_operator.pool.diagnosis import Finding, deployment_finding, diagnose
from tidepool_operator.pool.model import Clues, Happening, Object
from tidepool_operator.pool.reasons import Reason

GPU = "nvidia.com/gpu"


def waiting(reason: str, message: str) -> Object:
    return {"state": {"waiting": {"reason": reason, "message": message}}, "image": "x"}


def unplaced(text: str) -> Finding | None:
    return diagnose(pod("p", "r", scheduled=False, unplaced=text), GPU)


def image(text: str) -> Finding | None:
    return diagnose(pod("p", "r", engine=waiting("ErrImagePull", text)), GPU)


def event_of_image(text: str) -> Finding | None:
    clues = Clues(events=(Happening("Failed", f'Failed to pull image "acme/x:1": {text}'),))
    return diagnose(
        pod("p", "r", engine=waiting("ImagePullBackOff", 'Back-off pulling image "acme/x:1"')), GPU, clues
    )


def config(text: str) -> Finding | None:
    return diagnose(pod("p", "r", engine=waiting("CreateContainerConfigError", text)), GPU)


def mount(text: str) -> Finding | None:
    coming = waiting("PodInitializing", "")
    clues = Clues(events=(Happening("FailedMount", text),))
    return diagnose(pod("p", "r", router=coming, engine=coming), GPU, clues)


def refused(text: str) -> Finding | None:
    condition = {"type": "ReplicaFailure", "status": "True", "message": text}
    return deployment_finding({"status": {"conditions": [condition]}})


def ended(text: str) -> Finding | None:
    last = {"terminated": {"exitCode": 137, "message": text}}
    clues = Clues(log=text, events=(Happening("Killing", text),))
    return diagnose(pod("p", "r", engine={**waiting("CrashLoopBackOff", ""), "lastState": last}), GPU, clues)


GENERAL: Final[Mapping[Callable[[str], Finding | None], Reason]] = {
    unplaced: Reason.UNSCHEDULABLE,
    image: Reason.IMAGE_PULL_FAILED,
    event_of_image: Reason.IMAGE_PULL_FAILED,
    config: Reason.CONTAINER_CONFIG_INVALID,
    mount: Reason.VOLUME_NOT_MOUNTED,
    refused: Reason.PODS_REFUSED,
    ended: Reason.ENGINE_CRASHED,
}


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (image, 'failed to resolve reference "docker.io/acme/unauthorized:1": dial tcp 10.0.0.1:443: i/o timeout'),
        (image, "docker://quay.io/acme/access-denied:1: pinging container registry: connection refused"),
        (image, "dial tcp 10.0.0.1:443: connect: permission denied: blocked"),
        (image, 'Get "https://r.local/v2/": Proxy Authentication Required'),
        (event_of_image, "read tcp: lookup r.local/unauthorized: no such host"),
        (config, 'failed to sync secret cache: timed out waiting for the condition'),
        (config, 'secret "hf" is forbidden: no relationship found between node and this object'),
        (config, 'stat the secret "sauce" of the house'),
        (mount, 'MountVolume.SetUp failed for volume "keys" : failed to sync secret cache: timed out'),
        (mount, 'MountVolume.SetUp failed for volume "keys" : secret "keys" is forbidden'),
        (mount, 'MountVolume.SetUp failed for volume "c" : failed to sync configmap cache: timed out'),
        (refused, 'admission webhook "team.acme.dev" denied the request: team has exceeded quota of the month'),
        (unplaced, "0/3 nodes are available: 3 node(s) had something new that is Insufficient for it."),
        (unplaced, "0/3 nodes are available: 3 Insufficiently nvidia.com/gpu."),
        (unplaced, "0/3 nodes are available: 3 node(s) were in maintenance {untolerated taint}."),
        (ended, "the container failed startup probe, will be restarted, says somebody"),
        (ended, "Container loader failed startup probe, will be restarted"),
        (ended, "I would rather say CUDA out of memory"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)  # fmt: skip
def test_words_that_only_remind_of_a_reason_have_the_general_one(
    asked: Callable[[str], Finding | None], text: str
) -> None:
    found = asked(text)

    assert found is not None
    assert found.reason is GENERAL[asked]


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=40))
def test_any_text_has_the_general_reason_of_its_place(text: str) -> None:
    for asked, reason in GENERAL.items():
        found = asked(text)
        assert found is not None
        assert found.reason is reason


@pytest.mark.parametrize(
    ("asked", "text", "expected"),
    [
        (image, "reading docker://r.local/x:1: unauthorized: access to it is not granted", "Denied"),
        (image, "rpc error: code = Unknown desc = denied: requested access to the resource is denied", "Denied"),
        (image, "unexpected status from HEAD request to https://r.local/v2/x: 403 Forbidden", "Denied"),
        (image, "rpc error: code = NotFound desc = r.local:5000/acme/x@sha256:0f1e: not found", "NotFound"),
        (config, "couldn't find key token in Secret default/hf", "SecretMissing"),
        (mount, 'failed for volume "k" : references non-existent secret key: ca', "SecretMissing"),
        (refused, 'pods "llama-1" is forbidden: exceeded quota: gpus, requested: pods=1', "QuotaExceeded"),
    ],
)  # fmt: skip
def test_words_that_are_known_keep_theirs(
    asked: Callable[[str], Finding | None], text: str, expected: str
) -> None:
    found = asked(text)

    assert found is not None
    assert found.reason.endswith(expected)
