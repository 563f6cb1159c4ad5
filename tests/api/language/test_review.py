"""The review of a workflow's steps, their order and whom they name: the place, the reason and the remedy."""

import copy
from typing import Any

import pytest

from tidepool_api.language.problems import Reason
from tidepool_api.language.review import review
from tidepool_api.workflow import AgentWorkflow
from workflows.specs import POOLS, RESEARCH, found_in, http, llm, research_with, say, spec_of


def test_the_workflow_of_the_design_is_sound() -> None:
    assert found_in(RESEARCH) == []


def test_the_model_is_read_as_the_resource_is() -> None:
    broken = {**RESEARCH, "output": "{{ steps.wrote.text }}"}
    model = AgentWorkflow.model_validate(
        {"metadata": {"name": "research", "namespace": "default"}, "spec": broken}
    )

    assert review(model, POOLS) == found_in(broken)


def saving(measure: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return spec_of(*steps, budget={"tokens": 100, "degrade": [{"measure": measure}]})


_CASES: list[tuple[str, dict[str, Any], str, Reason, str]] = [
    ("empty", spec_of(), "spec.steps", Reason.INVALID_STEP, "write at least one"),
    (
        "a name that no label could carry",
        spec_of({"name": "Plan!", "llm": llm()}),
        "spec.steps[0].name",
        Reason.INVALID_STEP,
        "lower case",
    ),
    (
        "two of one name",
        spec_of({"name": "a", "llm": llm()}, {"name": "a", "llm": llm()}),
        "spec.steps[1].name",
        Reason.INVALID_STEP,
        "'a' is the name of spec.steps[0] already",
    ),
    (
        "no kind",
        spec_of({"name": "a"}),
        "spec.steps[0]",
        Reason.INVALID_STEP,
        "one of llm, http, mcp, workflow, choose",
    ),
    (
        "two kinds",
        spec_of({"name": "a", "llm": llm(), "http": http()}),
        "spec.steps[0]",
        Reason.INVALID_STEP,
        "llm and http at once",
    ),
    (
        "an address without a scheme",
        spec_of({"name": "a", "http": http("search.tools")}),
        "spec.steps[0].http.url",
        Reason.INVALID_STEP,
        "begin with http://",
    ),
    (
        "both ways to fan out",
        spec_of({"name": "a", "llm": llm(), "withItems": ["x"], "withParam": '["x"]'}),
        "spec.steps[0]",
        Reason.INVALID_STEP,
        "keep one of them",
    ),
    (
        "depends that does not parse",
        research_with("write", depends="analyse &"),
        "spec.steps[5].depends",
        Reason.INVALID_DEPENDS,
        "at character 9: '&' has no meaning: write && for and",
    ),
    (
        "a step that is nearly there",
        research_with("write", depends="analyze"),
        "spec.steps[5].depends",
        Reason.UNKNOWN_STEP,
        "there is no step 'analyze'; did you mean 'analyse'?",
    ),
    (
        "a step that is nowhere near",
        research_with("write", depends="xyzzy"),
        "spec.steps[5].depends",
        Reason.UNKNOWN_STEP,
        "there are 'plan', 'search', 'analyse'",
    ),
    (
        "waiting for a step that may never run",
        research_with("write", depends="lookup"),
        "spec.steps[5].depends",
        Reason.INVALID_DEPENDS,
        "depend on 'analyse' instead",
    ),
    (
        "waiting for the last",
        research_with("write", depends="analyse && notify"),
        "spec.steps[5].depends",
        Reason.INVALID_DEPENDS,
        "is the onExit step and runs last",
    ),
    (
        "items of a step without items",
        research_with("write", depends="analyse && plan.AllFailed"),
        "spec.steps[5].depends",
        Reason.INVALID_DEPENDS,
        "write plan.Failed",
    ),
    (
        "a circle",
        research_with("plan", depends="write"),
        "spec.steps[0].depends",
        Reason.DEPENDENCY_CYCLE,
        "plan -> write -> analyse -> search -> plan",
    ),
    (
        "a circle of choosers",
        spec_of(
            {"name": "a", "choose": {"pools": [{"name": "small"}], "among": ["b"]}},
            {"name": "b", "choose": {"pools": [{"name": "small"}], "among": ["a"]}},
        ),
        "spec.steps[0].choose.among",
        Reason.DEPENDENCY_CYCLE,
        "a -> b -> a",
    ),
    (
        "nothing to choose from",
        spec_of({"name": "a", "choose": {"pools": [{"name": "small"}], "among": []}}),
        "spec.steps[0].choose.among",
        Reason.INVALID_STEP,
        "name at least one",
    ),
    (
        "a choice that does not exist",
        research_with("analyse", choose={"pools": [{"name": "small"}], "among": ["lookup", "calculte"]}),
        "spec.steps[2].choose.among[1]",
        Reason.UNKNOWN_STEP,
        "did you mean 'calculate'?",
    ),
    (
        "a choice named twice",
        research_with(
            "analyse", choose={"pools": [{"name": "small"}], "among": ["lookup", "calculate", "lookup"]}
        ),
        "spec.steps[2].choose.among[2]",
        Reason.INVALID_STEP,
        "named twice",
    ),
    (
        "the last step as a choice",
        research_with(
            "analyse", choose={"pools": [{"name": "small"}], "among": ["lookup", "calculate", "notify"]}
        ),
        "spec.steps[2].choose.among[2]",
        Reason.INVALID_STEP,
        "cannot be picked",
    ),
    (
        "a choice that waits as well",
        research_with("lookup", depends="plan"),
        "spec.steps[3].depends",
        Reason.INVALID_STEP,
        "leave depends out",
    ),
    ("an exit nobody knows", {**RESEARCH, "onExit": "notfy"}, "spec.onExit", Reason.UNKNOWN_STEP, "'notify'?"),
    (
        "an exit that waits",
        research_with("notify", depends="write"),
        "spec.steps[6].depends",
        Reason.INVALID_STEP,
        "runs last, whatever happened",
    ),
    (
        "nothing but an exit",
        spec_of({"name": "a", "llm": llm()}, onExit="a"),
        "spec.onExit",
        Reason.INVALID_STEP,
        "only step",
    ),
    (
        "a hyphen, which would be a minus in templates",
        spec_of({"name": "web-search", "llm": llm()}),
        "spec.steps[0].name",
        Reason.INVALID_STEP,
        "digits and _",
    ),
    (
        "a pool that is nearly there",
        research_with("write", llm={**llm(), "pools": [{"name": "llama-8B"}]}),
        "spec.steps[5].llm.pools[0].name",
        Reason.POOL_NOT_FOUND,
        "did you mean 'llama-8b'?",
    ),
    (
        "one candidate twice",
        research_with("write", llm={**llm(), "pools": [{"name": "small"}, {"name": "small"}]}),
        "spec.steps[5].llm.pools[1].name",
        Reason.INVALID_STEP,
        "named twice",
    ),
    (
        "no candidate",
        research_with("write", llm={**llm(), "pools": []}),
        "spec.steps[5].llm.pools",
        Reason.INVALID_STEP,
        "name at least one",
    ),
    (
        "retries without bound",
        research_with("search", retryStrategy={"limit": 1_000_000}),
        "spec.steps[1].retryStrategy.limit",
        Reason.INVALID_STEP,
        "from 0 to 10",
    ),
    (
        "waits that shrink",
        research_with("search", retryStrategy={"limit": 1, "backoff": {"factor": 0.5}}),
        "spec.steps[1].retryStrategy.backoff.factor",
        Reason.INVALID_STEP,
        "write 1 or more",
    ),
    (
        "a cap below the first wait",
        research_with("search", retryStrategy={"limit": 1, "backoff": {"duration": "10s", "cap": "5s"}}),
        "spec.steps[1].retryStrategy.backoff.cap",
        Reason.INVALID_STEP,
        "below the first wait of 10s",
    ),
    (
        "a smaller model, where there is one model",
        saving("SmallerModel", {"name": "a", "llm": llm()}),
        "spec.budget.degrade[0].measure",
        Reason.INVALID_BUDGET,
        "no step has a second pool",
    ),
    (
        "a smaller model among those that nobody has measured",
        saving(
            "SmallerModel", {"name": "a", "llm": {**llm(), "pools": [{"name": "small"}, {"name": "llama-8b"}]}}
        ),
        "spec.steps[0].llm.pools[0].quality",
        Reason.INVALID_BUDGET,
        "write it, 0 to 1",
    ),
    (
        "fewer branches of a row",
        saving("FewerBranches", {"name": "a", "llm": llm()}),
        "spec.budget.degrade[0].measure",
        Reason.INVALID_BUDGET,
        "no step fans out or chooses",
    ),
    (
        "Soft steps, where all are Hard",
        saving("SkipSoft", {"name": "a", "llm": llm(), "withItems": ["x"]}),
        "spec.budget.degrade[0].measure",
        Reason.INVALID_BUDGET,
        "set dependency: Soft on one",
    ),
    (
        "a workflow that runs itself",
        spec_of({"name": "a", "workflow": {"name": "research"}}),
        "spec.steps[0].workflow.name",
        Reason.DEPENDENCY_CYCLE,
        "run itself",
    ),
    (
        "a workflow that is nearly there",
        spec_of({"name": "a", "workflow": {"name": "digests"}}),
        "spec.steps[0].workflow.name",
        Reason.WORKFLOW_NOT_FOUND,
        "did you mean 'digest'?",
    ),
]


@pytest.mark.parametrize(("spec", "path", "reason", "words"), [pytest.param(*c[1:], id=c[0]) for c in _CASES])
def test_names_place_reason_and_remedy(spec: dict[str, Any], path: str, reason: Reason, words: str) -> None:
    found = found_in(spec)

    told = [problem for problem in found if problem.path == path and problem.reason is reason]
    assert any(words in problem.message for problem in told), f"got: {[str(problem) for problem in found]}"


def test_a_single_mistake_is_told_once() -> None:
    found = found_in(research_with("write", depends="analyse &&"))

    assert [problem.path for problem in found if problem.reason is Reason.INVALID_DEPENDS] == [
        "spec.steps[5].depends"
    ]


def test_a_missing_pool_alone_leaves_the_workflow_accepted() -> None:
    found = review({"spec": RESEARCH}, pool_names=set())

    assert found
    assert all(problem.accepted for problem in found)


def test_every_other_problem_refuses_it() -> None:
    assert not any(problem.accepted for problem in found_in(research_with("plan", depends="write")))


def test_the_same_workflow_gives_the_same_answer_in_the_same_order() -> None:
    spec = {
        **research_with("plan", depends="write && xyzzy", llm=say("{{ a }} {{ b }} {{ steps.c }}")),
        "output": "{{ d }}",
    }

    assert found_in(spec) == found_in(copy.deepcopy(spec))


def test_steps_are_bounded() -> None:
    found = found_in(spec_of(*({"name": f"s{n}", "llm": llm()} for n in range(65))))

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
