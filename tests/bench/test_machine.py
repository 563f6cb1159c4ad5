"""The readings of /proc: a proxy that forks must not look cheaper than it is."""

import os
import subprocess
import sys

import pytest

from bench import machine

pytestmark = [pytest.mark.traffic]  # reads clocks of processes

_CHILD_OF_CHILD = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=subprocess.PIPE)\n"
    "print(child.pid, flush=True)\n"
    "sys.stdin.read()\n"
    "child.communicate()\n"
)


def test_a_tree_has_its_grandchildren_and_their_memory() -> None:
    command = [sys.executable, "-c", _CHILD_OF_CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert {os.getpid(), child.pid, grandchild} <= set(machine.tree(os.getpid()))
        assert machine.tree(child.pid) == [child.pid, grandchild]
        assert machine.resident_bytes(child.pid) > machine.resident_bytes(grandchild) > 0
        child.communicate("")
    assert child.pid not in machine.tree(os.getpid())


def test_time_of_children_that_ended_is_counted() -> None:
    before = machine.cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.2: pass"], check=True)
    assert machine.cpu_seconds(os.getpid()) - before >= 0.18  # two ticks less: they are cut off, not rounded


def test_scheduled_time_of_a_live_process_is_exact() -> None:
    program = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert 0.199 <= machine.scheduled_seconds(child.pid) <= machine.cpu_seconds(child.pid) + 0.02
        child.communicate("\n")


def test_a_core_that_is_not_there_is_an_error() -> None:
    assert machine.busy_seconds(0) > 0
    with pytest.raises(LookupError, match="no core 4000"):
        machine.busy_seconds(4000)


def test_patience_ends_on_a_machine_that_is_never_calm() -> None:
    assert machine.Patience(seconds=0.5, calm_share=-1.0).wait([0]) is False
