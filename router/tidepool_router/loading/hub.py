"""Models of the Hugging Face hub, by its own client."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidepool_router.loading.choice import needed
from tidepool_router.loading.errors import HubUnreachableError

_AT_ONCE: Final = 4


def fetch(repository: str, revision: str | None, into: Path) -> Mapping[str, int]:
    """The files that an engine needs, all of one commit; sizes by name.

    Raises HubUnreachableError, huggingface_hub's errors for what the hub refuses, and OSError.
    """
    import httpx2
    from huggingface_hub import HfApi, snapshot_download

    # What the client takes for its default was read when it was imported.
    endpoint = os.environ.get("HF_ENDPOINT") or None
    try:
        found = HfApi(endpoint).model_info(repository, revision=revision)
        names = needed(entry.rfilename for entry in found.siblings or ())
        # Patterns are of fnmatch; a name that has its signs would be read as one.
        patterns = ["".join(f"[{letter}]" if letter in "[]*?" else letter for letter in name) for name in names]
        snapshot_download(
            repository,
            revision=found.sha,
            local_dir=into,
            allow_patterns=patterns,
            max_workers=_AT_ONCE,
            endpoint=endpoint,
        )
    except httpx2.TransportError as error:
        raise HubUnreachableError(f"hf://{repository}: {type(error).__name__}: {error}") from error
    shutil.rmtree(into / ".cache", ignore_errors=True)  # the client's notes, good for an interrupted download
    return {name: (into / name).stat().st_size for name in names}
