"""One request as the simulator knows it: what the engine will count, and the body that a client would send."""

from dataclasses import dataclass
from random import Random
from typing import Final

import msgspec

from tidepool_router.facts import Api, RequestFacts
from tidepool_router.wire.body import inspect

MODEL: Final = "sim"
# Names of prompt blocks are given at this granularity, whatever the engine's; it divides a trace's 512.
NAME_TOKENS: Final = 128
_PATH: Final = "/v1/chat/completions"
_TEXT_TOKENS: Final = 512  # text is made in pieces of so many tokens, as Mooncake's hashes name it


@dataclass(slots=True, eq=False)
class Request:
    """`pieces` names the prompt's text, 512 tokens each (the last one shorter): equal names are equal text.

    `opening` is what a router that looks only at the beginning of the user's first message would hash.
    """

    number: int
    prompt_tokens: int
    output_tokens: int
    pieces: list[int]
    opening: int
    max_tokens: int | None = None
    tenant: str | None = None
    priority: int = 0
    session: str | None = None
    names: list[int] = None  # type: ignore[assignment]  # filled below
    _facts: RequestFacts | None = None

    def __post_init__(self) -> None:
        """Names of all full blocks of NAME_TOKENS tokens."""
        per_piece = _TEXT_TOKENS // NAME_TOKENS
        full = self.prompt_tokens // NAME_TOKENS
        names = [piece * per_piece + i for piece in self.pieces for i in range(per_piece)]
        self.names = names[:full]

    @property
    def facts(self) -> RequestFacts:
        """What the production code reads in the body; read once, and only when somebody asks."""
        if self._facts is None:
            self._facts = read_facts(self)
        return self._facts


def read_facts(request: Request) -> RequestFacts:
    """The body through the router's own parser, with what the gateway adds from headers and keys."""
    facts = inspect(Api.CHAT, _PATH, body_of(request), session=request.session)
    changes = {"priority": request.priority, "tenant": request.tenant}
    known = {name: value for name, value in changes.items() if name in RequestFacts.__struct_fields__}
    return msgspec.structs.replace(facts, **known)


def body_of(request: Request) -> bytes:
    """A chat of one message whose text shares a prefix with another's exactly as far as their tokens do."""
    left = request.prompt_tokens
    texts: list[bytes] = []
    for piece in request.pieces:
        text = _text(piece)
        # A piece cut short has its share of the text, so that bytes and tokens end together.
        texts.append(text if left >= _TEXT_TOKENS else text[: max(1, len(text) * left // _TEXT_TOKENS)])
        left -= _TEXT_TOKENS
    cap = b"" if request.max_tokens is None else b'"max_tokens":%d,' % request.max_tokens
    head = b'{"model":"%b","stream":true,%b"messages":[{"role":"user","content":"' % (MODEL.encode(), cap)
    return head + b"".join(texts) + b'"}]}'


def _text(piece: int) -> bytes:
    """About four bytes a token; how many exactly differs from text to text, as with real tokenizers."""
    size = round(_TEXT_TOKENS * 4 * Random(piece).lognormvariate(0.0, 0.1))
    word = b"%x " % (piece * 0x9E3779B1 & 0xFFFFFFFF)
    return (word * (size // len(word) + 1))[:size]
