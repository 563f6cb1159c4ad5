"""The flags that spec.engine.args may not hold, against the table of the engine's own.

That table is held against the real engine's parser in tests/operator/pool/test_engine_flags.py.
"""

import re

import pytest

from tidepool_api.engine_args import RESERVED, SPECULATIVE_CONFIG, refusal
from tidepool_operator.pool.vllm_flags import FLAGS

WHOLE = [flag for reserved in (*RESERVED, SPECULATIVE_CONFIG) for flag in reserved.flags]
KNOWN = [flag for line in re.sub(r"\n +", "", FLAGS).split("\n") if line for flag in line.split()[0].split(",")]


def variants(flag: str) -> list[str]:
    plain = flag.replace("~", "").removeprefix("(no-)?")
    return [plain, f"no-{plain}"] if flag.startswith("(no-)?") else [plain]


@pytest.mark.parametrize("flag", [flag for flag in WHOLE if not flag.endswith(".+")])
def test_refused_flag_is_one_of_the_engines(flag: str) -> None:
    assert [f"--{plain}" for plain in variants(flag) if f"--{plain}" not in KNOWN] == []


@pytest.mark.parametrize("flag", [flag for flag in WHOLE if "~" in flag])
def test_every_short_form_that_the_engine_takes_is_refused(flag: str) -> None:
    longs = [name for name in KNOWN if name.startswith("--")]
    for plain in variants(flag):
        whole = f"--{plain}"
        taken = [
            whole[:length]
            for length in range(3, len(whole) + 1)
            if [name for name in longs if name.startswith(whole[:length])] == [whole] or whole[:length] == whole
        ]
        assert [short for short in taken if not refusal(short) and not SPECULATIVE_CONFIG.sets(short)] == []


def test_no_other_flag_is_refused() -> None:
    meant = {f"--{plain}" for flag in WHOLE for plain in variants(flag)}
    secure = {name for name in KNOWN if name.startswith("--ssl-")}

    refused = {name for name in KNOWN if name.startswith("--") and refusal(name) is not None}

    assert refused - meant - secure == set()
