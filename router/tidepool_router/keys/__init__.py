"""API keys: what a key looks like, what it grants, how much of that is used up. No I/O and no clock.

The text of a key may not be kept here or leave this room: not in an object, a message, a log or a metric. What is
kept is its digest; what is shown is its id.
"""

from tidepool_router.keys.bucket import Bucket
from tidepool_router.keys.document import ApiKey, KeysError, read_keys
from tidepool_router.keys.form import Minted, mint
from tidepool_router.keys.grant import Grant
from tidepool_router.keys.ring import KeyRing

__all__ = ["ApiKey", "Bucket", "Grant", "KeyRing", "KeysError", "Minted", "mint", "read_keys"]
