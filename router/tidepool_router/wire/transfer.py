"""Requests in two steps: the bodies by which vLLM engines pass a prompt's KV blocks from one to the other.

The first step asks one engine for a single token and for the blocks to be kept; its answer says where they are,
which the second step tells the engine that goes on. Fields as in vLLM 0.32: `request_finished` of
v1/nixl/pull_scheduler.py, and the field `kv_transfer_params` of its requests and answers.
"""

import json
from typing import Any, Final

import msgspec

from tidepool_router.facts import Api
from tidepool_router.wire.body import members_of

FIELD: Final = "kv_transfer_params"
# What says how long the answer may be: the first step's is one token, and not a stream.
_LENGTHS: Final = frozenset(
    (FIELD, "max_tokens", "max_completion_tokens", "min_tokens", "stream", "stream_options")
)
_FIRST_STEP: Final = (
    b'{"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null},"max_tokens":1,"stream":false'
)
_ONE_TOKEN_OF_CHAT: Final = b',"max_completion_tokens":1'
# With other values than these an answer needs more of the prompt than its blocks, or there are several.
_WHOLE: Final[dict[str, tuple[bytes, ...]]] = {
    "best_of": (b"null", b"1"),
    "echo": (b"null", b"false"),
    "n": (b"null", b"1"),
    "prompt_embeds": (b"null",),
    "prompt_logprobs": (b"null",),
    "return_token_ids": (b"null", b"false"),
    "use_beam_search": (b"null", b"false"),
}
_APIS: Final = frozenset((Api.CHAT, Api.COMPLETIONS, Api.MESSAGES))


class _Told(msgspec.Struct):
    kv_transfer_params: dict[str, Any] | None = None


def names_transfer(body: bytes) -> bool:
    """Whether a body says where KV blocks are, which is for the router alone to say.

    Raises ValueError when it is no JSON object.
    """
    if FIELD.encode() not in body and b"\\u" not in body:
        return False
    return any(key == FIELD for key, _, _ in members_of(body))


def first_step(api: Api, body: bytes) -> bytes | None:
    """The body that has the prompt computed and its blocks kept; None where one engine must do it all.

    Raises ValueError when it is no JSON object.
    """
    if api not in _APIS:
        return None
    parts = [_FIRST_STEP, _ONE_TOKEN_OF_CHAT if api is Api.CHAT else b""]
    for key, start, end in members_of(body):
        value = body[start:end]
        if value not in _WHOLE.get(key, (value,)):
            return None
        if key == "prompt" and not _is_one_prompt(value):
            return None
        if key not in _LENGTHS:
            parts += (b",", json.dumps(key).encode(), b":", value)
    parts.append(b"}")
    return b"".join(parts)


def second_step(body: bytes, told: bytes) -> bytes:
    """The body with what the first step's answer told; every other byte stays."""
    brace = body.index(b"{") + 1
    comma = b"" if body[brace : brace + 64].lstrip()[:1] == b"}" else b","
    return b'%b"kv_transfer_params":%b%b%b' % (body[:brace], told, comma, body[brace:])


def whole_again(body: bytes) -> bytes:
    """A second step's body without what the first one told: the engine that gets it computes the prompt itself.

    It is for whoever sends it once more: the blocks may have been fetched, and given away since.
    """
    found = [(start, end) for key, start, end in members_of(body) if key == FIELD]
    for start, end in reversed(found):
        body = body[:start] + b"null" + body[end:]
    return body


def told_by(answer: bytes) -> bytes | None:
    """What a first step's answer says of the blocks, as JSON; None when it says nothing of use."""
    try:
        told = msgspec.json.decode(answer, type=_Told).kv_transfer_params
    except (msgspec.DecodeError, RecursionError):
        return None
    if not told or not told.get("do_remote_prefill") or not told.get("remote_engine_id"):
        return None
    return msgspec.json.encode(told)


def _is_one_prompt(value: bytes) -> bool:
    """A text, or the ids of its tokens; a list of such is as many prompts, with an answer each."""
    return not value.startswith(b"[") or value[1:].lstrip()[:1] not in (b"[", b'"')
