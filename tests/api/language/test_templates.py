"""Templates are compiled cheaply whatever they say, and tell what they read."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_api.language.templates import MAX_CHARACTERS, BrokenTemplateError, inspect


@pytest.mark.parametrize(
    ("text", "steps", "inputs", "whole"),
    [
        ("{{ steps.plan.json.queries }}", {"plan"}, set(), False),
        ("{{ steps['web-search'].text }}", {"web-search"}, set(), False),
        ("{{ input.question }} {{ input['depth'] }}", set(), {"question", "depth"}, False),
        ("{% if steps.a.ok %}{{ steps.b.text }}{% endif %}", {"a", "b"}, set(), False),
        ("{% for x in range(3) %}{{ x }}{{ loop.index }}{% endfor %}", set(), set(), False),
        ("{{ steps }}", set(), set(), True),
        ("{{ steps[input.which] }}", set(), {"which"}, True),
        ("{% for name in steps %}{{ steps.plan }}{% endfor %}", {"plan"}, set(), True),
        ("{% set steps = {} %}{{ steps.anything }}", set(), set(), False),
        ("plain text", set(), set(), False),
    ],
)
def test_references(text: str, steps: set[str], inputs: set[str], whole: bool) -> None:
    found = inspect(text)

    assert (found.steps, found.inputs, found.whole_steps) == (steps, inputs, whole)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("line one\n{{ input.question }", "line 2:"),
        ("{{ input.question | uper }}", "No filter named 'uper'"),
        ("{% if true %}", "line 1:"),
        ("{# a comment without end", "line 1:"),
        ("{% include 'other' %}", "there are no other templates"),
        ("{% extends input.base %}", "there are no other templates"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deeply"),
        ("{% for x in input.a %}" * 40 + "{% endfor %}" * 40, "nested too deeply"),
        ("x" * (MAX_CHARACTERS + 1), "longer than"),
    ],
)
def test_what_does_not_compile(text: str, words: str) -> None:
    with pytest.raises(BrokenTemplateError, match=words):
        inspect(text)


@pytest.mark.parametrize(
    "text",
    [
        '{{ "x"|center(200000000) }}',
        "{{ 'x' * 200000000 }}",
        "{{ [0] * 20000000 }}",
        "{% set a = 'x' * 200000000 %}",
    ],
)
def test_constants_are_not_evaluated_while_compiling(text: str) -> None:
    tracemalloc.start()
    try:
        inspect(text)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 4_000_000


@given(st.text(alphabet="{}%#|()[].'\"~+-*/ abifsetpn1\n", max_size=80))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    try:
        told = sorted(inspect(text).roots)
    except BrokenTemplateError as error:
        told = [str(error)]

    assert all(told)
