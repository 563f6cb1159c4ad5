"""Specs of workflows as users write them, sound and broken, and what the review finds in them."""

import copy
from typing import Any

from tidepool_api.language.problems import Problem
from tidepool_api.language.review import review

POOLS = {"small", "llama-8b"}


def llm(**more: Any) -> dict[str, Any]:
    return {"pools": [{"name": "small"}], "messages": [{"role": "user", "content": "Hello"}], **more}


def say(content: str) -> dict[str, Any]:
    return {"pools": [{"name": "small"}], "messages": [{"role": "user", "content": content}]}


def http(url: str = "http://search.tools/") -> dict[str, Any]:
    return {"method": "GET", "url": url}


RESEARCH: dict[str, Any] = {
    "input": {"type": "object", "required": ["question"], "properties": {"question": {"type": "string"}}},
    "deadline": "60s",
    "onExit": "notify",
    "steps": [
        {"name": "plan", "llm": say("List search queries for: {{ input.question }}")},
        {
            "name": "search",
            "depends": "plan",
            "withParam": "{{ steps.plan.json.queries }}",
            "http": http("http://search.tools/api?q={{ item }}"),
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
        {"name": "calculate", "http": {**http("http://calc.tools/"), "body": "{{ pick.expression }}"}},
        {"name": "write", "depends": "analyse", "llm": say("{{ steps.analyse.turns | tojson }}")},
        {"name": "notify", "http": {**http("http://hooks.tools/done"), "body": "{{ steps | tojson }}"}},
    ],
    "output": "{{ steps.write.text }}",
}


def found_in(spec: dict[str, Any]) -> list[Problem]:
    return review({"metadata": {"name": "research"}, "spec": spec}, POOLS, {"research", "digest"})


def spec_of(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"steps": list(steps), **more}


def research_with(name: str, **changes: Any) -> dict[str, Any]:
    spec = copy.deepcopy(RESEARCH)
    step = next(step for step in spec["steps"] if step["name"] == name)
    step.update(changes)
    return spec
