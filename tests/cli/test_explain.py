"""What a person reads of a pool, and what a machine does."""

import json

import pytest

from cli.objects import EVENT, NOW, condition, pod, pool
from tidepool_cli import fleet
from tidepool_cli.explain import text, view
from tidepool_cli.tables import Paint

TOLD = """\
team/chat: not Ready for 4m0s (ImagePullDenied)
  The registry wants a login. Set imagePullSecrets.

Replicas: 4 wanted, 2 ready of 3 pods (1 to 8, mode Auto)
  Why: 3 -> 4: P90 of output tokens 8,900/s at 12:04; binding: decode (30s ago)
  Left without 2: quota gpus of team is full; raise it
  Before, 20m ago: 2 -> 3: 12 requests waiting

Conditions that ask for something:
  CapacityAvailable (Unschedulable): 2 nvidia.com/gpu are missing; add a node

POD     STATE                     READY  RESTARTS  REVISION  AGE   NODE
chat-a  Running                   yes    0         25fc0     2m0s  gpu-1
chat-b  engine: ImagePullBackOff  no     3         25fc0     2m0s  gpu-1

Events, the newest first:
  60s ago  ImagePullDenied: the registry wants a login"""


def test_the_verdict_and_its_remedy_come_first_then_why_so_many() -> None:
    pods = [pod("chat-b", waiting="ImagePullBackOff", restarts=3), pod("chat-a")]

    told = text(view(pool(), pods, [EVENT]), NOW, Paint(on=False))

    assert told == TOLD


def test_machines_get_the_same_as_json() -> None:
    told = json.loads(json.dumps(view(pool(), [pod("chat-a")], [EVENT]).as_json()))

    assert (told["ready"], told["reason"], told["wanted"], told["serving"]) == (False, "ImagePullDenied", 4, 2)
    assert [each["replicas"] for each in told["decisions"]] == [4, 3]
    assert told["pods"][0]["node"] == "gpu-1"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        pytest.param(
            {"conditions": []}, "The operator has not looked at this pool yet", id="it has no status yet"
        ),
        pytest.param(
            {"observedGeneration": 1}, "has not yet taken up the last change", id="the status is of an older spec"
        ),
        pytest.param(
            {"conditions": [condition("Ready", "True", "Serving", "All pods serve.")]},
            "Ready for 4m0s",
            id="all is well",
        ),
    ],
)
def test_what_stands_in_the_way_is_said(status: dict[str, object], words: str) -> None:
    assert words in text(view(pool(**status), [], []), NOW, Paint(on=False))


def test_names_and_messages_of_others_cannot_steer_a_terminal() -> None:
    hostile = pool(conditions=[condition("Ready", "False", "Bad", "\x1b]0;owned\x07\x1b[2Jgone")])

    told = text(view(hostile, [pod("chat-\x1b[31m")], []), NOW, Paint(on=False))

    assert "\x1b" not in told
    assert "\x07" not in told


def test_pools_that_need_somebody_stand_first() -> None:
    well = pool(conditions=[condition("Ready", "True", "Serving", "")])
    well["metadata"] = {"name": "a-well", "namespace": "team", "generation": 2}

    found = fleet.rows([well, pool()])

    assert [each["name"] for each in found] == ["chat", "a-well"]
    table = fleet.text(found, NOW).splitlines()
    assert table[1].split()[:7] == ["team", "chat", "2/3", "4", "40%", "1200", "180ms"]
    assert "-A looks in all namespaces" in fleet.text([], NOW)
