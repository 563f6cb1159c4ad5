"""What keeps files from being loaded. The operator's diagnosis reads these names from the end of the log.

LoadError
├── StorageAccessDeniedError   the store knows who asks, and refuses; or it does not know
├── StorageNotFoundError       no such bucket, or nothing below that prefix
├── StorageUnreachableError    no answer, or none that makes sense
├── HubUnreachableError        the same of the hub
└── FilesBrokenError           what came is not what was announced, or cannot be a file
"""

from tidepool_router.errors import RouterError


class LoadError(RouterError):
    """Base of all; the message names the address."""


class StorageAccessDeniedError(LoadError):
    """The credentials are wrong or missing, or do not allow it."""


class StorageNotFoundError(LoadError):
    """There is nothing at the address."""


class StorageUnreachableError(LoadError):
    """The store does not answer."""


class HubUnreachableError(LoadError):
    """The hub does not answer."""


class FilesBrokenError(LoadError):
    """A file has another size than its store says, changed while it came, or has an impossible name."""
