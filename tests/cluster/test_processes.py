"""A process is known by more than its number, and nothing else is ever signalled."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import processes

WAIT = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)",
]


def _start(command: list[str], **environment: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None
    child.stdout.readline()
    return child


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with _start(WAIT) as started:
        yield started
        started.kill()


def test_the_start_tick_is_read_behind_a_name_with_spaces_and_parentheses() -> None:
    fields = " ".join(str(number) for number in range(4, 53))
    assert processes.parse_start_ticks(f"42 (a ) name) S {fields}") == 22
    assert processes.parse_state(f"42 (a ) name) Z {fields}") == "Z"


def test_a_record_names_one_process_of_one_boot(child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    identity = processes.identify(child.pid)
    assert identity is not None
    processes.write_record(tmp_path / "record.json", identity)

    found = processes.read_record(tmp_path / "record.json")

    assert found == identity
    assert processes.is_alive(found)


@pytest.mark.parametrize("text", ["", "{", '{"pid": 1}', "[]"])
def test_a_record_that_was_cut_off_counts_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(text)
    assert processes.read_record(tmp_path / "record.json") is None


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "an earlier boot"}])
def test_a_recycled_number_is_left_alone(child: subprocess.Popen[bytes], change: dict[str, object]) -> None:
    identity = processes.identify(child.pid)
    assert identity is not None
    stranger = dataclasses.replace(identity, **change)  # type: ignore[arg-type]

    processes.send(stranger, signal.SIGKILL)
    processes.end([stranger])

    assert processes.is_alive(identity)


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_time() -> None:
    with _start(DEAF) as deaf:
        identity = processes.identify(deaf.pid)
        assert identity is not None
        processes.end([identity], grace_seconds=0.05)
        assert processes.identify(deaf.pid) is None


def test_a_zombie_counts_as_gone(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and /proc still has it
    assert processes.identify(child.pid) is None


def test_a_lost_process_is_found_by_its_mark_and_no_other(tmp_path: Path) -> None:
    mine, other = f"{tmp_path}/mine", f"{tmp_path}/other"
    with _start(WAIT, **{processes.MARK: mine}) as lost, _start(WAIT, **{processes.MARK: other}) as stranger:
        found = processes.marked(mine)
        processes.end(found)
        assert [identity.pid for identity in found] == [lost.pid]
        assert processes.identify(stranger.pid) is not None
        stranger.kill()


def test_what_a_killed_owner_left_is_cleared_and_what_a_living_one_holds_is_not(tmp_path: Path) -> None:
    abandoned, held = tmp_path / "thing-abandoned", tmp_path / "thing-held"
    for folder in (abandoned, held):
        folder.mkdir()
    with _start(WAIT) as owner:
        identity = processes.identify(owner.pid)
        owner.kill()
    assert identity is not None
    processes.write_record(abandoned / "owner.json", identity)
    processes.claim(held)
    with _start(WAIT, **{processes.MARK: str(abandoned)}) as orphan:
        assert processes.clear_abandoned(tmp_path, "thing-") == [abandoned]
        assert processes.identify(orphan.pid) is None
    assert held.exists()
    assert not abandoned.exists()
