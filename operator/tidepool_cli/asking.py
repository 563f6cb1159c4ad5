"""`tidepool route`: sends a prompt and tells which pod answered, and what the others would have cost."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidepool_api.contract import HEADER_DEBUG, HEADER_POD, HEADER_SCORES
from tidepool_cli.errors import CliError
from tidepool_cli.tables import plain

_SECONDS: Final = 120.0
_KEY: Final = "TIDEPOOL_API_KEY"
_OFF: Final = (
    "the gateway does not tell what pods would cost: start it with --debug-scores (the chart's value "
    "gateway.extraArgs), which tells names and loads of pods to whoever may ask"
)


@dataclass(frozen=True, slots=True)
class Routed:
    """Where a prompt went. `scores` is the gateway's own word for each pod, None where it does not tell."""

    pod: str
    scores: str | None
    usage: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {"pod": self.pod, "scores": self.scores, "usage": self.usage}

    def text(self) -> str:
        """For people."""
        cached = ((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens")) or 0
        lines = [
            f"pod: {plain(self.pod)}",
            f"prompt tokens: {self.usage.get('prompt_tokens', '?')}, of these cached: {cached}",
        ]
        lines += [f"  {plain(each.strip())}" for each in self.scores.split(";")] if self.scores else [_OFF]
        return "\n".join(lines)


def route(url: str, model: str, prompt: str) -> Routed:
    """Ask for one token. Raises CliError."""
    import httpx

    key = os.environ.get(_KEY)
    headers = {HEADER_DEBUG: "scores"} | ({"authorization": f"Bearer {key}"} if key else {})
    body = {"model": model, "prompt": prompt, "max_tokens": 1}
    try:
        with httpx.Client(base_url=url, timeout=_SECONDS, trust_env=False) as client:
            answer = client.post("/v1/completions", json=body, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CliError(
            f"no answer from the gateway at {url}: {error}; forward it first "
            "(kubectl -n tidepool-system port-forward svc/tidepool-gateway 8080:80) or name it with --url"
        ) from error
    if answer.status_code != httpx.codes.OK:
        raise CliError(f"the gateway answered {answer.status_code}: {_said(answer.text)}")
    try:
        usage = dict(answer.json().get("usage") or {})
    except (ValueError, TypeError, AttributeError) as error:
        raise CliError(f"what {url} answers is no completion; is it a gateway of Tidepool?") from error
    return Routed(
        answer.headers.get(HEADER_POD, "the gateway did not say"), answer.headers.get(HEADER_SCORES), usage
    )


def read(path: Path) -> str:
    """The prompt. Raises CliError."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path} cannot be read: {error}; name a text file with the prompt") from error


def _said(text: str) -> str:
    try:
        return plain(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return plain(text[:200])
