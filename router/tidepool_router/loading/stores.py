"""Models in object stores: s3:// and gs://, by one client.

Who asks, where and how is the client's own reading of the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL, AWS_SKIP_SIGNATURE; GOOGLE_SERVICE_ACCOUNT_KEY, GOOGLE_BASE_URL,
GOOGLE_SKIP_SIGNATURE; or what the cloud gives to the pod's service account.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidepool_router.loading.choice import needed
from tidepool_router.loading.errors import (
    FilesBrokenError,
    LoadError,
    StorageAccessDeniedError,
    StorageNotFoundError,
    StorageUnreachableError,
)

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import GCSStore, S3Store

_RANGE_BYTES: Final = 32 * 1024 * 1024
_AT_ONCE: Final = 8  # ranges: their bytes are what the process holds
_RETRIES: Final = 5
_TIMEOUT: Final = timedelta(seconds=300)
_CONNECT: Final = timedelta(seconds=10)
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})\b")
_PLAIN: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "GOOGLE_BASE_URL")


@dataclass(frozen=True, slots=True)
class Stored:
    """One object: its key in the bucket, its size, and what tells this version of it from another."""

    key: str
    size: int
    tag: str | None


def fetch(uri: str, into: Path) -> Mapping[str, int]:
    """All files that an engine needs below the address; sizes by name. Raises LoadError and OSError."""
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    with _told(uri):
        store = _store(scheme, bucket)
        found = _listed(store, prefix)
        names = needed(found)
        if not names:
            raise StorageNotFoundError(f"{uri}: there are no files")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for name in names:
                _file(store, found[name], into / name, pool)
    return {name: found[name].size for name in names}


def _store(scheme: str, bucket: str) -> "S3Store | GCSStore":
    from obstore.store import GCSStore, S3Store

    plain = any(os.environ.get(name, "").startswith("http://") for name in _PLAIN)
    kind = S3Store if scheme == "s3" else GCSStore
    return kind(
        bucket,
        client_options={"allow_http": plain, "timeout": _TIMEOUT, "connect_timeout": _CONNECT},
        retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=60)},
    )


def _listed(store: "S3Store | GCSStore", prefix: str) -> dict[str, Stored]:
    """Objects by their name below the prefix; one that only stands for a folder is left out."""
    import obstore

    found = {}
    for batch in obstore.list(store, prefix=prefix or None):
        for entry in batch:
            name = entry["path"].removeprefix(prefix).lstrip("/")
            if name and not (entry["size"] == 0 and entry["path"].endswith("/")):
                found[name] = Stored(entry["path"], entry["size"], entry["e_tag"])
    return found


def _file(store: "S3Store | GCSStore", stored: Stored, target: Path, pool: ThreadPoolExecutor) -> None:
    """One file, range by range at the same time; a whole one of the right size is not asked for again."""
    if target.is_file() and target.stat().st_size == stored.size:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    coming = target.with_name(f".{target.name}.coming")
    handle = os.open(coming, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    try:
        starts = range(0, stored.size, _RANGE_BYTES)
        for _ in pool.map(lambda start: _range(store, stored, start, handle), starts):
            pass
    finally:
        os.close(handle)
    coming.rename(target)


def _range(store: "S3Store | GCSStore", stored: Stored, start: int, handle: int) -> None:
    import obstore

    end = min(start + _RANGE_BYTES, stored.size)
    options: GetOptions = {"range": (start, end)}
    if stored.tag:
        options["if_match"] = stored.tag
    data = memoryview(obstore.get(store, stored.key, options=options).bytes())
    if len(data) != end - start:
        raise FilesBrokenError(f"{stored.key}: {len(data)} bytes came instead of {end - start}")
    while data:
        written = os.pwrite(handle, data, start)
        data, start = data[written:], start + written


@contextlib.contextmanager
def _told(uri: str) -> Iterator[None]:
    """The client's errors in words of ours."""
    from obstore.exceptions import (
        BaseError,
        InvalidPathError,
        NotFoundError,
        PermissionDeniedError,
        PreconditionError,
        UnauthenticatedError,
    )

    try:
        yield
    except PreconditionError as error:
        raise FilesBrokenError(f"{uri}: a file changed while it came: {_first(error)}") from error
    except BaseError as error:
        # Of a list it keeps no kind of error, only what the store has answered.
        status = _STATUS.search(str(error))
        code = status[1] if status else ""
        kind: type[LoadError] = StorageUnreachableError
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or code in ("401", "403"):
            kind = StorageAccessDeniedError
        elif isinstance(error, NotFoundError) or code == "404":
            kind = StorageNotFoundError
        elif isinstance(error, InvalidPathError):
            kind = FilesBrokenError
        raise kind(f"{uri}: {_first(error)}") from error


def _first(error: Exception) -> str:
    """Its own words without the dump of causes that follows."""
    return " ".join(str(error).partition("\n\nDebug source")[0].split())[:500]
