"""What a key looks like: `tp-<id>-<secret>`. The id finds the key, the digest proves it.

The secret has 240 random bits, so a plain SHA-256 keeps it: slow hashes protect what people choose, and would cost
each request a tenth of a second (docs/decisions/api-keys.md).
"""

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Final

# Whole numbers of base32 characters: 8 and 48.
ID_BYTES: Final = 5
SECRET_BYTES: Final = 30
ID_PATTERN: Final = r"^[a-z2-7]{8}$"
DIGEST_PATTERN: Final = r"^[0-9a-f]{64}$"
_PREFIX: Final = "tp"
_LENGTH: Final = len(_PREFIX) + 1 + 8 + 1 + 48


@dataclass(frozen=True, slots=True)
class Minted:
    """A new key. `text` is for the client alone and is nowhere kept."""

    id: str
    text: str = field(repr=False)
    digest: str


def mint(random_bytes: bytes) -> Minted:
    """The key that so many (ID_BYTES + SECRET_BYTES) bytes of a source fit for secrets make."""
    if len(random_bytes) != ID_BYTES + SECRET_BYTES:
        raise ValueError(f"a key is made of {ID_BYTES + SECRET_BYTES} bytes, not of {len(random_bytes)}")
    name, secret = (base64.b32encode(part).decode().lower() for part in _halves(random_bytes))
    text = f"{_PREFIX}-{name}-{secret}"
    return Minted(name, text, hashlib.sha256(text.encode()).hexdigest())


def id_of(presented: bytes) -> str | None:
    """The id that a presented key claims; None when it does not look like a key at all."""
    if len(presented) != _LENGTH or presented[:3] != b"tp-" or presented[11:12] != b"-":
        return None
    return presented[3:11].decode("latin-1")


def _halves(random_bytes: bytes) -> tuple[bytes, bytes]:
    return random_bytes[:ID_BYTES], random_bytes[ID_BYTES:]
