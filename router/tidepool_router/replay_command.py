"""`tidepool-router replay FILE --policy P`: recorded decisions made again, offline."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tidepool_api.routing import Policy
from tidepool_router.errors import SettingsError
from tidepool_router.picking.decision import Decision
from tidepool_router.picking.replay import replay


def run(arguments: Sequence[str]) -> int:
    """Exit status: 0 done, 2 for a file that cannot be read."""
    parser = argparse.ArgumentParser(prog="tidepool-router replay", description=__doc__)
    parser.add_argument("file", type=Path, help="written by a gateway with --record-decisions")
    parser.add_argument(
        "--policy", type=Policy, choices=list(Policy), default=Policy.PREDICTED, help="(default %(default)s)"
    )
    given = parser.parse_args(arguments)
    try:
        result = replay(read_decisions(given.file), given.policy)
    except SettingsError as error:
        print(f"tidepool-router: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"policy": given.policy.value, **result.as_dict()}, indent=2))
    return 0


def read_decisions(path: Path) -> Iterator[Decision]:
    """One by one. Raises SettingsError that names the line which is no decision."""
    decode = msgspec.json.Decoder(Decision).decode
    number = 0
    try:
        with path.open("rb") as file:
            for line in file:
                number += 1
                if line.endswith(b"\n"):  # the last one may be half written
                    yield decode(line)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise SettingsError(
            f"{path}, line {number}: {error}; give the file that --record-decisions wrote"
        ) from error
