"""The review of what a workflow's texts read and its schemas ask: the place, the reason and the remedy."""

from typing import Any

import pytest

from tidepool_api.language.problems import Problem, Reason
from workflows.specs import RESEARCH, found_in, http, llm, research_with, say, spec_of

_CASES: list[tuple[str, dict[str, Any], str, Reason, str]] = [
    (
        "a parameter that never is a list",
        spec_of({"name": "a", "llm": llm(), "withParam": "queries"}),
        "spec.steps[0].withParam",
        Reason.INVALID_TEMPLATE,
        "steps.plan.json.queries",
    ),
    (
        "a template that does not compile",
        research_with("write", llm=say("{{ steps.analyse.text ")),
        "spec.steps[5].llm.messages[0].content",
        Reason.INVALID_TEMPLATE,
        "line 1",
    ),
    (
        "a step read before it can have ended",
        research_with("search", http=http("http://search.tools/{{ steps.write.text }}")),
        "spec.steps[1].http.url",
        Reason.INVALID_TEMPLATE,
        "add 'write' to its depends",
    ),
    (
        "a step's own result, which is not there yet",
        research_with("plan", llm=say("{{ steps.plan.text }}")),
        "spec.steps[0].llm.messages[0].content",
        Reason.INVALID_TEMPLATE,
        "does not come after 'plan'",
    ),
    (
        "an unknown step in a template",
        research_with("write", llm=say("{{ steps.analyze.text }}")),
        "spec.steps[5].llm.messages[0].content",
        Reason.UNKNOWN_STEP,
        "did you mean 'analyse'?",
    ),
    (
        "a choice read from outside",
        research_with("write", llm=say("{{ steps.lookup.text }}")),
        "spec.steps[5].llm.messages[0].content",
        Reason.INVALID_TEMPLATE,
        "read steps.analyse.turns instead",
    ),
    (
        "an item where there are none",
        research_with("write", when="{{ item == 1 }}"),
        "spec.steps[5].when",
        Reason.INVALID_TEMPLATE,
        "item exists only in a step with withItems or withParam",
    ),
    (
        "an item in what makes the items",
        research_with("search", withParam="{{ item }}"),
        "spec.steps[1].withParam",
        Reason.INVALID_TEMPLATE,
        "not in these two themselves",
    ),
    (
        "a pick where nothing picks",
        research_with("write", when="{{ pick.term }}"),
        "spec.steps[5].when",
        Reason.INVALID_TEMPLATE,
        "some choose.among names",
    ),
    (
        "a root nobody knows",
        research_with("write", when="{{ inputs.question }}"),
        "spec.steps[5].when",
        Reason.INVALID_TEMPLATE,
        "'inputs' is undefined; did you mean 'input'?",
    ),
    (
        "a step without its prefix",
        research_with("write", when="{{ analyse.text }}"),
        "spec.steps[5].when",
        Reason.INVALID_TEMPLATE,
        "write steps.analyse",
    ),
    (
        "an input that was not declared",
        research_with("write", when="{{ input.qestion }}"),
        "spec.steps[5].when",
        Reason.INVALID_TEMPLATE,
        "no property 'qestion'; did you mean 'question'?",
    ),
    (
        "all steps at once, before they have ended",
        research_with("write", when="{{ steps }}"),
        "spec.steps[5].when",
        Reason.INVALID_TEMPLATE,
        "name one step",
    ),
    (
        "output of the last step",
        {**RESEARCH, "output": "{{ steps.notify.text }}"},
        "spec.output",
        Reason.INVALID_TEMPLATE,
        "runs last",
    ),
    (
        "a template deep in a tool's arguments, under a name that is plain elsewhere",
        research_with(
            "lookup", mcp={"server": "http://x", "tool": "t", "arguments": {"a": [{"name": "{{ item }}"}]}}
        ),
        "spec.steps[3].mcp.arguments.a[0].name",
        Reason.INVALID_TEMPLATE,
        "item exists only",
    ),
    (
        "an input schema with a type of another language",
        {**RESEARCH, "input": {"type": "object", "properties": {"question": {"type": "str"}}}},
        "spec.input.properties.question.type",
        Reason.INVALID_SCHEMA,
        "'str' is no JSON type",
    ),
    (
        "a required property that is misspelt",
        {**RESEARCH, "input": {"type": "object", "required": ["qestion"], "properties": {"question": {}}}},
        "spec.input.required",
        Reason.INVALID_SCHEMA,
        "did you mean 'question'?",
    ),
    (
        "an answer's schema with a broken pattern",
        research_with("write", llm=llm(responseFormat={"type": "string", "pattern": "("})),
        "spec.steps[5].llm.responseFormat.pattern",
        Reason.INVALID_SCHEMA,
        "no regular expression",
    ),
    (
        "an answer's schema with a part elsewhere",
        research_with("write", llm=llm(responseFormat={"items": {"$ref": "http://10.96.0.1/api"}})),
        "spec.steps[5].llm.responseFormat.items.$ref",
        Reason.INVALID_SCHEMA,
        "leads out of the schema",
    ),
]


@pytest.mark.parametrize(("spec", "path", "reason", "words"), [pytest.param(*c[1:], id=c[0]) for c in _CASES])
def test_names_place_reason_and_remedy(spec: dict[str, Any], path: str, reason: Reason, words: str) -> None:
    found = found_in(spec)

    told = [problem for problem in found if problem.path == path and problem.reason is reason]
    assert any(words in problem.message for problem in told), f"got: {[str(problem) for problem in found]}"


def test_a_step_that_two_may_pick_reads_what_both_have_behind_them() -> None:
    def choose(name: str, depends: str) -> dict[str, Any]:
        return {"name": name, "depends": depends, "choose": {"pools": [{"name": "small"}], "among": ["lookup"]}}

    def picked(content: str) -> list[Problem]:
        first, second = ({"name": name, "llm": llm()} for name in ("first", "second"))
        lookup = {"name": "lookup", "llm": say(content)}
        return found_in(spec_of(first, second, choose("one", "first"), choose("other", "first && second"), lookup))

    assert picked("{{ steps.first.text }}") == []
    assert [problem.path for problem in picked("{{ steps.second.text }}")] == [
        "spec.steps[4].llm.messages[0].content"
    ]


def test_an_answers_schema_is_no_template() -> None:
    schema = {"type": "object", "description": "anything, {{ even this"}

    assert found_in(research_with("write", llm=llm(responseFormat=schema))) == []


def test_a_schema_is_bounded_in_depth() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        schema = {"type": "array", "items": schema}

    (problem,) = found_in({**RESEARCH, "input": schema})

    assert "nested deeper than 16" in problem.message


def test_templates_are_bounded_together() -> None:
    long = "{{ input.question }}" + "x" * 30_000
    spec = spec_of(*({"name": f"s{n}", "llm": say(long)} for n in range(9)))

    assert [problem.path for problem in found_in(spec)] == ["spec.steps[8].llm.messages[0].content"]
