"""The examples of docs/workflows.md, for the tests that run them."""

import json
from typing import Any

import yaml

from chart.programs import ROOT

HOSTS = ("search.tools", "guard.tools", "hooks.tools", "calc.tools")
POOLS = ("llama-8b", "qwen-cpu")


def spec_of(name: str) -> dict[str, Any]:
    """The example, on the pool and the tool of the test."""
    text = json.dumps(yaml.safe_load((ROOT / "examples" / name).read_text())["spec"])
    for host in HOSTS:
        text = text.replace(f"http://{host}/", "http://tool/")
    for pool in POOLS:
        text = text.replace(f'"{pool}"', '"pool"')
    spec: dict[str, Any] = json.loads(text)
    for step in spec["steps"]:
        for kind in {"llm", "choose"}.intersection(step):  # a pool is named once
            step[kind]["pools"] = step[kind]["pools"][:1]
    return spec
