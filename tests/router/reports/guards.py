"""Which line of the router guards each report, and the proof: without the line the report's test is red.

`python tests/router/reports/guards.py [REPORT ...]` copies the router, breaks one line at a time and runs the test
that must fail then. It takes some minutes; test_guards.py holds the table against the reports and the code.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
# The numbers of the public reports that the tests cite; 7, 9, 13, 17 and 18 were never given.
REPORTS = (1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 14, 15, 16, 19, 20, 21, 22, 23)


@dataclass(frozen=True)
class Guard:
    """`line` stands once in `file` (under router/tidepool_router); with `broken` in its place `test` fails."""

    report: int
    test: str
    file: str
    line: str
    broken: str = "pass"

    def apply(self, text: str) -> str:
        """The file's text without the guard."""
        if text.count(self.line) != 1:
            raise LookupError(f"report {self.report}: {self.file} has {text.count(self.line)} times {self.line!r}")
        return text.replace(self.line, self.broken)


_LEAVE = "test_clients_that_leave.py"
_COUNTS = "test_counts.py"
_GO = "test_pods_that_go.py"
GUARDS = (
    Guard(1, f"{_LEAVE}::test_a_client_that_closes_during", "proxy/server.py", "exchange.client_gone()"),
    Guard(
        2, f"{_LEAVE}::test_a_client_that_leaves_before_the_first_token", "proxy/exchange.py",
        "self._finish(Outcome.CANCELLED, 499)",
    ),
    Guard(
        3, f"{_LEAVE}::test_a_client_that_leaves_between_two_tokens", "proxy/exchange.py",
        "        if upstream is not None:\n            upstream.drop()\n        task, self._task",
        "        task, self._task",
    ),
    Guard(
        4, f"{_LEAVE}::test_aborted_requests_leave_no_load", "proxy/gateway.py",
        "        reservation.close(outcome, now)\n", "        if outcome is not Outcome.CANCELLED:\n"
        "            reservation.close(outcome, now)\n",
    ),
    Guard(
        5, f"{_COUNTS}::test_probes_reports_and_new_settings", "fleet/pod.py",
        "requests if requests > fusion.requests else fusion.requests", "fusion.requests",
    ),
    Guard(
        6, f"{_COUNTS}::test_a_request_of_an_hour", "fleet/pod.py",
        "requests if requests > fusion.requests else fusion.requests", "fusion.requests",
    ),
    Guard(
        6, f"{_COUNTS}::test_what_an_engine_runs_for_others", "fleet/listen.py",
        "running=sums.running + others", "running=sums.running",
    ),
    Guard(
        8, "test_spreading.py::test_each_pick_of_a_burst", "fleet/pod.py",
        "            self._quiet.append((due, entry, dispatch))\n        self.refresh(now)\n",
        "            self._quiet.append((due, entry, dispatch))\n",
    ),
    Guard(
        10, f"{_GO}::test_a_pod_whose_deletion_nobody_told_of", "fleet/listen.py",
        "self._pod.reachable = False",
    ),
    Guard(
        10, f"{_GO}::test_an_address_that_leaves_the_list", "fleet/resolve.py",
        "self._misses = {address: misses for address, misses in self._misses.items() if misses < _MISSES}",
    ),
    Guard(
        11, f"{_GO}::test_a_pod_that_drains_gets_no_more", "fleet/sidecar.py",
        "            return Health.DRAINING\n", "            pass\n",
    ),
    Guard(12, f"{_GO}::test_one_hung_pod_holds_up", "proxy/exchange.py", "self._time_out()\n", "pass\n"),
    Guard(
        12, f"{_GO}::test_a_host_that_takes_no_connection", "proxy/upstream.py",
        "asyncio.timeout(self.limits.connect_seconds)", "asyncio.timeout(None)",
    ),
    Guard(
        14, "test_blame.py::test_bad_requests_of_one_client", "proxy/gateway.py",
        "answer.status in _FAULTS", "answer.status >= 400",
    ),
    Guard(
        15, "test_bytes.py::test_a_body_arrives_byte_for_byte", "proxy/exchange.py",
        "        body, feed, life, mark = request.body", "        import json\n\n"
        "        request.body = json.dumps(json.loads(request.body)).encode() if request.body else b''\n"
        "        body, feed, life, mark = request.body",
    ),
    Guard(16, "test_bytes.py::test_events_cut", "wire/sse.py", "joined = self._rest + chunk", "joined = chunk"),
    Guard(
        19, "test_cut_streams.py::test_a_stream_whose_engine_dies", "proxy/exchange.py",
        'client.write(b"%x\\r\\n%b\\r\\n0\\r\\n\\r\\n" % (len(event), event))',
        'client.write(b"e\\r\\ndata: [DONE]\\n\\n\\r\\n0\\r\\n\\r\\n")',
    ),
    Guard(
        19, "test_cut_streams.py::test_a_stream_whose_engine_dies", "proxy/exchange.py",
        "        if self._head_sent:\n            self._cut(error)\n        elif", "        if",
    ),
    Guard(
        20, "test_bytes.py::test_a_body_of_images", "wire/messages.py",
        "if int(length) > self._body_limit:", "if False:",
    ),
    Guard(
        21, "test_memory.py::test_dispatches_without_reports", "fleet/fusion.py",
        "if len(line) >= _LONGEST_LINE:", "if False:",
    ),
    Guard(
        22, f"{_COUNTS}::test_a_pod_that_reports_at_its_own_pace", "fleet/listen.py",
        "asyncio.timeout(SILENT_SECONDS)", "asyncio.timeout(0.1)",
    ),
    Guard(
        23, "test_spreading.py::test_a_system_prompt_that_all_share", "fleet/pod.py",
        "            self._quiet.append((due, entry, dispatch))\n        self.refresh(now)\n",
        "            self._quiet.append((due, entry, dispatch))\n",
    ),
)  # fmt: skip


def source(guard: Guard, root: Path = ROOT) -> Path:
    """The file of a guard."""
    return root / "router" / "tidepool_router" / guard.file


def red_without(guard: Guard) -> bool:
    """Whether the test fails once the guard is gone."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "router", copy / "router", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        path = source(guard, copy)
        path.write_text(guard.apply(path.read_text()))
        module, _, name = guard.test.partition("::")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout=30", "-p", "no:cacheprovider"]
        # Not two names that begin alike: a test is named by its beginning, for parameters follow.
        command += [str(HERE / module), "-k", name]
        environment = os.environ | {"PYTHONPATH": str(copy / "router"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=120, check=False)
    if done.returncode not in (0, 1):
        print(done.stdout.decode()[-2000:])
    return done.returncode == 1


def main(wanted: list[str]) -> int:
    """0 when every guard is one."""
    green = []
    for guard in GUARDS:
        if wanted and str(guard.report) not in wanted:
            continue
        red = red_without(guard)
        print(
            f"report {guard.report:>2}  {'red' if red else 'STILL GREEN'}  {guard.file}  {guard.test}", flush=True
        )
        if not red:
            green.append(guard)
    return 1 if green else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
