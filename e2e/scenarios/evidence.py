"""What was seen, written down as it happened: transitions with the proof that they were real."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

BUILD = Path(__file__).resolve().parents[2] / "build" / "e2e"


@dataclass(slots=True)
class Transition:
    """One step of the scenario: pods by UID before and after, the engines' versions, the figure that decided."""

    name: str
    began: str
    seconds: float = 0.0
    pods_before: dict[str, str] = field(default_factory=dict)
    pods_after: dict[str, str] = field(default_factory=dict)
    engine_versions: dict[str, str] = field(default_factory=dict)
    decision: Mapping[str, Any] = field(default_factory=dict)
    prometheus: Mapping[str, Any] = field(default_factory=dict)
    streams_running: int = 0


@dataclass(slots=True)
class Evidence:
    """Collected over one run; `write` leaves it under build/e2e."""

    folder: Path = BUILD
    transitions: list[Transition] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """A line for the person who waits, with the seconds since the beginning."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def add(self, transition: Transition) -> None:
        """Keep the transition and tell it."""
        self.transitions.append(transition)
        self.write()

    def write(self) -> None:
        """Replace evidence.json with what is known now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        document = {"facts": self.facts, "transitions": [asdict(one) for one in self.transitions]}
        (self.folder / "evidence.json").write_text(json.dumps(document, indent=2, default=str) + "\n")


def prometheus_sample(url: str, expression: str) -> dict[str, Any]:
    """The samples of an instant query as Prometheus gives them, with the expression that was asked."""
    answer = httpx.get(f"{url}/api/v1/query", params={"query": expression}, timeout=10)
    answer.raise_for_status()
    result: Sequence[Any] = answer.json()["data"]["result"]
    return {"query": expression, "result": list(result)}


def engine_version(pod_ip: str) -> str:
    """What the engine itself says on /version, asked through its sidecar."""
    answer = httpx.get(f"http://{pod_ip}:8080/version", timeout=10)
    answer.raise_for_status()
    return str(answer.json()["version"])
