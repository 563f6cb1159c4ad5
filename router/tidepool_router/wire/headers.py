"""Header names that the router acts on, and which of them pass."""

from typing import Final

from tidepool_api import contract

CRLF: Final = b"\r\n"
COLON: Final = b": "
GATEWAY_MARK: Final = contract.HEADER_GATEWAY.encode()
HANDED_ON_MARK: Final = contract.HEADER_HANDED_ON.encode()
PROOF: Final = contract.HEADER_PROOF.encode()
REQUEST_ID: Final = contract.HEADER_REQUEST_ID.encode()
PRIORITY: Final = contract.HEADER_PRIORITY.encode()
SESSION: Final = contract.HEADER_SESSION.encode()
DEBUG: Final = contract.HEADER_DEBUG.encode()
TENANT: Final = contract.HEADER_TENANT.encode()
DEADLINE: Final = contract.HEADER_DEADLINE.encode()
RUN: Final = contract.HEADER_RUN.encode()
TRANSFERRED: Final = contract.HEADER_TRANSFERRED.encode()
FACTS: Final = contract.HEADER_FACTS.encode()
AUTHORIZATION: Final = b"authorization"
API_KEY: Final = b"x-api-key"
LOAD: Final = contract.HEADER_LOAD.encode()
POD: Final = contract.HEADER_POD.encode()

# RFC 9110 7.6.1, and what proxies in the wild take for it. True: the router reads it but passes it on.
HOP_BY_HOP: Final = dict.fromkeys(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    ),
    False,
)
REQUEST_SPECIAL: Final = HOP_BY_HOP | {
    b"content-length": False,
    b"expect": False,
    GATEWAY_MARK: False,
    HANDED_ON_MARK: False,
    PROOF: False,
    LOAD: False,
    TRANSFERRED: False,
    FACTS: False,
    b"content-type": True,
    b"content-encoding": True,
    REQUEST_ID: False,  # the exchange writes it, the client's own or a new one
    PRIORITY: True,
    SESSION: True,
    DEBUG: False,
    TENANT: True,
    DEADLINE: True,
    RUN: True,
    AUTHORIZATION: True,
    API_KEY: True,
}
ANSWER_SPECIAL: Final = HOP_BY_HOP | {
    b"content-length": False,
    LOAD: False,
    POD: True,
    b"content-type": True,
    b"content-encoding": True,
    REQUEST_ID: False,  # the router sets it, so that a client sees one id and not two
}
# Options of Connection that name no header.
_USUAL_CONNECTIONS: Final = frozenset((b"keep-alive", b"Keep-Alive", b"close", b"Close"))
_CONNECTION_OPTIONS: Final = frozenset((b"close", b"keep-alive", b"upgrade"))
# What may differ between the heads of one connection without a look at them by the parser.
REQUEST_VARIES: Final = frozenset((b"content-length", REQUEST_ID))
ANSWER_VARIES: Final = frozenset((b"content-length", b"date", REQUEST_ID, LOAD))
# Heads with these are parsed each time: their framing is not content-length alone, or they end the connection.
NEVER_REPEATED: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"trailer"))
# Answers without a body, whatever their content-length says; and the interim ones.
WITHOUT_LENGTH: Final = frozenset((100, 101, 102, 103, 204, 304))
# A shape that never came again was learned in vain; the next one is learned after so many parsed heads.
LEARN_EVERY: Final = 16


def without_named(lines: list[bytes], connection: bytes) -> list[bytes]:
    """The lines without those that the Connection header names as hop-by-hop."""
    if connection in _USUAL_CONNECTIONS:
        return lines
    named = {option.strip().lower() for option in connection.split(b",")} - _CONNECTION_OPTIONS
    if not named:
        return lines
    kept: list[bytes] = []
    for at in range(0, len(lines), 4):
        if lines[at] not in named:
            kept += lines[at : at + 4]
    return kept
