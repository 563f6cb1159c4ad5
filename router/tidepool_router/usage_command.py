"""`tidepool-router usage`: who used how much, from the store that gateways write."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tidepool_router.errors import RouterError, SettingsError
from tidepool_router.usage import report

STORE_VARIABLE: Final = "TIDEPOOL_USAGE_STORE"
STORE_FILE_VARIABLE: Final = "TIDEPOOL_USAGE_STORE_FILE"


def run(arguments: Sequence[str]) -> int:
    """Exit status: 0 told, 2 for input that cannot be used or a store that cannot be read."""
    given = _parser().parse_args(arguments)
    now = datetime.now(UTC)
    try:
        from tidepool_router.usage import book

        since = report.moment(given.since, now).timestamp()
        until = report.moment(given.until, now).timestamp() if given.until else now.timestamp() + 3600.0
        by = report.parts(given.by)
        sums = report.summed(book.read(_place(given), since, until), by)
    except RouterError as error:
        print(f"tidepool-router usage: {error}", file=sys.stderr)
        return 2
    if given.output == "csv":
        sys.stdout.write(report.as_csv(sums, by))
    elif given.output == "json":
        told = [dict(zip(by, place, strict=True)) | used._asdict() for place, used in sums]
        sys.stdout.write(json.dumps(told, indent=1) + "\n")
    else:
        sys.stdout.write(report.as_table(sums, by))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidepool-router usage", description=__doc__)
    parser.add_argument("--since", default="30d", help="30d, 12h, 2026-11-01 or 2026-11-01T15:00, in UTC (30d)")
    parser.add_argument("--until", help="the same; hours that begin before it count (default: now)")
    parser.add_argument("--by", default="key,tenant,model", help=f"of {', '.join(report.PARTS)}")
    parser.add_argument("-o", "--output", choices=("text", "csv", "json"), default="text")
    parser.add_argument("--store", help=f"like sqlite:////data/workflows.db; or the variable {STORE_VARIABLE}")
    parser.add_argument(
        "--store-file", type=Path, help=f"a file with the store's URL; or the variable {STORE_FILE_VARIABLE}"
    )
    return parser


def _place(given: argparse.Namespace) -> str | Path:
    environment = os.environ
    file = given.store_file or environment.get(STORE_FILE_VARIABLE)
    store = given.store or (None if file else environment.get(STORE_VARIABLE))
    if store is None and file is None:
        raise SettingsError(
            "no store is named; run it where the gateway runs (kubectl exec), or give --store or --store-file"
        )
    return Path(file) if file else str(store)
