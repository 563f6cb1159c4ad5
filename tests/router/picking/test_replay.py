"""Decisions are explained and made again from their record alone."""

import json
from pathlib import Path

import msgspec
import pytest

from pools.candidates import fake_pod
from tidepool_api.routing import Policy
from tidepool_router import replay_command
from tidepool_router.errors import SettingsError
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.fleet.recording import DecisionLog
from tidepool_router.ledger import Estimate
from tidepool_router.picking import Predicted
from tidepool_router.picking.candidate import Candidate
from tidepool_router.picking.decision import Decision, decision_of
from tidepool_router.picking.predicted import harm_of, parts_of
from tidepool_router.picking.replay import replay

FACTS = RequestFacts(Api.CHAT, "/v1/chat/completions", "m", prompt_bytes=4000, prefix=(1, 2), session="s")
REQUEST = Estimate(1000, 100)


def decision(*pods: Candidate, cached: dict[int, int]) -> Decision:
    pick = Predicted().pick(pods, REQUEST, FACTS, cached)
    return decision_of(5.0, "ns/p", pods, REQUEST, FACTS, cached, pick)


def some() -> list[Decision]:
    return [
        decision(fake_pod(0, "a", load_tokens=9, queued_tokens=500), fake_pod(1, "b", load_tokens=99), cached={}),
        decision(fake_pod(0, "a", load_tokens=9), fake_pod(1, "b", load_tokens=99), cached={1: 3000}),
    ]


@pytest.mark.parametrize(
    "pod",
    [
        fake_pod(),
        fake_pod(queued_tokens=700, live_requests=9),
        fake_pod(kv_tokens=99_000, expected_tokens=5000),
        fake_pod(kv_tokens=99_000, kv_capacity_tokens=0),
        fake_pod(adapters=frozenset({"a", "b"})),
    ],
)
@pytest.mark.parametrize("hit", [0, 400])
def test_the_parts_are_the_whole(pod: Candidate, hit: int) -> None:
    """What is shown is what was decided by."""
    assert sum(parts_of(pod, REQUEST, hit, "sql")) == pytest.approx(harm_of(pod, 1000 - hit, 100, "sql"))


def test_a_record_makes_the_same_pick_again() -> None:
    decisions = [msgspec.json.decode(msgspec.json.encode(item), type=Decision) for item in some()]

    result = replay(decisions, Policy.PREDICTED)

    assert (result.decisions, result.same) == (2, 2)
    assert dict(result.picked) == {"b": 2}
    assert result.harm_now_seconds == result.harm_then_seconds > 0


def test_another_policy_picks_otherwise_and_the_harm_says_so() -> None:
    result = replay(some(), Policy.LEAST_LOAD)

    assert result.same == 0
    assert dict(result.picked) == {"a": 2}
    assert result.harm_now_seconds > result.harm_then_seconds


def test_the_command_reads_what_a_gateway_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "picks.jsonl"
    recording = DecisionLog(path)
    for item in some():
        recording.record(item)
    recording.close()
    with path.open("ab") as file:
        file.write(b'{"at": 1, "half')  # the gateway was killed here

    assert replay_command.run([str(path), "--policy", "RoundRobin"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert (told["policy"], told["decisions"]) == ("RoundRobin", 2)


def test_a_file_that_is_no_record_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "picks.jsonl"
    path.write_bytes(msgspec.json.encode(some()[0]) + b'\n{"at": "noon"}\n')

    assert replay_command.run([str(path)]) == 2
    assert "line 2" in capsys.readouterr().err
    assert replay_command.run([str(tmp_path / "none")]) == 2


def test_the_recording_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "picks.jsonl"
    line = len(msgspec.json.encode(some()[0])) + 1
    recording = DecisionLog(path, most_bytes=3 * line)
    for _ in range(20):
        recording.record(some()[0])
    recording.close()

    assert path.stat().st_size <= 3 * line
    assert path.with_name("picks.jsonl.1").stat().st_size <= 3 * line
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--record-decisions"):
        DecisionLog(tmp_path / "no" / "picks.jsonl")
