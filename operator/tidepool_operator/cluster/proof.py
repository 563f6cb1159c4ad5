"""The operator's own proof for sidecars and gateways: its pod's projected token, as the header that carries it."""

import asyncio
from pathlib import Path

from tidepool_api import contract


class OwnProof:
    """`path` None: there is none to show."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    async def headers(self) -> dict[str, str]:
        """The kubelet renews the file, so it is read each time; without one we are believed what strangers are."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> dict[str, str]:
        if self._path is None:
            return {}
        try:
            return {contract.HEADER_PROOF: self._path.read_text(encoding="ascii").strip()}
        except (OSError, UnicodeDecodeError):
            return {}
