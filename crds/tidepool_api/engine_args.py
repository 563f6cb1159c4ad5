"""Arguments of vLLM that a field of the spec, or Tidepool itself, stands for."""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from tidepool_api.kube import Rule, validations


@dataclass(frozen=True, slots=True)
class Reserved:
    """Flags that may not stand in spec.engine.args, and what to do instead.

    `flags` are vLLM's long ones without dashes. It takes each of them shortened as long as no other flag begins in
    the same way; "~" stands where that begins (as of vLLM 0.32). `shorts` are those with one dash.
    """

    flags: tuple[str, ...]
    remedy: str
    shorts: tuple[str, ...] = ()

    @property
    def pattern(self) -> str:
        """Regular expression, for RE2 and Python, of an argument that sets one of the flags."""
        longs = "|".join(_shortenable(*flag.split("~")) for flag in self.flags)
        shorts = "".join(f"|-{short}" for short in self.shorts)
        return rf"^(--({longs}){shorts})([=.\s]|$)"

    def sets(self, argument: str) -> bool:
        """Whether the argument sets one of the flags."""
        return re.match(self.pattern, argument) is not None


def _shortenable(start: str, rest: str = "") -> str:
    """Regular expression of a flag of which `rest` may be cut short; vLLM takes _ for - too."""
    letters = [letter.replace("-", "[-_]") for letter in rest]
    return start.replace("-", "[-_]") + "".join(f"({letter}" for letter in letters) + ")?" * len(letters)


_ROUTER: Final = "take it out: the router beside the engine is its only door and reaches it in one fixed way"
RESERVED: Final = (
    Reserved(("model",), "set spec.model.uri instead"),
    Reserved(("ser~ved-model-name",), "set spec.model.name and spec.model.aliases instead"),
    Reserved(("rev~ision", "tokenizer-r~evision", "cod~e-revision"), "set spec.model.revision instead"),
    Reserved(("hf-t~oken",), "set spec.model.authSecretRef instead"),
    Reserved(("max-m~odel-len",), "set spec.engine.maxModelLen instead"),
    Reserved(
        ("gp~u-memory-utilization", "device-m~emory-utilization"), "set spec.engine.gpuMemoryUtilization instead"
    ),
    Reserved(("quantization",), "set spec.engine.quantization instead", shorts=("q.*",)),
    Reserved(("(no-)?enable-pre~fix-caching",), "set spec.engine.prefixCaching instead"),
    Reserved(("(no-)?enable-ch~unked-prefill",), "set spec.engine.chunkedPrefill instead"),
    Reserved(("te~nsor-parallel-size",), "set spec.parallelism.tensor instead", shorts=("tp?",)),
    Reserved(("pi~peline-parallel-size",), "set spec.parallelism.pipeline instead", shorts=("pp?",)),
    Reserved(("data-parallel-size",), "set spec.replicas instead", shorts=("dp",)),
    Reserved(
        ("nn~odes", "nod~e-rank", "master-a~ddr", "master-p~ort"),
        "set spec.parallelism.hosts instead",
        shorts=("[nr].*",),
    ),
    Reserved(("ho~st", "por~t", "ud~s", "ro~ot-path", "ssl-.+", "grpc", "hea~dless"), _ROUTER),
    Reserved(("api-k~ey",), f"{_ROUTER}, and keys are checked at the gateway"),
    Reserved(("config",), "write its settings into the fields of the spec and into spec.engine.args"),
    Reserved(("api-s~erver-count",), "take it out: one server keeps the engine's figures", shorts=("asc",)),
    Reserved(("disable-l~og-stats",), "take it out: the pool is steered by the engine's figures"),
    Reserved(
        ("scheduli~ng-policy",), "take it out: the engine always runs by priority, see spec.routing.priorities"
    ),
)
SPECULATIVE_CONFIG: Final = Reserved(
    ("specu~lative-config", "spec-me~thod", "spec-mo~del", "spec-t~okens"),
    "spec.engine.speculative says it already; keep one of the two",
    shorts=("sc",),
)

ADAPTER_FLAGS: Final = Reserved(
    ("(no-)?enable-lora", "max-loras", "lora-m~odules"),
    "spec.model.adapters and spec.model.adapterSlots say it already; keep one of the two",
)
KV_TRANSFER_CONFIG: Final = Reserved(
    ("kv-t~ransfer-config",), "spec.disaggregation says how blocks travel; keep one of the two"
)

_FLAG_END: Final = re.compile(r"[=.\s]")


def _rule(reserved: Reserved) -> Rule:
    return Rule(
        f"!self.matches(r'{reserved.pattern}')",
        f"is not allowed here; {reserved.remedy}",
        holds=lambda argument: not reserved.sets(argument),
        # The flag alone: a value such as a token may be secret, and these words reach status and events.
        words=lambda argument: f"{_FLAG_END.split(argument)[0]} is not allowed here; {reserved.remedy}",
    )


ARGUMENT_RULES: Final = tuple(_rule(reserved) for reserved in RESERVED)


def _checked(argument: str) -> str:
    for rule in ARGUMENT_RULES:
        rule.check(argument)
    return argument


Argument = Annotated[
    str,
    Field(min_length=1, max_length=2048, json_schema_extra=validations(ARGUMENT_RULES)),
    AfterValidator(_checked),
]


def refusal(argument: str) -> str | None:
    """Why an argument may not stand in spec.engine.args; None when it may."""
    return next((rule.message for rule in ARGUMENT_RULES if not rule.holds(argument)), None)
