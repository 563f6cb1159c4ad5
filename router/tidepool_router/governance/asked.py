"""A request as rules see it: each part is read when a rule first asks for it."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from tidepool_router.facts import RequestFacts

_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_NULL: Final = b"null"


class Asked:
    """`headers` is flat, as the wire has it: name in lower case, separator, value, line end, and so on.

    `key` is what shares go by: the session, else the request's id.
    """

    __slots__ = ("_body", "_headers", "_members", "_prompt_tokens", "facts", "key")

    def __init__(
        self,
        facts: RequestFacts,
        headers: Sequence[bytes],
        body: Callable[[], bytes],
        prompt_tokens: Callable[[], int],
        key: bytes,
    ) -> None:
        self.facts = facts
        self.key = key
        self._headers = headers
        self._body = body
        self._prompt_tokens = prompt_tokens
        self._members: dict[str, msgspec.Raw] | None = None

    @property
    def prompt_tokens(self) -> int:
        """About so many."""
        return self._prompt_tokens()

    def header(self, name: bytes) -> list[str]:
        """Values of every line of that name."""
        headers = self._headers
        found = [headers[at + 2] for at in range(0, len(headers), 4) if headers[at] == name]
        return [value.decode("latin-1") for value in found]

    def parameter(self, name: str) -> str | None:
        """A top-level member of the body as text; None when it is missing or null, or the body is no object."""
        if self._members is None:
            try:
                self._members = _decode(self._body())
            except (msgspec.DecodeError, RecursionError):
                self._members = {}  # a form, or what only a lenient parser reads
        raw = bytes(self._members.get(name, _NULL))
        if raw == _NULL:
            return None
        return _decode_text(raw) if raw[:1] == b'"' else raw.decode("utf-8", "replace")
