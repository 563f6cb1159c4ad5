"""Where the requests for a pool's model go besides the pool itself: rules, splits, mirroring, fallback.

In a ModelPool `pool` names another pool of the same namespace; in a fleet file, and in what the operator tells
gateways, it is the name that the document has.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from tidepool_api.kube import ATOMIC_LIST, Document, Rule, Ruled, ShortText, map_list, matching, patterned, unique
from tidepool_api.units import DurationUpToTenSeconds

PoolName = Annotated[str, Field(min_length=1, max_length=253)]
_HEADER: Final = r"^[A-Za-z0-9!#$%&*+.^_|~-]+$"
_HEADER_RULE: Final = matching(_HEADER, "is not the name of a header; write it like x-tier")
HeaderName = Annotated[
    str,
    Field(min_length=1, max_length=128, json_schema_extra=patterned(_HEADER, _HEADER_RULE)),
    AfterValidator(_HEADER_RULE.check),
]
_URL: Final = r"^https?://[^/?#@\s]+(/[^\s]*)?$"
_URL_RULE: Final = matching(_URL, "is not an address without a user; write it like http://classifier.tools/route")
Url = Annotated[
    str,
    Field(min_length=8, max_length=1024, json_schema_extra=patterned(_URL, _URL_RULE)),
    AfterValidator(_URL_RULE.check),
]
RuleName = Annotated[str, Field(min_length=1, max_length=63)]
Values = Annotated[tuple[ShortText, ...], Field(max_length=16, json_schema_extra=ATOMIC_LIST)]

MAX_SHARES: Final = 8

SUM: Final = Rule(
    # Term by term: Kubernetes 1.29 takes sum() of a mapped list for endless.
    "!has(self.split) || "
    + " + ".join(f"(self.split.size() > {at} ? self.split[{at}].percent : 0)" for at in range(MAX_SHARES))
    + " <= 100",
    "has shares of more than 100 percent in sum; lower some",
    holds=lambda traffic: sum(share.percent for share in traffic.split) <= 100,
    field=".split",
)
ONE_WAY: Final = Rule(
    "has(self.pool) != has(self.classifier)",
    "needs either pool or classifier; set one of the two",
    holds=lambda rule: (rule.pool is None) != (rule.classifier is None),
)


class RequestType(StrEnum):
    """Which of the inference APIs a request calls."""

    CHAT = "Chat"
    COMPLETIONS = "Completions"
    RESPONSES = "Responses"
    MESSAGES = "Messages"
    COUNT_TOKENS = "CountTokens"
    EMBEDDINGS = "Embeddings"
    RERANK = "Rerank"
    SCORE = "Score"
    TRANSCRIPTIONS = "Transcriptions"
    TOKENIZE = "Tokenize"


class Share(Document):
    """A part of the requests."""

    pool: PoolName = Field(description="The pool that gets them.")
    percent: int = Field(ge=0, le=100, description="So many of a hundred.")


class Mirror(Document):
    """A part of the requests is sent a second time, elsewhere, and the answers are thrown away."""

    pool: PoolName = Field(description="The pool that gets the copies.")
    percent: int = Field(default=100, ge=0, le=100, description="So many of a hundred.")


class HeaderMatch(Document):
    """A header of the request."""

    name: HeaderName = Field(description="Name of the header; its case does not matter.")
    values: Values = Field(default=(), description="One of these, exactly. Empty: it is there.")


class ParameterMatch(Document):
    """A member of the request's body, such as reasoning_effort."""

    name: Annotated[str, Field(min_length=1, max_length=128)] = Field(description="Name of the top-level member.")
    values: Values = Field(
        default=(),
        description="One of these: a text itself, a number or true and false as JSON writes them. Empty: it is "
        "there and not null.",
    )


class When(Document):
    """What must hold of a request, all of it. Empty: it holds of every request."""

    models: Values = Field(default=(), description="The client asked for one of these names of the pool.")
    types: Annotated[tuple[RequestType, ...], Field(max_length=16, json_schema_extra=ATOMIC_LIST)] = Field(
        default=(), description="The request calls one of these APIs."
    )
    min_prompt_tokens: int | None = Field(
        default=None, ge=0, le=100_000_000, description="The prompt has about as many tokens, or more."
    )
    max_prompt_tokens: int | None = Field(
        default=None, ge=0, le=100_000_000, description="The prompt has about as many tokens, or fewer."
    )
    headers: Annotated[tuple[HeaderMatch, ...], Field(max_length=8, json_schema_extra=ATOMIC_LIST)] = Field(
        default=(), description="All of these headers."
    )
    parameters: Annotated[tuple[ParameterMatch, ...], Field(max_length=8, json_schema_extra=ATOMIC_LIST)] = Field(
        default=(), description="All of these members of the body."
    )


class ClassifiedPool(Document):
    """One class of requests."""

    name: ShortText = Field(min_length=1, description="The class, as the classifier calls it.")
    pool: PoolName = Field(description="The pool that gets them.")


class Classifier(Document):
    """An HTTP endpoint that is sent the request's body and answers {"class": NAME}."""

    url: Url = Field(description="Where to POST the body; at a host that an administrator allowed.")
    timeout: DurationUpToTenSeconds = Field(
        default="300ms", description="Longest wait for its answer; the request waits as long."
    )
    classes: Annotated[
        tuple[ClassifiedPool, ...],
        Field(min_length=1, max_length=16, json_schema_extra=map_list("name")),
        unique("name"),
    ] = Field(
        description="Which class goes where. Another class, no answer in time or a bad one: the next rules decide."
    )


class TrafficRule(Ruled):
    """Sends some requests elsewhere."""

    RULES = (ONE_WAY,)

    name: RuleName = Field(description="What it is called in metrics.")
    when: When = Field(default_factory=When, description="Which requests it is about.")
    pool: PoolName | None = Field(default=None, description="The pool that gets them.")
    classifier: Classifier | None = Field(default=None, description="Whom to ask which pool gets them.")


class Traffic(Ruled):
    """What the gateway does with requests for this pool's names: the first rule that holds, else the split.

    What it names is where requests end: the traffic of those pools is not looked at.
    """

    RULES = (SUM,)

    rules: Annotated[
        tuple[TrafficRule, ...], Field(max_length=16, json_schema_extra=map_list("name")), unique("name")
    ] = Field(default=(), description="Which requests go to another pool, first of all.")
    split: Annotated[
        tuple[Share, ...], Field(max_length=MAX_SHARES, json_schema_extra=map_list("pool")), unique("pool")
    ] = Field(default=(), description="Shares of the rest for other pools; what is left stays here.")
    mirror: Mirror | None = Field(default=None, description="Copies for another pool, whose answers nobody sees.")
    fallback: Annotated[
        tuple[PoolName, ...], Field(max_length=4, json_schema_extra={"x-kubernetes-list-type": "set"}), unique()
    ] = Field(
        default=(), description="Pools to try, in this order, when the chosen one is down or over its queue."
    )

    @property
    def asks(self) -> bool:
        """Whether any rule asks a classifier."""
        return any(rule.classifier is not None for rule in self.rules)

    @property
    def targets(self) -> tuple[str, ...]:
        """Every pool that is named."""
        named = [share.pool for share in self.split] + list(self.fallback)
        named += [self.mirror.pool] if self.mirror is not None else []
        for rule in self.rules:
            named += [rule.pool] if rule.pool is not None else []
            named += [each.pool for each in rule.classifier.classes] if rule.classifier is not None else []
        return tuple(dict.fromkeys(named))

    def within(self, namespace: str) -> "Traffic":
        """With the names of pools as they are outside their namespace."""

        def outside(pool: str) -> str:
            return f"{namespace}/{pool}"

        mirror = self.mirror
        return self.model_copy(
            update={
                "rules": tuple(_moved(rule, outside) for rule in self.rules),
                "split": tuple(share.model_copy(update={"pool": outside(share.pool)}) for share in self.split),
                "mirror": None if mirror is None else mirror.model_copy(update={"pool": outside(mirror.pool)}),
                "fallback": tuple(map(outside, self.fallback)),
            }
        )


def _moved(rule: TrafficRule, outside: Callable[[str], str]) -> TrafficRule:
    if rule.classifier is None:
        return rule.model_copy(update={"pool": outside(rule.pool or "")})
    classes = tuple(each.model_copy(update={"pool": outside(each.pool)}) for each in rule.classifier.classes)
    return rule.model_copy(update={"classifier": rule.classifier.model_copy(update={"classes": classes})})
