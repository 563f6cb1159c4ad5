"""Reads the keys document, YAML or JSON, and says where it is wrong.

An unknown field is refused, unlike in the documents that the parts send each other: a misspelt `models` would open
every model.
"""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from tidepool_router.documents import DocumentError, dotted, line_of, load
from tidepool_router.keys.form import DIGEST_PATTERN, ID_PATTERN

Name = Annotated[str, Field(min_length=1, max_length=253)]
# It stands in a header and in labels.
TENANT_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9._:/@-]*[A-Za-z0-9])?$"
_MOST_KEYS: Final = 10_000
_REMEDIES: Final = {
    "tenant": "is not a name; use letters and digits, and between them . _ : / @ -",
    "sha256": "is not the digest of a key; take the line that `tidepool-router keys new` printed",
    "id": "is not the id of a key; take the line that `tidepool-router keys new` printed",
}


class KeysError(DocumentError):
    """A keys document that cannot be used."""


class _Strict(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")


class ApiKey(_Strict):
    """One key: who it is, and what it grants. Limits that are absent do not bind.

    `models` are names that clients ask for; one that ends in `*` stands for all that begin so. `priority` is the
    name of one of the pool's priorities, or a number: what the key's requests have, and the most that a header can
    ask for; absent: 0.
    """

    id: str = Field(pattern=ID_PATTERN)
    sha256: str = Field(pattern=DIGEST_PATTERN, repr=False)
    tenant: str = Field(max_length=128, pattern=TENANT_PATTERN)
    models: tuple[Name, ...] | None = Field(default=None, max_length=256)
    requests_per_minute: float | None = Field(default=None, gt=0, le=1e9)
    tokens_per_minute: float | None = Field(default=None, gt=0, le=1e12)
    priority: Annotated[int, Field(ge=-1000, le=1000)] | Annotated[str, Field(min_length=1, max_length=63)] = 0


class _Keys(_Strict):
    keys: tuple[ApiKey, ...] = Field(max_length=_MOST_KEYS)


def read_keys(text: str) -> tuple[ApiKey, ...]:
    """Parse and check a document.

    Raises KeysError, which names line, field and remedy and never a value: somebody may have put a key there.
    """
    try:
        data = load(text, KeysError)
    except KeysError as error:
        raise KeysError(
            "the document is not valid YAML or JSON", error.line
        ) from None  # the cause quotes the text
    if not isinstance(data, dict):
        raise KeysError("a keys document is a mapping with the list 'keys'", 1)
    try:
        keys = _Keys.model_validate(data).keys
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        path = fault["loc"]
        what = "is no known field; see docs/keys.md" if fault["type"] == "extra_forbidden" else fault["msg"]
        if fault["type"] == "string_pattern_mismatch":
            what = _REMEDIES.get(str(path[-1]), what)
        raise KeysError(f"{dotted(path)}: {what}", line_of(text, path)) from None  # the cause holds values
    _check_once(keys, text)
    return keys


def _check_once(keys: tuple[ApiKey, ...], text: str) -> None:
    seen: dict[str, int] = {}
    for index, key in enumerate(keys):
        first = seen.setdefault(key.id, index)
        if first != index:
            message = f"keys[{index}].id: {key.id} is the id of keys[{first}] already; take one of the two out"
            raise KeysError(message, line_of(text, ("keys", index, "id")))
