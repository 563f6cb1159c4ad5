"""An S3 in a pod: `python -m fakes.storehouse PORT BUCKET/PREFIX=FOLDER ...`, for the account AWS_ACCESS_KEY_ID.

Every object that is read is told, so that a log says how often a model was loaded.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fakes.stores import S3, Store


class Telling(S3):
    """As the double, and it says what it is asked for."""

    def log_message(self, *words: object) -> None:
        print(f"{self.command} {self.path}", flush=True)


def files(places: Sequence[str]) -> dict[str, bytes]:
    """Contents by bucket and key, from words of the form BUCKET/PREFIX=FOLDER."""
    found = {}
    for prefix, _, folder in (place.partition("=") for place in places):
        root = Path(folder).resolve(strict=True)
        names = sorted(path for path in root.rglob("*") if path.is_file())
        found |= {f"{prefix}/{path.relative_to(root)}": path.read_bytes() for path in names}
    return found


def main(port: str, *places: str) -> None:
    """Serve until ended."""
    with Store(Telling, files(places), ("0.0.0.0", int(port))) as store:
        store.s3_keys = (os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
        print(f"{len(store.files)} objects on port {port}", flush=True)
        store.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
