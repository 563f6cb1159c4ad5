"""Workflows of 1 to 16 stages in the shapes that are published, with the lengths and luck of each run.

Shapes: single chats; ReAct loops of a few turns (Chimera, arXiv 2603.22206, has 1 to 4 stages); plan, search, read
in parallel, write; and a chain of text-to-SQL with parallel candidates and revisions (HexGen-Flow, arXiv
2505.05286: 16 to 21 calls, 32 to 70 thousand tokens of prompts and about two thousand of answers a workflow).
Lengths are log-normal. All luck is drawn from the run's number and the place in it: every policy meets the same.
"""

import math
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Final
from zlib import crc32

from tidepool_api.workflow import AgentWorkflowSpec
from tidepool_router.workflow.core.plan import Plan, plan_of
from tidepool_router.workflow.core.states import Key

BLOCK_TOKENS: Final = 128
MOST_STAGES: Final = 16


@dataclass(frozen=True, slots=True)
class Stage:
    """One call to a model: its prompt, whose full blocks have `names`, and its answer."""

    prompt_tokens: int
    output_tokens: int
    names: tuple[int, ...]


def _llm(name: str, pools: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"name": name, "llm": {"pools": pools, "messages": [{"role": "user", "content": "x"}]}, **more}


def _http(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "http": {"url": "http://t/"}, **more}


# Median tokens of a step's own prompt and of its answer, by its name.
_LENGTHS: Final = {
    "answer": (500, 220),
    "plan": (700, 90),
    "look": (900, 70),
    "read": (1800, 140),
    "write": (1500, 380),
    "link": (2600, 110),
    "draft": (3000, 160),
    "revise": (3200, 120),
    "select": (2800, 60),
}
_SPREAD: Final = 0.5
_TOOL_SECONDS: Final = 0.4
# What a turn adds to the prompt: the pick and what the tool said.
_TURN_TOKENS: Final = 350
_SCHEMA_TOKENS: Final = 1800
# Seconds in which a run is to be done, by its shape: about four times what it takes on idle engines.
DEADLINES: Final = {"chat": 30.0, "react": 60.0, "research": 60.0, "sql": 120.0}
MIX: Final = {"chat": 0.4, "react": 0.3, "research": 0.2, "sql": 0.1}


@cache
def plans(qualities: tuple[tuple[str, float], ...]) -> dict[str, Plan]:
    """The workflows, over pools with these qualities."""
    pools = [{"name": name, "quality": quality} for name, quality in qualities]
    react = {
        "pools": pools,
        "messages": [{"role": "user", "content": "x"}],
        "among": ["tool"],
        "maxTurns": MOST_STAGES - 2,
    }
    written: dict[str, list[dict[str, Any]]] = {
        "chat": [_llm("answer", pools)],
        "react": [{"name": "look", "choose": react}, _http("tool"), _llm("write", pools, depends="look")],
        "research": [
            _llm("plan", pools),
            _http("search", depends="plan", withParam="{{ steps.plan.json }}"),
            _llm("read", pools, depends="search", withParam="{{ steps.search.results }}"),
            _llm("write", pools, depends="read"),
        ],
        "sql": [
            _llm("link", pools),
            _llm("draft", pools, depends="link", withItems=[0, 1, 2]),
            _llm("revise", pools, depends="draft", withParam="{{ steps.draft.results }}"),
            *(
                _llm(f"revise{n}", pools, depends=f"revise{n - 1}" if n > 2 else "revise", withItems=[0, 1, 2])
                for n in (2, 3)
            ),
            _llm("select", pools, depends="revise3"),
        ],
    }
    return {
        name: plan_of(name, AgentWorkflowSpec.model_validate({"steps": steps})) for name, steps in written.items()
    }


@dataclass(frozen=True, slots=True)
class Instance:
    """One run: its number, its seed's, and its shape."""

    number: int
    seed: int
    shape: str

    def luck(self, *place: object) -> Random:
        return Random(f"{self.seed} {self.number} {' '.join(map(str, place))}")

    @property
    def turns(self) -> int:
        """Turns of a ReAct loop: one to a dozen, three in the mean."""
        return min(MOST_STAGES - 4, 1 + int(self.luck("turns").expovariate(0.5)))

    @property
    def items(self) -> int:
        """What a plan asks to be searched for."""
        return self.luck("items").randint(2, 5)

    def tool_seconds(self, key: Key) -> float:
        return self.luck("tool", key).lognormvariate(math.log(_TOOL_SECONDS), 0.6)

    def stage(self, key: Key, turn: int) -> Stage:
        """The call of a key; `turn` of a step that chooses, from 1."""
        kind = key.step.rstrip("0123456789")
        prompt_median, output_median = _LENGTHS[kind]
        luck = self.luck(key)
        context = self.luck("context", kind, self._branch(key) if kind == "look" else key)
        prompt = int(prompt_median * context.lognormvariate(0.0, _SPREAD / 2)) + _TURN_TOKENS * max(0, turn - 1)
        output = 1 + int(output_median * luck.lognormvariate(0.0, _SPREAD))
        # Turns see what the turns before them saw; steps of text-to-SQL all see the same schema first.
        place = self._branch(key) if kind == "look" else str(key)
        names = self._names(f"{kind} {place}", prompt)
        if self.shape == "sql":
            schema = self._names("schema", _SCHEMA_TOKENS)
            names = (*schema, *names[len(schema) :])
        return Stage(prompt, min(output, 2000), names)

    def _names(self, text: str, tokens: int) -> tuple[int, ...]:
        first = crc32(f"{self.seed} {self.number} {text}".encode()) << 10
        return tuple(first + index + 1 for index in range(tokens // BLOCK_TOKENS))

    @staticmethod
    def _branch(key: Key) -> str:
        return key.within.partition(".")[0]


def arrivals(seed: int, runs: int, rate: float) -> list[tuple[float, Instance]]:
    """Poisson arrivals, so many a second, of the mix."""
    random = Random(f"arrivals {seed}")
    found = []
    now = 0.0
    for number in range(runs):
        now += random.expovariate(rate)
        shape = random.choices(list(MIX), list(MIX.values()))[0]
        found.append((now, Instance(number, seed, shape)))
    return found
