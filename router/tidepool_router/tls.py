"""Certificates from files, read again when they change: ours for those who connect, and whom we trust beyond.

New files are used for new connections; those that stand keep what they have. Files that cannot be used are refused
in the log with the remedy, and what was before stays in force. A link that is swapped, as a mounted Secret's is,
leads to another file, and so counts as a change.
"""

import asyncio
import logging
import ssl
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path
from typing import Final

from tidepool_router.errors import SettingsError

_INTERVAL_SECONDS: Final = 1.0
_OLDEST: Final = ssl.TLSVersion.TLSv1_2
_PROTOCOLS: Final = ("http/1.1",)
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_KEY: Final = b"PRIVATE KEY-----"

_log: Final = logging.getLogger("tidepool.tls")

Mark = tuple[tuple[int, int, int], ...]


class TlsFiles(ABC):
    """Files that make a context; `newest` is the one to use.

    Raises SettingsError when they cannot be used at the start.
    """

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._refused: str | None = None
        self._mark, self.newest = self._load()

    async def run(self) -> None:
        """Apply each change. Ends by cancellation."""
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Load what has changed; what cannot be used is logged once, and tried again at the next look."""
        try:
            if _mark(self._paths) == self._mark:
                self._refused = None
                return
        except OSError:
            pass  # loading says which file and why
        try:
            self._mark, self.newest = self._load()
        except SettingsError as error:
            reason = str(error)
            if reason != self._refused:
                self._refused = reason
                _log.error("TLS files refused; those from before stay in force", extra={"reason": reason})
            return
        self._refused = None
        _log.info("TLS files applied", extra={"files": [str(path) for path in self._paths]})

    def _load(self) -> tuple[Mark, ssl.SSLContext]:
        """Blocks for a moment. Raises SettingsError that names the file and the remedy."""
        try:
            # The mark comes first: what is written while we read is seen as a change later.
            mark = _mark(self._paths)
            texts = [path.read_bytes() for path in self._paths]
        except OSError as error:
            message = f"the TLS file {error.filename} cannot be read ({error.strerror}); check path and rights"
            raise SettingsError(message) from error
        return mark, self._context(texts)

    @abstractmethod
    def _context(self, texts: list[bytes]) -> ssl.SSLContext:
        """The context of the files, whose contents are given as well; raises SettingsError."""


class OwnCertificate(TlsFiles):
    """What we show to those who connect to us. `context` is for a listener, which keeps it for ever.

    Each handshake is moved to the newest context by OpenSSL's callback for the server's name; it runs whether the
    client sent a name or not.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        super().__init__(certificate, key)
        self.context = self.newest
        self.context.sni_callback = self._move

    def _context(self, texts: list[bytes]) -> ssl.SSLContext:
        certificate, key = self._paths
        _expect(texts[0], _CERTIFICATE, certificate, "a certificate chain in PEM, our own certificate first")
        _expect(texts[1], _KEY, key, "a private key in PEM")
        if b"ENCRYPTED" in texts[1]:
            raise SettingsError(
                f"the key {key} is encrypted, and nobody is there to type its password; decrypt it"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _OLDEST
        context.set_alpn_protocols(_PROTOCOLS)
        try:
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            raise SettingsError(_pair_fault(error, certificate, key)) from error
        return context

    def _move(self, handshake: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        del name, context
        handshake.context = self.newest


class Trust(TlsFiles):
    """Whom we believe when we connect, and `server_name`, what a certificate must name.

    Without `authorities` those of the system count, as they are at the start; without a `server_name` the address
    that was connected to.
    """

    def __init__(self, authorities: Path | None = None, server_name: str | None = None) -> None:
        self.server_name = server_name
        super().__init__(*(() if authorities is None else (authorities,)))

    def _context(self, texts: list[bytes]) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = _OLDEST
        context.set_alpn_protocols(_PROTOCOLS)
        if not self._paths:
            context.load_default_certs()
            return context
        (path,) = self._paths
        _expect(texts[0], _CERTIFICATE, path, "the certificates of authorities in PEM")
        try:
            context.load_verify_locations(cafile=path)
        except ssl.SSLError as error:
            raise SettingsError(
                f"{path} holds no certificates that can be read ({error}); write it anew"
            ) from error
        return context


@cache
def system_trust() -> Trust:
    """Trust in the system's authorities; made when it is needed first, because they are many."""
    return Trust()


def _mark(paths: tuple[Path, ...]) -> Mark:
    return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in (path.stat() for path in paths))


def _expect(text: bytes, sign: bytes, path: Path, what: str) -> None:
    if sign not in text:
        raise SettingsError(f"the TLS file {path} is of another kind; it must hold {what}")


def _pair_fault(error: Exception, certificate: Path, key: Path) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"the key {key} does not belong to the certificate {certificate}; write both anew, as one pair"
    return f"{certificate} and {key} cannot be used together ({error}); write both anew"
