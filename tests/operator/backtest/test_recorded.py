"""The command on a real Prometheus' records, and its picture."""

import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fakes.prometheus import Pages, Prometheus
from tidepool_api import rules
from tidepool_operator.__main__ import main

HOURS = 3
STEP = 15.0
NOW = math.floor(time.time() / 60) * 60.0
POOL = """\
metadata: {name: llama, namespace: team}
spec: {scaling: {minReplicas: 1, maxReplicas: 8, targets: {timePerOutputToken: 50ms}}}
status: {capacity: {startupSeconds: {p90: 240}}}
"""


def samples() -> str:
    """Requests a second that rise and fall, with ten minutes' gap; each of 200 and 100 tokens, a fifth cached."""
    shares = {
        rules.POOL_REQUESTS: 1.0,
        rules.POOL_PROMPT_TOKENS: 200.0,
        rules.POOL_CACHED_TOKENS: 40.0,
        rules.POOL_OUTPUT_TOKENS: 100.0,
    }
    times = np.arange(NOW - HOURS * 3600, NOW, STEP)
    lines = [
        f'{record}{{namespace="team",pool="llama"}} {share * (20 + 15 * math.sin(at / 3000)):.3f} {at:.0f}'
        for record, share in shares.items()
        for at in times
        if not NOW - 9000 < at < NOW - 8400
    ]
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    pages = Pages()
    made = Prometheus(tmp_path_factory.mktemp("prometheus"), pages.port, {}, interval="1h")
    made.fill(samples())
    made.start()
    try:
        made.until("vector(1)", 1)
        yield made
    finally:
        made.stop()
        pages.close()


@pytest.mark.prometheus
def test_a_pools_own_past_is_played_and_drawn(
    server: Prometheus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pool.yaml").write_text(POOL)
    given = ["backtest", "--pool", str(tmp_path / "pool.yaml"), "--prometheus", server.url, "--since", "14d"]

    code = main([*given, "--plot", str(tmp_path / "past.png")])

    printed = capsys.readouterr().out
    assert code == 0
    rows = {line[:24].strip(): line.split() for line in printed.splitlines()}
    assert {"tidepool", "one that knows"} <= rows.keys()
    assert float(rows["one that knows"][-4]) > 99
    # Hours are of what was recorded, and not of fourteen days.
    assert 0.7 * HOURS < float(rows["tidepool"][-2]) < 4 * HOURS
    assert (tmp_path / "past.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("pool", "options", "said"),
    [
        (POOL.replace("llama", "other"), [], "knows no demand of pool team/other"),
        (POOL, ["--since", "forever"], "--since 'forever' is no duration"),
        (POOL, ["--step", "0s"], "--step 0s is not between"),
    ],
)
def test_what_cannot_be_asked_is_named(
    server: Prometheus,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    pool: str,
    options: list[str],
    said: str,
) -> None:
    (tmp_path / "pool.yaml").write_text(pool)

    code = main(["backtest", "--pool", str(tmp_path / "pool.yaml"), "--prometheus", server.url, *options])

    assert code == 2
    assert said in capsys.readouterr().err


def test_a_prometheus_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pool.yaml").write_text(POOL)

    code = main(["backtest", "--pool", str(tmp_path / "pool.yaml"), "--prometheus", "http://127.0.0.1:9"])

    assert code == 2
    assert "Prometheus at 127.0.0.1:9 cannot be reached" in capsys.readouterr().err
