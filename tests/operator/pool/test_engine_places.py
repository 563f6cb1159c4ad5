"""Where vLLM 0.32 says what its failures are known by, held against the sources of the installed engine."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from cluster import engine_install
from tidepool_operator.pool import engine_log
from tidepool_operator.pool.engine_signs import SIGNS, Sign

pytestmark = pytest.mark.engine

# What only a GPU can show, or no log shows yet: the reason, the place that says it, and its words.
GPU = [
    line.split(" | ", 2)
    for line in (Path(__file__).parent / "logs" / "gpu.txt").read_text().splitlines()
    if not line.startswith("#")
]


def source_of(file: str) -> str:
    """A file of the packages that the engine runs on."""
    engine_install.install()
    (packages,) = (engine_install.engine_dir() / "venv" / "lib").glob("python3*/site-packages")
    return (packages / file).read_text()


def literal(pattern: str) -> str:
    """The beginning of a pattern that is plain text."""
    return re.split(r"[\\(\[.*+|']|.\?", pattern, maxsplit=1)[0].strip()


@pytest.mark.parametrize(
    "sign", [sign for sign in SIGNS if sign.place.startswith("vllm/")], ids=lambda sign: sign.place
)
def test_the_row_stands_where_it_says_in_the_sources_of_vllm(sign: Sign) -> None:
    file, _, function = sign.place.partition(",")
    source = source_of(file.split()[0])
    joined = re.sub(r'"\s*\n\s*f?"', "", source)

    assert not function or re.split(r" and |\.", function.strip())[-1] in source
    if not sign.text.startswith(("(", r"\S", r"\[", ".*")):
        assert literal(sign.text) in joined


def _template(source: str, number: int) -> Sequence[str | None]:
    """The text that the statement at a line of a file says, in pieces; None: a value."""
    statements = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Raise | ast.Assign) and node.lineno <= number <= (node.end_lineno or 0)
    ]
    statement = min(statements, key=lambda node: (node.end_lineno or 0) - node.lineno)
    texts = (node for node in ast.walk(statement) if isinstance(node, ast.JoinedStr | ast.Constant))
    text = next(node for node in texts if isinstance(node, ast.JoinedStr) or isinstance(node.value, str))
    pieces = text.values if isinstance(text, ast.JoinedStr) else [text]
    return [str(piece.value) if isinstance(piece, ast.Constant) else None for piece in pieces]


def _begins(template: Sequence[str | None], words: str) -> bool:
    """Whether the words are the beginning, or all, of what a template says."""
    at, free = 0, False
    for piece in template:
        if piece is None:
            free = True
            continue
        found = words.find(piece, at)
        if found < 0 or (found > at and not free):
            ends = range(at, len(words)) if free else [at]
            return any(piece.startswith(words[end:]) for end in ends)
        at, free = found + len(piece), False
    return free or at == len(words)


@pytest.mark.parametrize(
    ("place", "line"), [(place, line) for _, place, line in GPU if place.startswith("vllm/") and ":" in place]
)
def test_what_no_log_shows_is_said_at_the_line_of_vllm_that_its_fixture_names(place: str, line: str) -> None:
    file, _, number = place.partition(":")
    found = engine_log._error(engine_log._spoken(line))

    assert found is not None
    assert _begins(_template(source_of(file), int(number)), found[1])
