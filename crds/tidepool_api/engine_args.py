"""Arguments of vLLM that a field of the spec, or Tidepool itself, stands for."""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from tidepool_api.kube import Rule, validations


@dataclass(frozen=True, slots=True)
class Reserved:
    """Flags (without their dashes) that may not stand in spec.engine.args, and what to do instead."""

    flags: tuple[str, ...]
    remedy: str

    @property
    def pattern(self) -> str:
        """Regular expression of an argument that sets one of the flags; vLLM takes _ for - in them."""
        names = "|".join(flag.replace("-", "[-_]") for flag in self.flags)
        return f"^--?({names})([=. ].*)?$"


RESERVED: Final = (
    Reserved(("model", "model-tag"), "set spec.model.uri instead"),
    Reserved(("served-model-name",), "set spec.model.name and spec.model.aliases instead"),
    Reserved(("revision", "tokenizer-revision", "code-revision"), "set spec.model.revision instead"),
    Reserved(("hf-token",), "set spec.model.authSecretRef instead"),
    Reserved(("max-model-len",), "set spec.engine.maxModelLen instead"),
    Reserved(("gpu-memory-utilization",), "set spec.engine.gpuMemoryUtilization instead"),
    Reserved(("quantization", "q"), "set spec.engine.quantization instead"),
    Reserved(("(no-)?enable-prefix-caching",), "set spec.engine.prefixCaching instead"),
    Reserved(("(no-)?enable-chunked-prefill",), "set spec.engine.chunkedPrefill instead"),
    Reserved(
        ("tensor-parallel-size", "tp", "pipeline-parallel-size", "pp"),
        "set spec.parallelism.tensor and spec.parallelism.pipeline instead",
    ),
    Reserved(
        ("host", "port", "uds", "root-path", "ssl-.*", "api-key", "config", "headless", "api-server-count", "asc"),
        "take it out: the router beside the engine is its only door and reaches it in one fixed way",
    ),
    Reserved(
        ("scheduling-policy",), "take it out: the engine always runs by priority, see spec.routing.priorities"
    ),
)


def _rule(reserved: Reserved) -> Rule:
    return Rule(
        f"!self.matches(r'{reserved.pattern}')",
        f"is not allowed here; {reserved.remedy}",
        holds=lambda argument: re.match(reserved.pattern, argument) is None,
        words=lambda argument: f"{argument!r} is not allowed here; {reserved.remedy}",
    )


ARGUMENT_RULES: Final = tuple(_rule(reserved) for reserved in RESERVED)


def _checked(argument: str) -> str:
    for rule in ARGUMENT_RULES:
        rule.check(argument)
    return argument


Argument = Annotated[
    str,
    Field(min_length=1, max_length=4096, json_schema_extra=validations(ARGUMENT_RULES)),
    AfterValidator(_checked),
]

SPECULATIVE_CONFIG: Final = Reserved(
    ("speculative-config", "sc"), "spec.engine.speculative says it already; keep one of the two"
)
