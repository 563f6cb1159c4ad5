"""`python -m fuzz`: coverage-guided fuzzing of the readers with atheris, a while for each target.

What is found is kept in build/fuzz, and a next run goes on from there. Without atheris, which has wheels for some
platforms only, it says so and ends well: the same targets are run by hypothesis among the other tests.
"""

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from .targets import SEEDS, TARGETS

_FOLDER = Path("build/fuzz")
_LONGEST_BYTES = 2048


def _fuzz(name: str, seconds: int) -> None:
    """In a process of its own: libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["tidepool_router"]):
        import fuzz.targets as instrumented
    corpus = _FOLDER / name
    options = [f"-max_total_time={seconds}", f"-max_len={_LONGEST_BYTES}", "-print_final_stats=1", "-verbosity=0"]
    atheris.Setup([sys.argv[0], str(corpus), *options, f"-artifact_prefix={corpus}-"], instrumented.TARGETS[name])
    atheris.Fuzz()


def main() -> int:
    """Exit status: 0 where nothing was found."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default %(default)s)")
    parser.add_argument("--one", choices=sorted(TARGETS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if find_spec("atheris") is None:
        print("fuzz: atheris is not installed here; hypothesis alone looks at the readers")
        return 0
    if given.one:
        _fuzz(given.one, given.seconds)
        return 0
    failed = [name for name in TARGETS if not _held(name, given.seconds)]
    for name in failed:
        print(f"fuzz: {name} breaks a promise; the input is {_FOLDER}/{name}-crash-*")
    return 1 if failed else 0


def _held(name: str, seconds: int) -> bool:
    corpus = _FOLDER / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{number}").write_bytes(bytes(8) + seed)
    command = [sys.executable, "-m", "fuzz", "--one", name, "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120, check=False)
    said = (done.stdout + done.stderr).splitlines()
    figures = [line.split()[-1] for line in said if line.startswith("stat::number_of_executed_units")]
    print(f"fuzz: {name}: {figures[0] if figures else 'no'} inputs in {seconds} s", flush=True)
    if done.returncode:
        print("\n".join(said[-40:]))
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
