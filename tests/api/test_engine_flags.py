"""The flags that spec.engine.args may not hold, against the real engine's own parser."""

import json
import subprocess

import pytest

from cluster import engine_install
from cluster.engine import ENVIRONMENT
from tidepool_api.engine_args import RESERVED, SPECULATIVE_CONFIG, refusal

pytestmark = pytest.mark.engine

DUMP = """
import json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
actions = make_arg_parser(FlexibleArgumentParser())._actions
print("FLAGS " + json.dumps([flag for action in actions for flag in action.option_strings]))
"""
WHOLE = [flag for reserved in (*RESERVED, SPECULATIVE_CONFIG) for flag in reserved.flags]


@pytest.fixture(scope="module")
def known() -> list[str]:
    """Every flag of vLLM's server, with its dashes."""
    engine_install.install()
    done = subprocess.run(
        [engine_install.venv_python(), "-c", DUMP],
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp"} | dict(ENVIRONMENT),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("FLAGS "))
    flags: list[str] = json.loads(line.removeprefix("FLAGS "))
    return flags


def variants(flag: str) -> list[str]:
    plain = flag.replace("~", "").removeprefix("(no-)?")
    return [plain, f"no-{plain}"] if flag.startswith("(no-)?") else [plain]


@pytest.mark.parametrize("flag", [flag for flag in WHOLE if not flag.endswith(".+")])
def test_refused_flag_is_one_of_the_engines(flag: str, known: list[str]) -> None:
    assert [f"--{plain}" for plain in variants(flag) if f"--{plain}" not in known] == []


@pytest.mark.parametrize("flag", [flag for flag in WHOLE if "~" in flag])
def test_every_short_form_that_the_engine_takes_is_refused(flag: str, known: list[str]) -> None:
    longs = [name for name in known if name.startswith("--")]
    for plain in variants(flag):
        whole = f"--{plain}"
        taken = [
            whole[:length]
            for length in range(3, len(whole) + 1)
            if [name for name in longs if name.startswith(whole[:length])] == [whole] or whole[:length] == whole
        ]
        assert [short for short in taken if not refusal(short) and not SPECULATIVE_CONFIG.sets(short)] == []


def test_no_other_flag_is_refused(known: list[str]) -> None:
    meant = {f"--{plain}" for flag in WHOLE for plain in variants(flag)}
    secure = {name for name in known if name.startswith("--ssl-")}

    refused = {name for name in known if name.startswith("--") and refusal(name) is not None}

    assert refused - meant - secure == set()
