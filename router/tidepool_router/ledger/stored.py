"""What an engine's cache took in lately, as its sidecar tells gateways: those that did not send it know it too.

An entry is five bytes: the number of the border (ledger.chain.BORDERS) and the hash there, big-endian; or FILL and
a number of bytes, for room that an output took. A block that was there already is told when it is used. The text
is base64 of the newest entries, oldest first; a counter of all entries ever says which of them are new to who has
heard before. The tail of a prompt comes before its
beginning, in the order in which it will be forgotten.
"""

from base64 import b64decode, b64encode
from binascii import Error
from collections import deque
from struct import Struct
from typing import Final

from tidepool_router.ledger.chain import BORDERS

FILL: Final = 255
# A report goes out every 50 ms at most, and on each request: so many entries are two prompts of 128 kB.
_KEPT: Final = 192
_MOST_BYTES: Final = 0xFFFFFFFF
_ENTRY: Final = Struct(">BI")

Entries = list[tuple[int, int]]


class StoredLog:
    """The newest entries; `total` counts all."""

    def __init__(self) -> None:
        self._entries: deque[bytes] = deque(maxlen=_KEPT)
        self._text: str | None = ""
        self.total = 0

    def add(self, border: int, value: int) -> None:
        """One entry."""
        self._entries.append(_ENTRY.pack(border, min(value, _MOST_BYTES)))
        self.total += 1
        self._text = None

    @property
    def text(self) -> str:
        """As a report carries it; made when somebody asks after a change."""
        if self._text is None:
            self._text = b64encode(b"".join(self._entries)).decode()
        return self._text


def read_stored(text: str, new: int) -> Entries:
    """The last `new` entries; a text that cannot be read has none, for the figures beside it are good without."""
    if new <= 0:
        return []
    try:
        data = b64decode(text, validate=True)
    except (Error, ValueError):
        return []
    if len(data) % _ENTRY.size:
        return []
    entries = [(border, value) for border, value in _ENTRY.iter_unpack(data)][-new:]
    return [(border, value) for border, value in entries if border < len(BORDERS) or border == FILL]
