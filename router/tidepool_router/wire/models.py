"""What is read of bodies, as msgspec decodes it.

Apart from those who read it: compiled classes have no annotations, from which msgspec makes its decoders.
All other members are skipped. Of requests, values are as loose as clients are.
"""

from typing import Any, Final

import msgspec

NOTHING: Final = msgspec.Raw(b"")


class Body(msgspec.Struct):
    """A request's members that routing reads."""

    model: Any = None
    stream: Any = None
    stream_options: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    priority: Any = None
    cache_salt: Any = None
    messages: msgspec.Raw = NOTHING
    prompt: msgspec.Raw = NOTHING
    input: msgspec.Raw = NOTHING
    tools: msgspec.Raw = NOTHING
    documents: msgspec.Raw = NOTHING
    system: msgspec.Raw = NOTHING
    instructions: msgspec.Raw = NOTHING
    query: msgspec.Raw = NOTHING
    queries: msgspec.Raw = NOTHING
    text_1: msgspec.Raw = NOTHING
    text_2: msgspec.Raw = NOTHING
    texts: msgspec.Raw = NOTHING


class Told(msgspec.Struct, omit_defaults=True):
    """What a gateway tells of a body that it has read to its end."""

    model: str
    stream: bool = False
    max_tokens: int | None = None
    n: int = 1


class Counts(msgspec.Struct):
    """Tokens under the names of all APIs."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    prompt_tokens_details: dict[str, Any] | None = None
    input_tokens_details: dict[str, Any] | None = None


class Inner(msgspec.Struct):
    """An answer within an event."""

    usage: Counts | None = None


class Meta(msgspec.Struct):
    """Cohere's place for it (vLLM's /v2/embed)."""

    billed_units: Counts | None = None


class Answer(msgspec.Struct):
    """A whole answer."""

    usage: Counts | None = None
    meta: Meta | None = None


class Event(msgspec.Struct):
    """The members of a stream's event that matter here: three APIs put their usage in three places."""

    choices: msgspec.Raw = NOTHING
    usage: Counts | None = None
    message: Inner | None = None
    response: Inner | None = None


class Fault(msgspec.Struct):
    """The members by which the four APIs tell an error."""

    type: Any = None
    error: msgspec.Raw = NOTHING


decode_event: Final = msgspec.json.Decoder(Event).decode
decode_answer: Final = msgspec.json.Decoder(Answer).decode
decode_fault: Final = msgspec.json.Decoder(Fault).decode
decode_counts: Final = msgspec.json.Decoder(Counts).decode
decode_told: Final = msgspec.json.Decoder(Told).decode
decode_body: Final = msgspec.json.Decoder(Body).decode
