"""The review of a whole workflow, as a user meets it: the place, the reason and the remedy."""

import copy
from typing import Any

import pytest

from tidepool_api.workflow import AgentWorkflow
from tidepool_operator.workflow import Problem, Reason, review

POOLS = {"small", "llama-8b"}


def _llm(**more: Any) -> dict[str, Any]:
    return {"pools": [{"name": "small"}], "messages": [{"role": "user", "content": "Hello"}], **more}


def _say(content: str) -> dict[str, Any]:
    return {"pools": [{"name": "small"}], "messages": [{"role": "user", "content": content}]}


def _http(url: str = "http://search.tools/") -> dict[str, Any]:
    return {"method": "GET", "url": url}


RESEARCH: dict[str, Any] = {
    "input": {"type": "object", "required": ["question"], "properties": {"question": {"type": "string"}}},
    "deadline": "60s",
    "onExit": "notify",
    "steps": [
        {"name": "plan", "llm": _say("List search queries for: {{ input.question }}")},
        {
            "name": "search",
            "depends": "plan",
            "withParam": "{{ steps.plan.json.queries }}",
            "http": _http("http://search.tools/api?q={{ item }}"),
            "retryStrategy": {"limit": 3, "backoff": {"duration": "1s", "factor": 2, "cap": "30s"}},
            "dependency": "Soft",
        },
        {
            "name": "analyse",
            "depends": "search || search.Failed",
            "choose": {
                "pools": [{"name": "small"}],
                "messages": [{"role": "user", "content": "{{ steps.analyse.turns }} {{ steps.search.text }}"}],
                "among": ["lookup", "calculate"],
            },
        },
        {
            "name": "lookup",
            "mcp": {
                "server": "http://wiki.tools/mcp",
                "tool": "lookup",
                "arguments": {"term": "{{ pick.term }}", "near": ["{{ steps.plan.text }}"]},
            },
        },
        {"name": "calculate", "http": {**_http("http://calc.tools/"), "body": "{{ pick.expression }}"}},
        {"name": "write", "depends": "analyse", "llm": _say("{{ steps.analyse.turns | tojson }}")},
        {"name": "notify", "http": {**_http("http://hooks.tools/done"), "body": "{{ steps | tojson }}"}},
    ],
    "output": "{{ steps.write.text }}",
}


def _found(spec: dict[str, Any]) -> list[Problem]:
    return review({"metadata": {"name": "research"}, "spec": spec}, POOLS, {"research", "digest"})


def _steps(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"steps": list(steps), **more}


def test_the_workflow_of_the_design_is_sound() -> None:
    assert _found(RESEARCH) == []


def test_the_model_is_read_as_the_resource_is() -> None:
    broken = {**RESEARCH, "output": "{{ steps.wrote.text }}"}
    model = AgentWorkflow.model_validate(
        {"metadata": {"name": "research", "namespace": "default"}, "spec": broken}
    )

    assert review(model, POOLS) == _found(broken)


def _with(name: str, **changes: Any) -> dict[str, Any]:
    spec = copy.deepcopy(RESEARCH)
    step = next(step for step in spec["steps"] if step["name"] == name)
    step.update(changes)
    return spec


_CASES: list[tuple[str, dict[str, Any], str, Reason, str]] = [
    ("empty", _steps(), "spec.steps", Reason.INVALID_STEP, "write at least one"),
    (
        "a name that no label could carry",
        _steps({"name": "Plan!", "llm": _llm()}),
        "spec.steps[0].name",
        Reason.INVALID_STEP,
        "lower case",
    ),
    (
        "two of one name",
        _steps({"name": "a", "llm": _llm()}, {"name": "a", "llm": _llm()}),
        "spec.steps[1].name",
        Reason.INVALID_STEP,
        "'a' is the name of spec.steps[0] already",
    ),
    (
        "no kind",
        _steps({"name": "a"}),
        "spec.steps[0]",
        Reason.INVALID_STEP,
        "one of llm, http, mcp, workflow, choose",
    ),
    (
        "two kinds",
        _steps({"name": "a", "llm": _llm(), "http": _http()}),
        "spec.steps[0]",
        Reason.INVALID_STEP,
        "llm and http at once",
    ),
    (
        "an address without a scheme",
        _steps({"name": "a", "http": _http("search.tools")}),
        "spec.steps[0].http.url",
        Reason.INVALID_STEP,
        "begin with http://",
    ),
    (
        "both ways to fan out",
        _steps({"name": "a", "llm": _llm(), "withItems": ["x"], "withParam": '["x"]'}),
        "spec.steps[0]",
        Reason.INVALID_STEP,
        "keep one of them",
    ),
    (
        "a parameter that never is a list",
        _steps({"name": "a", "llm": _llm(), "withParam": "queries"}),
        "spec.steps[0].withParam",
        Reason.INVALID_TEMPLATE,
        "steps.plan.json.queries",
    ),
    (
        "depends that does not parse",
        _with("write", depends="analyse &"),
        "spec.steps[5].depends",
        Reason.INVALID_DEPENDS,
        "at character 9: '&' has no meaning: write && for and",
    ),
    (
        "a step that is nearly there",
        _with("write", depends="analyze"),
        "spec.steps[5].depends",
        Reason.UNKNOWN_STEP,
        "there is no step 'analyze'; did you mean 'analyse'?",
    ),
    (
        "a step that is nowhere near",
        _with("write", depends="xyzzy"),
        "spec.steps[5].depends",
        Reason.UNKNOWN_STEP,
        "there are 'plan', 'search', 'analyse'",
    ),
    (
        "waiting for a step that may never run",
        _with("write", depends="lookup"),
        "spec.steps[5].depends",
        Reason.INVALID_DEPENDS,
        "depend on 'analyse' instead",
    ),
    (
        "waiting for the last",
        _with("write", depends="analyse && notify"),
        "spec.steps[5].depends",
        Reason.INVALID_DEPENDS,
        "is the onExit step and runs last",
    ),
    (
        "items of a step without items",
        _with("write", depends="analyse && plan.AllFailed"),
        "spec.steps[5].depends",
        Reason.INVALID_DEPENDS,
        "write plan.Failed",
    ),
    (
        "a circle",
        _with("plan", depends="write"),
        "spec.steps[0].depends",
        Reason.DEPENDENCY_CYCLE,
        "plan -> write -> analyse -> search -> plan",
    ),
    (
        "a circle of choosers",
        _steps(
            {"name": "a", "choose": {"pools": [{"name": "small"}], "among": ["b"]}},
            {"name": "b", "choose": {"pools": [{"name": "small"}], "among": ["a"]}},
        ),
        "spec.steps[0].choose.among",
        Reason.DEPENDENCY_CYCLE,
        "a -> b -> a",
    ),
    (
        "nothing to choose from",
        _steps({"name": "a", "choose": {"pools": [{"name": "small"}], "among": []}}),
        "spec.steps[0].choose.among",
        Reason.INVALID_STEP,
        "name at least one",
    ),
    (
        "a choice that does not exist",
        _with("analyse", choose={"pools": [{"name": "small"}], "among": ["lookup", "calculte"]}),
        "spec.steps[2].choose.among[1]",
        Reason.UNKNOWN_STEP,
        "did you mean 'calculate'?",
    ),
    (
        "a choice named twice",
        _with("analyse", choose={"pools": [{"name": "small"}], "among": ["lookup", "calculate", "lookup"]}),
        "spec.steps[2].choose.among[2]",
        Reason.INVALID_STEP,
        "named twice",
    ),
    (
        "the last step as a choice",
        _with("analyse", choose={"pools": [{"name": "small"}], "among": ["lookup", "calculate", "notify"]}),
        "spec.steps[2].choose.among[2]",
        Reason.INVALID_STEP,
        "cannot be picked",
    ),
    (
        "a choice that waits as well",
        _with("lookup", depends="plan"),
        "spec.steps[3].depends",
        Reason.INVALID_STEP,
        "leave depends out",
    ),
    ("an exit nobody knows", {**RESEARCH, "onExit": "notfy"}, "spec.onExit", Reason.UNKNOWN_STEP, "'notify'?"),
    (
        "an exit that waits",
        _with("notify", depends="write"),
        "spec.steps[6].depends",
        Reason.INVALID_STEP,
        "runs last, whatever happened",
    ),
    (
        "nothing but an exit",
        _steps({"name": "a", "llm": _llm()}, onExit="a"),
        "spec.onExit",
        Reason.INVALID_STEP,
        "only step",
    ),
    (
        "a template that does not compile",
        _with("write", llm=_say("{{ steps.analyse.text ")),
        "spec.steps[5].llm.messages[0].content",
        Reason.INVALID_TEMPLATE,
        "line 1",
    ),
    (
        "a step read before it can have ended",
        _with("search", http=_http("http://search.tools/{{ steps.write.text }}")),
        "spec.steps[1].http.url",
        Reason.INVALID_TEMPLATE,
        "add 'write' to its depends",
    ),
    (
        "a step's own result, which is not there yet",
        _with("plan", llm=_say("{{ steps.plan.text }}")),
        "spec.steps[0].llm.messages[0].content",
        Reason.INVALID_TEMPLATE,
        "does not come after 'plan'",
    ),
    (
        "an unknown step in a template",
        _with("write", llm=_say("{{ steps.analyze.text }}")),
        "spec.steps[5].llm.messages[0].content",
        Reason.UNKNOWN_STEP,
        "did you mean 'analyse'?",
    ),
    (
        "a choice read from outside",
        _with("write", llm=_say("{{ steps.lookup.text }}")),
        "spec.steps[5].llm.messages[0].content",
        Reason.INVALID_TEMPLATE,
        "read steps.analyse.turns instead",
    ),
    (
        "an item where there are none",
        _with("write", when="{{ item == 1 }}"),
        "spec.steps[5].when",
        Reason.INVALID_TEMPLATE,
        "item exists only in a step with withItems or withParam",
    ),
    (
        "an item in what makes the items",
        _with("search", withParam="{{ item }}"),
        "spec.steps[1].withParam",
        Reason.INVALID_TEMPLATE,
        "not in these two themselves",
    ),
    (
        "a pick where nothing picks",
        _with("write", when="{{ pick.term }}"),
        "spec.steps[5].when",
        Reason.INVALID_TEMPLATE,
        "some choose.among names",
    ),
    (
        "a root nobody knows",
        _with("write", when="{{ inputs.question }}"),
        "spec.steps[5].when",
        Reason.INVALID_TEMPLATE,
        "'inputs' is undefined; did you mean 'input'?",
    ),
    (
        "a step without its prefix",
        _with("write", when="{{ analyse.text }}"),
        "spec.steps[5].when",
        Reason.INVALID_TEMPLATE,
        "write steps.analyse",
    ),
    (
        "a hyphen, which would be a minus in templates",
        _steps({"name": "web-search", "llm": _llm()}),
        "spec.steps[0].name",
        Reason.INVALID_STEP,
        "digits and _",
    ),
    (
        "an input that was not declared",
        _with("write", when="{{ input.qestion }}"),
        "spec.steps[5].when",
        Reason.INVALID_TEMPLATE,
        "no property 'qestion'; did you mean 'question'?",
    ),
    (
        "all steps at once, before they have ended",
        _with("write", when="{{ steps }}"),
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
        "a pool that is nearly there",
        _with("write", llm={**_llm(), "pools": [{"name": "llama-8B"}]}),
        "spec.steps[5].llm.pools[0].name",
        Reason.POOL_NOT_FOUND,
        "did you mean 'llama-8b'?",
    ),
    (
        "one candidate twice",
        _with("write", llm={**_llm(), "pools": [{"name": "small"}, {"name": "small"}]}),
        "spec.steps[5].llm.pools[1].name",
        Reason.INVALID_STEP,
        "named twice",
    ),
    (
        "no candidate",
        _with("write", llm={**_llm(), "pools": []}),
        "spec.steps[5].llm.pools",
        Reason.INVALID_STEP,
        "name at least one",
    ),
    (
        "retries without bound",
        _with("search", retryStrategy={"limit": 1_000_000}),
        "spec.steps[1].retryStrategy.limit",
        Reason.INVALID_STEP,
        "from 0 to 10",
    ),
    (
        "waits that shrink",
        _with("search", retryStrategy={"limit": 1, "backoff": {"factor": 0.5}}),
        "spec.steps[1].retryStrategy.backoff.factor",
        Reason.INVALID_STEP,
        "write 1 or more",
    ),
    (
        "a cap below the first wait",
        _with("search", retryStrategy={"limit": 1, "backoff": {"duration": "10s", "cap": "5s"}}),
        "spec.steps[1].retryStrategy.backoff.cap",
        Reason.INVALID_STEP,
        "below the first wait of 10s",
    ),
    (
        "a template deep in a tool's arguments, under a name that is plain elsewhere",
        _with("lookup", mcp={"server": "http://x", "tool": "t", "arguments": {"a": [{"name": "{{ item }}"}]}}),
        "spec.steps[3].mcp.arguments.a[0].name",
        Reason.INVALID_TEMPLATE,
        "item exists only",
    ),
    (
        "a workflow that runs itself",
        _steps({"name": "a", "workflow": {"name": "research"}}),
        "spec.steps[0].workflow.name",
        Reason.DEPENDENCY_CYCLE,
        "run itself",
    ),
    (
        "a workflow that is nearly there",
        _steps({"name": "a", "workflow": {"name": "digests"}}),
        "spec.steps[0].workflow.name",
        Reason.WORKFLOW_NOT_FOUND,
        "did you mean 'digest'?",
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
        _with("write", llm=_llm(responseFormat={"type": "string", "pattern": "("})),
        "spec.steps[5].llm.responseFormat.pattern",
        Reason.INVALID_SCHEMA,
        "no regular expression",
    ),
]


@pytest.mark.parametrize(("spec", "path", "reason", "words"), [pytest.param(*c[1:], id=c[0]) for c in _CASES])
def test_names_place_reason_and_remedy(spec: dict[str, Any], path: str, reason: Reason, words: str) -> None:
    found = _found(spec)

    told = [problem for problem in found if problem.path == path and problem.reason is reason]
    assert any(words in problem.message for problem in told), f"got: {[str(problem) for problem in found]}"


def test_a_step_that_two_may_pick_reads_what_both_have_behind_them() -> None:
    def choose(name: str, depends: str) -> dict[str, Any]:
        return {"name": name, "depends": depends, "choose": {"pools": [{"name": "small"}], "among": ["lookup"]}}

    def picked(content: str) -> list[Problem]:
        first, second = ({"name": name, "llm": _llm()} for name in ("first", "second"))
        lookup = {"name": "lookup", "llm": _say(content)}
        return _found(_steps(first, second, choose("one", "first"), choose("other", "first && second"), lookup))

    assert picked("{{ steps.first.text }}") == []
    assert [problem.path for problem in picked("{{ steps.second.text }}")] == [
        "spec.steps[4].llm.messages[0].content"
    ]


def test_an_answers_schema_is_no_template() -> None:
    schema = {"type": "object", "description": "anything, {{ even this"}

    assert _found(_with("write", llm=_llm(responseFormat=schema))) == []


def test_a_schema_is_bounded_in_depth() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        schema = {"type": "array", "items": schema}

    (problem,) = _found({**RESEARCH, "input": schema})

    assert "nested deeper than 16" in problem.message


def test_a_single_mistake_is_told_once() -> None:
    found = _found(_with("write", depends="analyse &&"))

    assert [problem.path for problem in found if problem.reason is Reason.INVALID_DEPENDS] == [
        "spec.steps[5].depends"
    ]


def test_a_missing_pool_alone_leaves_the_workflow_accepted() -> None:
    found = review({"spec": RESEARCH}, pool_names=set())

    assert found
    assert all(problem.accepted for problem in found)


def test_every_other_problem_refuses_it() -> None:
    assert not any(problem.accepted for problem in _found(_with("plan", depends="write")))


def test_the_same_workflow_gives_the_same_answer_in_the_same_order() -> None:
    spec = {
        **_with("plan", depends="write && xyzzy", llm=_say("{{ a }} {{ b }} {{ steps.c }}")),
        "output": "{{ d }}",
    }

    assert _found(spec) == _found(copy.deepcopy(spec))


def test_templates_are_bounded_together() -> None:
    long = "{{ input.question }}" + "x" * 30_000
    spec = _steps(*({"name": f"s{n}", "llm": _say(long)} for n in range(9)))

    assert [problem.path for problem in _found(spec)] == ["spec.steps[8].llm.messages[0].content"]


def test_steps_are_bounded() -> None:
    found = _found(_steps(*({"name": f"s{n}", "llm": _llm()} for n in range(65))))

    assert [problem.path for problem in found] == ["spec.steps"]


@pytest.mark.parametrize(
    "spec",
    [
        None,
        [],
        {"steps": "x"},
        {"steps": [None, 3, "x"]},
        {"steps": [{"name": 3, "llm": [], "depends": 7, "withParam": {}}]},
        {"steps": [{"name": "a", "choose": {"among": [None, {}], "pools": [None, "x"]}, "retryStrategy": []}]},
        {"steps": [{"name": "a", "llm": {"messages": {"content": [[["{{ x"]]]}}}], "output": 4, "onExit": {}},
        {"steps": [{"name": "a", "llm": {}}], "input": "x"},
    ],
)
def test_garbage_is_answered_with_problems(spec: Any) -> None:
    assert review({"spec": spec}, POOLS)
