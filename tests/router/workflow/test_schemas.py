"""Schemas of inputs and answers: what is wrong is told, and whoever writes them harms nobody else."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tidepool_router.workflow.checking import Checker
from tidepool_router.workflow.schemas import is_light, wrong

NUMBERS: dict[str, Any] = {"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}}


@pytest.fixture
async def checker() -> AsyncIterator[Checker]:
    found = Checker()
    yield found
    await found.close()


@pytest.mark.filterwarnings("ignore:Automatically retrieving remote references")
@pytest.mark.parametrize("word", ["$ref", "$dynamicRef"])
def test_a_schema_that_refers_to_elsewhere_fetches_nothing(tmp_path: Path, word: str) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"type": "string", "const": "hidden"}')

    told = wrong({word: secret.as_uri()}, 5, "input")

    assert told is not None
    assert "there is no such part" in told
    assert "hidden" not in told


def test_what_the_library_does_not_like_is_told_and_not_raised() -> None:
    assert wrong({"dependentRequired": 5}, {}, "input") == "cannot be checked against its schema: AttributeError"


@pytest.mark.parametrize(
    ("schema", "value", "light"),
    [
        ({"type": "object", "properties": {"q": {"type": "string"}}}, {"q": "x" * 100_000}, True),
        ({"type": "object", "properties": {"q": {"pattern": "a+$"}}}, {"q": "x"}, False),  # may backtrack
        (NUMBERS, [1], False),  # a reference may double at each level
        ({"items": {"type": "integer"}}, list(range(300)), True),
        ({"items": {"type": "integer"}}, list(range(2000)), False),  # too much of it
        ({"items": {"anyOf": [{"type": "null"}] * 100}}, list(range(300)), False),  # schema times value
        ({"uniqueItems": True}, [1], False),  # compares each with each
    ],
)
def test_what_may_take_long_is_known_before(schema: dict[str, Any], value: Any, light: bool) -> None:
    assert is_light(schema, value) is light


@pytest.mark.traffic
async def test_a_schema_that_burns_is_stopped_and_the_next_one_is_checked(checker: Checker) -> None:
    doubled = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    deep = {"$defs": {**doubled, "d60": {}}, "$ref": "#/$defs/d0"}

    told = await checker.wrong({"pattern": "^(a+)+$"}, "a" * 60 + "!", "input")
    also = await checker.wrong(deep, {}, "answer")

    assert told == "input: checking it against its schema took longer than 0.5 s and was stopped; make it simpler"
    assert str(also).startswith("answer: checking it")
    assert await checker.wrong(NUMBERS, [1, "x"], "input") == "input[1]: 'x' is not of type 'integer'"
    assert await checker.wrong(NUMBERS, [1, 2], "input") is None
