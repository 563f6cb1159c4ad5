"""Files and records that the commands of the pages take for granted, made by what makes them for a reader.

What loads slowly is imported where it is used: every worker of `make unit` collects the tests of this folder.
"""

import csv
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from chart.programs import ROOT
from documents.blocks import Block, blocks
from documents.languages import whole_digests

_STEP_SECONDS: Final = 15
_STEPS: Final = 120
_PROMPT_TOKENS, _OUTPUT_TOKENS = 200, 100
# In the month of which docs/usage.md makes a bill.
NOVEMBER: Final = datetime(2026, 11, 15, 12, tzinfo=UTC)


def lay(folder: Path) -> None:
    """The files that pages name, in a folder which is otherwise the clone."""
    for name in ("examples", "charts"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "prompt.txt").write_text("Why do tides rise twice a day?")
    (folder / "fleet.yaml").write_text(fleet())
    (folder / "keys.yaml").write_text(whole_digests(_shown("docs/keys.md", "keys:").text))
    _write_history(folder / "history.csv")
    _write_picks(folder / "picks.jsonl")
    _write_certificate(folder)


def fleet() -> str:
    """The file of pools that README.md shows."""
    return _shown("README.md", "# fleet.yaml").text


def _shown(page: str, begin: str) -> Block:
    (found,) = [block for block in blocks() if block.page == page and block.first.startswith(begin)]
    return found


def _rates() -> list[tuple[float, float]]:
    """Times of half an hour that has passed, in Unix seconds, and requests a second that rise and fall."""
    begin = time.time() // 60 * 60 - _STEPS * _STEP_SECONDS
    times = [begin + number * _STEP_SECONDS for number in range(_STEPS)]
    return [(at, 20 + 15 * math.sin(at / 600)) for at in times]


def _write_history(path: Path) -> None:
    from tidepool_operator.backtest.recorded import COLUMNS

    with path.open("w") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows((at, rate, rate * _PROMPT_TOKENS, rate * _OUTPUT_TOKENS) for at, rate in _rates())


def samples(namespace: str, pool: str) -> str:
    """The same history as the chart's rules record it, in OpenMetrics."""
    from tidepool_api import rules

    shares = {
        rules.POOL_REQUESTS: 1,
        rules.POOL_PROMPT_TOKENS: _PROMPT_TOKENS,
        rules.POOL_CACHED_TOKENS: 0,
        rules.POOL_OUTPUT_TOKENS: _OUTPUT_TOKENS,
    }
    labels = f'{{namespace="{namespace}",pool="{pool}"}}'
    lines = [
        f"{record}{labels} {share * rate:.3f} {at:.0f}"
        for record, share in shares.items()
        for at, rate in _rates()
    ]
    return "\n".join([*lines, "# EOF", ""])


def _write_picks(path: Path) -> None:
    from pools.candidates import fake_pod
    from tidepool_router.facts import Api, RequestFacts
    from tidepool_router.fleet.recording import DecisionLog
    from tidepool_router.ledger import Estimate
    from tidepool_router.picking import Predicted
    from tidepool_router.picking.decision import decision_of

    pods = (fake_pod(0, "a", load_tokens=9), fake_pod(1, "b", load_tokens=99))
    facts = RequestFacts(Api.CHAT, "/v1/chat/completions", "m", prompt_bytes=4000, prefix=(1, 2), session="s")
    request = Estimate(1000, 100)
    log = DecisionLog(path)
    pick = Predicted().pick(pods, request, facts, {1: 3000})
    log.record(decision_of(5.0, "ns/p", pods, request, facts, {1: 3000}, pick))
    log.close()


def _write_certificate(folder: Path) -> None:
    import trustme

    issued = trustme.CA().issue_cert("sidecars.internal")
    issued.private_key_pem.write_to_path(folder / "tls.key")
    for number, chain in enumerate(issued.cert_chain_pems):
        chain.write_to_path(folder / "tls.crt", append=number > 0)


async def count_usage(store: str) -> None:
    """What a gateway with this store counts: a request of last November, and one of now."""
    from tidepool_router.usage.book import Book
    from tidepool_router.usage.tally import Tally, Who

    for at in (NOVEMBER.timestamp(), time.time()):
        tally = Tally()
        book = Book(tally, store, lambda at=at: at)
        book.start()
        who = Who("x3kq7n2d", "search", "llama-8b")
        tally.ended(who, whole=True, prompt_tokens=7, cached_tokens=2, output_tokens=3)
        await book.close()
