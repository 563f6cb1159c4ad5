"""What the router knows of a request before any engine has seen it. PURE: no I/O, no clock."""

from enum import StrEnum

import msgspec


class Api(StrEnum):
    """Family of an inference path; it decides where the model stands and what errors look like."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"  # of Anthropic's API
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    TRANSCRIPTIONS = "transcriptions"
    TOKENIZE = "tokenize"
    OTHER = "other"


class RequestFacts(msgspec.Struct, frozen=True, gc=False):
    """One request as routing sees it. A msgspec Struct, because it is made for every request: a fifth of the time.

    `prompt_bytes` is the size of what becomes prompt tokens (messages, prompt, input, tools), `body_bytes` of the
    whole body. `max_tokens` is the client's cap on the output of one choice, `choices` how many answers it asked
    for (`n`). `priority` is the higher the sooner. `asked_usage` says whether a stream will carry usage because
    the client asked for it. `tenant` is whose share of a crowded pool the request takes (None: of all who
    name none), `deadline_seconds` the time from its arrival after which its answer is worth nothing. `prefix` has
    the hashes of the prompt's beginnings (ledger.chain), `adapter` is the LoRA adapter that the request asks for.
    `run`, of a request that is one of many, has the tokens that the whole still needs and the seconds since it
    began. `engine_priority` is what the body itself tells the engine (the lower the sooner), None when it tells
    nothing.
    """

    api: Api
    path: str
    model: str
    stream: bool = False
    max_tokens: int | None = None
    choices: int = 1
    prompt_bytes: int = 0
    body_bytes: int = 0
    priority: int = 0
    session: str | None = None
    asked_usage: bool = False
    tenant: str | None = None
    deadline_seconds: float | None = None
    prefix: tuple[int, ...] = ()
    adapter: str | None = None
    engine_priority: int | None = None
    run: tuple[int, float] | None = None
