"""Modules that take long to load, for the few tests that use them: every worker collects every test."""

import importlib
from typing import Any


class Later:
    """Loaded when something of it is first asked for. Annotations cannot ask: they are evaluated with the file."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks all that a file names whether it is a fixture, and wrapped
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


# Two thousand models each.
anthropic = Later("anthropic")
openai = Later("openai")
