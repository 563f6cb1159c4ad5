"""Metadata of an object, as far as Tidepool reads it."""

from pydantic import Field

from tidepool_api.kube import Document


class OwnerReference(Document):
    """An object that this one belongs to."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class Metadata(Document):
    """Name, identity and labels; what the API server wrote is taken as it is."""

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()
