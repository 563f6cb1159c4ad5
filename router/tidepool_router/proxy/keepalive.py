"""Peers that vanish without a word: a node that lost its power or its network sends neither FIN nor RST."""

import socket
from typing import Any, Final

# A silent peer is asked after so long, then every so often; after so many questions without an answer it is dead.
# Half a minute in all, where a stream would else be waited for as long as its engine may be silent.
_IDLE_SECONDS: Final = 15
_INTERVAL_SECONDS: Final = 5
_QUESTIONS: Final = 3
# While sent bytes are unacknowledged nothing is asked: so long they may be.
_UNACKNOWLEDGED_MILLISECONDS: Final = (_IDLE_SECONDS + _QUESTIONS * _INTERVAL_SECONDS) * 1000


def _there(**options: int) -> tuple[tuple[int, int], ...]:
    """Those that the system knows; where it lacks one the timeouts of the data path are left."""
    return tuple((getattr(socket, name), value) for name, value in options.items() if hasattr(socket, name))


_KEEP_ALIVE: Final = _there(TCP_KEEPIDLE=_IDLE_SECONDS, TCP_KEEPINTVL=_INTERVAL_SECONDS, TCP_KEEPCNT=_QUESTIONS)
_UNACKNOWLEDGED: Final = _there(TCP_USER_TIMEOUT=_UNACKNOWLEDGED_MILLISECONDS)


def notice_death(connection: Any, *, slow_reader: bool) -> None:  # noqa: ANN401 - a socket, or a loop's stand-in
    """Let the kernel close the connection when the other side is gone; a socket that listens hands it on.

    `slow_reader`: the other side may take its bytes as slowly as it likes, for Linux counts a receive window of
    zero as unacknowledged too.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE if slow_reader else _KEEP_ALIVE + _UNACKNOWLEDGED:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
