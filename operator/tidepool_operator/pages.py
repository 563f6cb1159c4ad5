"""Writes the table of reasons into docs/operations.md: `make pages`. A test holds that it was done."""

import sys
from pathlib import Path
from typing import Final

from tidepool_operator.pool.engine_signs import SIGNS
from tidepool_operator.pool.reasons import REMEDIES

BEGIN: Final = "<!-- reasons: generated from tidepool_operator/pool by make pages -->\n"
END: Final = "<!-- end of reasons -->\n"


def reasons() -> str:
    """Every reason that asks for a person, and where those of an engine's log come from."""
    rows = "".join(f"| `{reason}` | {remedy} |\n" for reason, remedy in REMEDIES.items())
    places: dict[str, list[str]] = {}
    for sign in SIGNS:
        known = places.setdefault(sign.reason, [])
        known += [sign.place] if sign.place not in known else []
    origins = "".join(f"| `{reason}` | {'; '.join(found)} |\n" for reason, found in places.items())
    return (
        f"\n| reason | what to do |\n|---|---|\n{rows}\n"
        "These are read from the end of the log of the engine, or of what loads its model. Where vLLM 0.32, a "
        "library below it or our loader says so:\n\n"
        f"| reason | said by |\n|---|---|\n{origins}\n"
    )


def written(page: str) -> str:
    """The page with the table of now. Raises ValueError when its marks are not there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}{reasons()}{END}{after}"


def main(path: Path) -> None:
    """Bring the page up to date."""
    path.write_text(written(path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
