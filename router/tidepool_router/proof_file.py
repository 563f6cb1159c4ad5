"""Our own proof: the pod's projected token, which the kubelet renews, as the header line that carries it."""

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidepool_router.wire.headers import COLON, CRLF, PROOF

# The kubelet renews an hour's token twelve minutes before its end.
_INTERVAL_SECONDS: Final = 10.0
_TOKEN: Final = re.compile(rb"[A-Za-z0-9_.\-]{1,8192}")

_log: Final = logging.getLogger("tidepool.router")


class ProofFile:
    """Gives `apply` the line of each new token; what cannot be used is told once, and what was before stays."""

    def __init__(self, path: Path, apply: Callable[[bytes], None]) -> None:
        self._path = path
        self._apply = apply
        self._line = b""
        self._refused = ""

    async def run(self) -> None:
        """Look again and again. Ends by cancellation."""
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Read it once."""
        try:
            token = self._path.read_bytes().strip()
        except OSError as error:
            self._refuse(f"cannot be read ({error.strerror})")
            return
        if not _TOKEN.fullmatch(token):
            self._refuse("holds no token")
            return
        self._refused = ""
        line = PROOF + COLON + token + CRLF
        if line != self._line:
            self._line = line
            self._apply(line)

    def _refuse(self, reason: str) -> None:
        if reason != self._refused:
            self._refused = reason
            _log.warning(
                "the proof that others ask for cannot be used; they believe nothing but the defaults meanwhile",
                extra={"file": str(self._path), "reason": reason},
            )
