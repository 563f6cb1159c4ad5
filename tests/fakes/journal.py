"""What an engine double was asked, byte for byte, and how each request ended; the oldest fall out."""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from fakes.faults import Fault


class Ending(StrEnum):
    """How a request ended on the engine."""

    OPEN = "open"
    ANSWERED = "answered"
    REFUSED = "refused"  # answered with an error
    ABORTED = "aborted"  # the client went away first
    FAULT = "fault"


@dataclass(slots=True, eq=False)
class Record:
    """One request as it was received."""

    method: str
    path: str  # with the query
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    peer: tuple[str, int] = ("", 0)
    ending: Ending = Ending.OPEN
    output_tokens: int = 0
    fault: Fault | None = None  # that it met

    def header(self, name: str) -> str | None:
        """First value of a header; None when it is absent."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), None)


@dataclass(slots=True)
class Journal:
    """Bounded by count and by bytes of bodies."""

    max_records: int = 10_000
    max_bytes: int = 64 * 1024 * 1024
    records: deque[Record] = field(default_factory=deque)
    total: int = 0
    _bytes: int = 0

    def add(self, record: Record) -> Record:
        """Keep a record; older ones make room."""
        self.records.append(record)
        self.total += 1
        self._bytes += len(record.body)
        while self.records and (len(self.records) > self.max_records or self._bytes > self.max_bytes):
            self._bytes -= len(self.records.popleft().body)
        return record

    def of(self, path: str) -> list[Record]:
        """Records whose path begins so."""
        return [record for record in self.records if record.path.startswith(path)]

    def count(self, ending: Ending) -> int:
        """Records that ended so."""
        return sum(record.ending is ending for record in self.records)
