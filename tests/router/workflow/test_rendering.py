"""Templates come out as their writers mean them, and do no harm whatever they say."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from tidepool_router.workflow.core.texts import data_of, exceeds
from tidepool_router.workflow.rendering import MAX_PARTS, MAX_SENT, Renderer, RenderError

VALUES: dict[str, Any] = {
    "input": {"q": "a b&c", "items": [1, 2], "n": 3, "flag": True, "none": None},
    "steps": {"plan": {"text": "found", "json": {"queries": ["x", "y"]}, "status": "Succeeded"}},
    "item": {"text": "one"},
}


@pytest.fixture
async def renderer() -> AsyncIterator[Renderer]:
    found = Renderer(max_bytes=10_000)
    yield found
    await found.close()


READING = [
    ("plain", "plain"),
    ("{{ steps.plan.text }} for {{ input.q }}", "found for a b&c"),
    ("{{ steps.plan.json.queries }}", '["x", "y"]'),  # a list is JSON, so that withParam can take it
    ("{{ steps.plan.json['queries'][1] }}", "y"),
    ("{{ input.items }}", "[1, 2]"),  # what the client sent, not a method of dict
    ("{{ input.q | urlencode }}", "a%20b%26c"),
    ("{{ input.flag }}{{ input.none }}{{ input.n }}", "true3"),
    ("{{ steps.plan.json | tojson }}", '{"queries": ["x", "y"]}'),
]
WORKING = [
    ("{% for q in steps.plan.json.queries %}<{{ q }}>{% endfor %}", "<x><y>"),
    ("{{ input.n > 2 }}", "true"),
    ("{{ input.missing | default('-') }}", "-"),
    ("{# nothing #}{{ item.text | upper }}", "ONE"),
]
REACHING = [
    ("{{ input.missing }}", "there is no input.missing"),
    ("{{ input.missing.deeper | upper }}", "missing"),
    ("{{ 'x' * 20000 }}", "longer than 10000 bytes"),
    ("{{ ''.__class__.__mro__ }}", "unsafe|no element|not allowed"),
    ("{{ input.items.append(1) }}", "not allowed|unsafe|no attribute"),
    ("{{ nobody }}", "there is no nobody"),
]


@pytest.mark.parametrize(("template", "text"), READING)
async def test_what_only_reads_needs_no_child(renderer: Renderer, template: str, text: str) -> None:
    assert await renderer.render(template, VALUES) == text
    assert not renderer._lanes.runs


async def test_the_child_renders_alike_and_more_and_refuses_what_reaches_out(renderer: Renderer) -> None:
    for template, text in READING:
        assert await renderer.render("{% if true %}" + template + "{% endif %}", VALUES) == text
    for template, text in WORKING:
        assert await renderer.render(template, VALUES) == text, template
    for template, why in REACHING:
        with pytest.raises(RenderError, match=why):
            await renderer.render(template, VALUES)


@pytest.mark.traffic
@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ 'x' * 2000000000 }}", "memory"),
        ("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}", "longer than"),
        ("{{ 9 ** (9 ** (9 ** 9)) }}", "longer than"),
    ],
)
async def test_a_template_that_burns_is_stopped_and_the_next_one_works(
    renderer: Renderer, template: str, why: str
) -> None:
    with pytest.raises(RenderError, match=why):
        await renderer.render(template, VALUES)

    assert await renderer.render("{{ input.n + 1 }}", VALUES) == "4"


HALF = {"input": {"half": "\ud800"}}  # JSON can say it, UTF-8 cannot


@pytest.mark.parametrize(
    ("value", "beyond"),
    [
        ("x" * 100, ""),
        ("x" * 101, "characters"),
        ({"x" * 60: "x" * 39}, ""),
        ({"x" * 60: "x" * 40}, "characters"),
        ([["x"] * 5] * 4, "parts"),
        ([1] * 11, "parts"),
        ([1] * 10, ""),
        (None, ""),
    ],
)
def test_a_value_is_weighed_before_anybody_writes_it(value: Any, beyond: str) -> None:
    assert exceeds(value, characters=100, parts=10) == beyond


@pytest.mark.parametrize("template", ["{{ steps.a.results }}", "{{ steps.a.results | tojson }}", "{{ item }}"])
async def test_what_is_too_long_is_not_written_to_find_out(
    renderer: Renderer, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of long answers took a quarter of a second to write, in which all other requests waited."""
    values = {"steps": {"a": {"results": [{"text": "x" * 6000}] * 2}}, "item": {"text": "x" * 10_001}}
    monkeypatch.setattr(json, "dumps", lambda *_, **__: pytest.fail("it is written"))

    for render in (renderer.render, renderer.value):
        with pytest.raises(RenderError, match="longer than 10000 bytes"):
            await render(template, values)
    assert renderer.beginning(template, values) == ("", False)


async def test_what_has_many_parts_is_written_elsewhere_and_what_is_too_much_for_that_is_refused(
    renderer: Renderer,
) -> None:
    many = {"input": {"many": [[]] * (MAX_PARTS + 1)}}
    with pytest.raises(RenderError, match="longer than 10000 bytes"):
        await Renderer.render(renderer, "{{ input.many }}", many)
    assert not renderer._lanes.runs

    roomy = Renderer(max_bytes=1 << 20)
    assert len(await roomy.render("{{ input.many }}", many)) == 4 * (MAX_PARTS + 1)
    assert roomy._lanes.runs
    for much in ("x" * (MAX_SENT[0] + 1), [1] * (MAX_SENT[1] + 1)):
        with pytest.raises(RenderError, match="reads more than a template may"):
            await roomy.render("{{ input.much[0] }}{{ 1 + 1 }}", {"input": {"much": much}})
    await roomy.close()


async def test_half_a_surrogate_pair_is_a_text_as_any(renderer: Renderer) -> None:
    assert await renderer.render("{{ input.half }}", HALF) == "\ud800"
    assert await renderer.render("{{ input.half | urlencode }}", HALF) == "%3F"
    assert await renderer.render("{% if true %}{{ input.half }}{% endif %}", HALF) == "\ud800"


BURNS = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"


@pytest.mark.soak
@pytest.mark.traffic
async def test_who_burns_again_and_again_keeps_nobody_else_waiting(renderer: Renderer) -> None:
    ended: list[str] = []

    async def render(name: str, template: str) -> None:
        with suppress(RenderError):
            await renderer.render(template, VALUES)
        ended.append(name)

    # As the items of a fan-out come, and somebody else's template behind them.
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(render("burns", BURNS))
        group.create_task(render("works", "{{ input.n + 1 }}"))

    assert ended.index("works") < 3


def test_an_answer_may_hold_a_tab_in_its_strings_as_engines_grammars_let_it() -> None:
    assert data_of('{"queries": ["spring\ttide"]}') == {"queries": ["spring\ttide"]}
    assert data_of('{"queries": ["spring') is None
